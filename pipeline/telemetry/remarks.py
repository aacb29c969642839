"""What a process has noticed that makes jobs slower than they could be: each of its jobs says so at the end."""

from __future__ import annotations

REMARKS: dict[str, None] = {}
"""Sentences, each once."""
