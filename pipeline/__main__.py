"""The command `broadsheet`, also as `python -m pipeline`."""

from __future__ import annotations

import gc
import signal

_OBJECTS_BETWEEN_LOOKS = 50_000
"""What imports make stays: looking among it for garbage every 700 objects would take half a second."""

gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)  # here, since a worker process imports the command's module before all others


def main() -> None:
    """Run the command. Ctrl-C while its modules are imported ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
