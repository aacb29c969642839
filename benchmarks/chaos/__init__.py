"""Jobs disturbed at random, and what became of their rows.

trial: one job, disturbed once. machine: what can happen to a job on one machine. network: what can happen to one in a
Slurm whose nodes are network namespaces.
"""
