"""How workers come to be: on this machine, at a scheduler's address, in Slurm jobs; and what each of them has."""

from cluster.connect import connect, nearest
from cluster.plugin import EnginePlugin, start_engines

__all__ = ["EnginePlugin", "connect", "nearest", "start_engines"]
