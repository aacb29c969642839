"""How workers come to be: embedded, or found at a scheduler's address; and what each of them must have."""

from cluster.connect import connect
from cluster.plugin import EnginePlugin, start_engines

__all__ = ["EnginePlugin", "connect", "start_engines"]
