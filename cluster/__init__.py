"""Clusters on this machine, at a scheduler's address or in Slurm jobs; and what a job installs on their workers."""

from .client import connect, nearest
from .clock import client_clock
from .plugin import EnginePlugin, start_engines

__all__ = ["EnginePlugin", "client_clock", "connect", "nearest", "start_engines"]
