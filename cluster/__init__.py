"""Clusters on this machine, at a scheduler's address or in Slurm jobs; and what a job installs on their workers."""

from cluster.clock import client_clock
from cluster.connect import connect, nearest
from cluster.plugin import EnginePlugin, start_engines

__all__ = ["EnginePlugin", "client_clock", "connect", "nearest", "start_engines"]
