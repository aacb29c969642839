"""The command `broadsheet`, also as `python -m broadsheet`."""

from __future__ import annotations

import sys

import broadsheet


def main() -> None:
    """Run the command, unless another package hides ours."""
    message = broadsheet.hidden()
    if message:
        sys.exit(f"broadsheet: {message}")
    from pipeline.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
