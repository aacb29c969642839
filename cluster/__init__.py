"""How workers come to be: embedded, or found at a scheduler's address; and what each of them must have."""

from cluster.clock import client_clock
from cluster.connect import connect
from cluster.plugin import EnginePlugin, start_engines

__all__ = ["EnginePlugin", "client_clock", "connect", "start_engines"]
