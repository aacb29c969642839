"""The entry point of the command `broadsheet`, which runs before any module that takes time to load."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys

_OBJECTS_BETWEEN_LOOKS = 50_000
_REQUESTS = "broadsheet.pipeline.storage.requests"


def look_less_for_garbage() -> None:
    """Collect garbage less often.

    Imports create objects that stay alive. A search through them after every 700 new ones takes half a second.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS)


def process() -> None:
    """Run the command, and end the process at once even if a server has not answered yet.

    Without this, Python first waits for the threads that wait for the server.
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
    """Run the command. Ctrl-C during the imports of its modules ends it without a traceback."""
    for number in (1, 2):
        try:
            os.fstat(number)
        except OSError:  # it is closed: the first output file would get its number, and the printed text
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have set it to be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    atexit.register(gc.freeze)  # spares Python's search for garbage at its end: 0.2 to 0.4 s
    from .commands import run

    run()
