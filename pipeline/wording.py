"""Options in messages: written as the command's flags, `--chunk-size`, and said in Python as `chunk_size=`."""

from __future__ import annotations

import re

SWITCHES = frozenset(
    {"allow-mixed", "input", "keep-all", "multi-label", "overwrite", "profile", "resume"}
    | {"scores", "strict", "tls", "update"},
)
"""Flags without a value: True in Python."""

VALUED = frozenset(
    {
        *("chunk-size", "columns", "delimiter", "device", "encoding", "format", "hash", "id-column", "keep", "kernels"),
        *("abstain", "limit", "partition-by", "precision", "report", "root", "text-column", "top-k", "trace", "truth"),
        *("truth-column", "where", "workers", "endpoint"),  # of `classify`, as those above
        *("windows", "overlap", "window-score"),
        *("classes", "held-out", "label-separator", "learning-rate", "model", "nsys", "protocol", "scheduler-file"),
    }
)
"""Flags with a value: keywords in Python."""

_VALUES = "fp32|fp16|bf16|int8|simt|sm75|sm80|sm90|cpu|cuda|tcp|ucx|listing|full"
_ENDS = r"(?![\w/-]|\.\w)"
_FLAG = re.compile(rf"(?<![^\s(`'\"])--({'|'.join(sorted(SWITCHES | VALUED, key=len, reverse=True))}){_ENDS}")
_WITH_VALUE = re.compile(rf"{_FLAG.pattern} ({_VALUES}|'[^']+'|(?<=--encoding )[\w-]+|(?<=--delimiter )tab){_ENDS}")
_CLUSTER = re.compile(rf"(?<![^\s(`'\"])--cluster (\w+){_ENDS}")


def in_python(message: str) -> str:
    """The message with Python's form of each flag in it; paths and other programs' flags stay as they are.

    >>> in_python("continue with --resume, or use --precision fp32 and a smaller --chunk-size")
    'continue with resume=True, or use precision="fp32" and a smaller chunk_size='
    """
    message = _CLUSTER.sub(r'cluster.connect("\1")', message)
    message = _WITH_VALUE.sub(lambda found: f"{_keyword(found[1])}{_quoted(found[2])}", message)
    return _FLAG.sub(lambda found: _keyword(found[1]) + ("True" if found[1] in SWITCHES else ""), message)


def _quoted(value: str) -> str:
    return value if value.startswith("'") else f'"{value}"'


def _keyword(flag: str) -> str:
    return f"{flag.replace('-', '_')}="
