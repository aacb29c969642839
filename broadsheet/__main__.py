"""The command `broadsheet`, also as `python -m broadsheet`."""

from __future__ import annotations

import gc
import sys

import broadsheet

gc.set_threshold(50_000)  # as `pipeline/__main__.py` does, which a worker process of this command does not import


def main() -> None:
    """Run the command, unless another package hides ours."""
    message = broadsheet.hidden()
    if message:
        sys.exit(f"broadsheet: {message}")
    from pipeline.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
