"""The command `broadsheet`: where it begins, before anything that takes time to load."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys

_OBJECTS_BETWEEN_LOOKS = 50_000
_REQUESTS = "broadsheet.pipeline.storage.requests"


def look_less_for_garbage() -> None:
    """Collect garbage less often. What imports make stays: to look through it every 700 objects takes half a second."""
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)


def process() -> None:
    """Run the command, and end the process at once even if a server has not answered yet.

    Python by itself would first wait for the threads that wait for the server.
    """
    try:
        main()
    except SystemExit as ended:
        requests = sys.modules.get(_REQUESTS)  # without this module, no request was sent
        if requests is None or not requests.under_way():
            raise
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0 if ended.code is None else ended.code
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    """Run the command. Ctrl-C while its modules are imported ends it without a traceback."""
    for number in (1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed: the first file of the output would get the number, and with it what is printed
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    atexit.register(gc.freeze)  # Python looks through all that is left for garbage at its end: 0.2 to 0.4 s
    from .commands import run

    run()
