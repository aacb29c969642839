"""A Dask worker preload that kills for real: at a step of a chunk, the worker or all of the job's processes.

BROADSHEET_KILL: "STEP WHOM FLAG". STEP: in-infer, before-write, after-temporary, after-rename or before-entry, once
this process has committed two chunks. WHOM: worker, all, or stop (the worker, with SIGSTOP). FLAG: a file that is made
first, with the process id in it, so that it happens once.
"""

import atexit
import os
import signal
import time
from pathlib import Path

from pipeline.engine.cpu import CpuEngine
from pipeline.output import commit
from pipeline.output.layout import ENTRIES, PARTS

STEP, WHOM, FLAG = os.environ["BROADSHEET_KILL"].split()
# Dask runs a preload more than once: what it replaces is kept where the second run finds it.
originals = (commit.commit_bytes, commit.commit_json, os.replace, CpuEngine.classify)
write_bytes, write_json, replace, infer = vars(commit).setdefault("originals", originals)
committed = 0


def kill() -> None:
    try:
        with open(FLAG, "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return
    if WHOM == "stop":
        atexit.register(time.sleep, 3)  # once it goes on its worker ends, but not before this thread has written
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.2)  # a process stops some microseconds after this call
        return
    if WHOM == "all":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def at(step: str) -> None:
    if step == STEP and committed >= 2:
        kill()


def commit_bytes(path: Path, data: bytes) -> None:
    if path.parent.name == PARTS:
        at("before-write")
    write_bytes(path, data)


def commit_json(path: Path, value) -> None:
    global committed
    entry = path.parent.name == ENTRIES
    if entry:
        at("before-entry")
    write_json(path, value)
    committed += entry


def replacing(source, target) -> None:
    of_part = Path(target).parent.name == PARTS
    if of_part:
        at("after-temporary")
    replace(source, target)
    if of_part:
        at("after-rename")


def classify(engine: CpuEngine, *arguments):
    at("in-infer")
    return infer(engine, *arguments)


CpuEngine.classify = classify
commit.commit_bytes, commit.commit_json, os.replace = commit_bytes, commit_json, replacing
