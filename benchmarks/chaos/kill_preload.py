"""A Dask worker preload that kills processes at a step of a chunk: the worker, or all processes of the job.

The variable BROADSHEET_KILL is "STEP WHOM FLAG":

- STEP is in-infer, before-write, after-temporary, after-rename, after-write, before-entry or after-entry. The kill
  happens once this process has committed two chunks. The third chunk that comes to a step of writing waits for these
  commits, since otherwise all chunks could be written before two are committed.
- WHOM is worker, all, or stop, which stops the worker with SIGSTOP.
- FLAG is a file that is created first, with the process id in it, so that the kill happens once.
"""

import atexit
import os
import signal
import threading
import time
from pathlib import Path

from broadsheet.pipeline.job.worker import STATE
from broadsheet.pipeline.labelling.engines import ENGINES
from broadsheet.pipeline.output.layout import ENTRIES, PARTS

STEP, WHOM, FLAG = os.environ["BROADSHEET_KILL"].split()
# Dask runs a preload more than once: the functions that it replaces are stored where the second run finds them.
commit, open_engine, replace = vars(STATE).setdefault("kept", (STATE.commit, ENGINES.open_engine, os.replace))
committed = passed = 0
changed = threading.Condition()


def kill() -> None:
    """Kill or stop what WHOM names, unless another process has done so."""
    try:
        with open(FLAG, "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    if WHOM == "stop":
        atexit.register(time.sleep, 3)  # a continued worker exits, but only after this thread has written
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.2)  # a process stops some microseconds after this call
        return
    if WHOM == "all":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def at(step: str) -> None:
    """Kill if `step` is STEP and this process has committed two chunks."""
    global passed
    if step != STEP:
        return
    with changed:
        passed += 1
        if passed > 2 and step != "in-infer":  # the engine's trial run passes in-infer as well
            changed.wait_for(lambda: committed >= 2, 120)
        if committed < 2:
            return
    kill()


def watched(kind: type) -> type:
    """Return a subclass of a store that reports those steps of a commit that a store sees."""

    class Store(kind):
        def add_all(self, files, check) -> None:
            global committed
            folder = files[0][0].partition("/")[0]
            at({PARTS: "before-write", ENTRIES: "before-entry"}.get(folder, ""))
            super().add_all(files, check)
            with changed:
                committed += folder == ENTRIES
                changed.notify_all()
            at({PARTS: "after-write", ENTRIES: "after-entry"}.get(folder, ""))

    return Store


def replacing(source, target) -> None:
    """Replace `os.replace`, and report the steps of writing a part."""
    of_part = Path(target).parent.name == PARTS
    if of_part:
        at("after-temporary")
    replace(source, target)
    if of_part:
        at("after-rename")


class Engine:
    """An engine that reports the step in-infer before it classifies."""

    def __init__(self, *arguments) -> None:
        self.engine = open_engine(*arguments)

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def classify(self, *arguments):
        at("in-infer")
        return self.engine.classify(*arguments)


ENGINES.open_engine, os.replace = Engine, replacing
STATE.commit = lambda store, *arguments: commit(watched(type(store))(store.root), *arguments)
