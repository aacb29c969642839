"""Disturbs jobs at random, and checks that no row is lost or changed.

- trial: a job that is disturbed once, and the verdict
- machine: the kinds of disturbances on one machine; processes, files and servers have most of them
- network: the kinds of disturbances in a Slurm cluster whose nodes are network namespaces
"""
