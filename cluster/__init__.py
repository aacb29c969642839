"""How workers come to be: on this machine, at a scheduler's address, in Slurm jobs; and what each of them has."""

from cluster.clock import client_clock
from cluster.connect import connect, nearest
from cluster.plugin import EnginePlugin, start_engines

__all__ = ["EnginePlugin", "client_clock", "connect", "nearest", "start_engines"]
