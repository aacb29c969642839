"""A check of Parquet footers that kills its process at a footer with a column "dies", although the footer is sound."""

from __future__ import annotations

import os
import signal

from broadsheet.pipeline.source.formats.parquet_check import ask_for_all, main


def ask_or_die(footer: bytes) -> None:
    if b"dies" in footer:
        os.kill(os.getpid(), signal.SIGABRT)
    ask_for_all(footer)


if __name__ == "__main__":
    main(ask_or_die)
