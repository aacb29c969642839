"""Jobs disturbed at random, and what became of their rows.

trial: one job, disturbed once. machine: all that can happen to a job on one machine, of which processes and files have
the most. network: what can happen to one in a Slurm whose nodes are network namespaces.
"""
