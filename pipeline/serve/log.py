"""What the server says of itself: lines of text or JSON on stderr, never with a text in them unless asked."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from ..errors import visible

log = logging.getLogger("broadsheet.serve")


class _Lines(logging.Formatter):
    """extra={"fields": {…}} has what is said of a request or an engine beside the message."""

    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        fields: dict[str, Any] = getattr(record, "fields", {})
        if self._as_json:
            return json.dumps({"time": when, "level": record.levelname.lower(), "message": message, **fields})
        told = "".join(f" {name}={value}" for name, value in fields.items())
        return f"{when} {record.levelname.lower()} {visible(message + told)}"


def start_log(as_json: bool) -> None:
    """Send the server's lines, and what uvicorn warns of, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(as_json))
    for name, level in (("broadsheet.serve", logging.INFO), ("uvicorn.error", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
