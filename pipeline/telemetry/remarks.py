"""Collects what a process has noticed that makes jobs slower than they could be. Each of its jobs reports it."""

from __future__ import annotations

REMARKS: dict[str, None] = {}
"""The remarks as sentences, each once."""
