"""Resumes a job from its folder alone, in which the request is saved, or with options.

The options must equal those that the job began with. If they differ, a message names the flags that make them equal.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from msgspec import UNSET, Struct

from ..engine.base import TORCH
from ..errors import BroadsheetError, UsageError
from ..model.model_file import SHIPPED
from ..model.several import Models
from ..options import HEADER, TABLE, TYPES, Options
from ..output.folder import OutputFolder
from ..output.layout import REQUEST
from ..output.record import Fingerprint, Settings, from_json, to_json
from ..output.store import Location
from ..source.inputs import Paths, paths_of
from ..source.memory.stdin import Stdin
from ..storage.names import absolute, as_url, root_of, without_secrets

_TAB = "\t"
_LOOK_SECONDS = 2.0
"""A command that ends waits at most this many seconds for a store to say whether a job was begun there."""
HELD = {"root", "resume", "overwrite", "update"} | {n for n, o in TABLE.items() if o.recorded or o.panel == "Computing"}
"""Options that a job reads from its folder alone, or that say how it begins."""


class SavedRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of a request that the job's fingerprint does not hold. All paths are absolute.

    Attributes
    ----------
    inputs : tuple of str
        The paths and URLs of the input.
    models : tuple of str
        The names or paths of the models.
    root : str or None
        The folder that paths in the output are relative to.
    truth : str or None
        The file of answers.
    map_labels : str or None
        The label map.

    """

    inputs: tuple[str, ...]
    models: tuple[str, ...]
    root: str | None
    truth: str | None
    map_labels: str | None = None


def save_asked(folder: OutputFolder, source: Any, models: Models, options: Options, check: Callable[[], None]) -> None:
    """Save the request of a job over files, unless one of their URLs holds a password or a signature.

    Parameters
    ----------
    folder : OutputFolder
        The folder of the job, in which the request is saved.
    source : object
        The input, as in `classify`.
    models : Models
        The models of the job.
    options : Options
        The options of the job.
    check : callable
        A function that raises if another job has taken over the folder.

    """
    inputs = [absolute(as_url(name) or name) for name in paths_of(source) or ()]
    if inputs and inputs == [*map(without_secrets, inputs)]:
        names = [model.name for model in models.loaded]
        names = [absolute(name) if os.path.isfile(name) and name not in SHIPPED else name for name in names]
        given = (options.truth, options.map_labels)
        files = [None if file is None else absolute(os.fspath(file)) for file in given]
        folder.store.put(REQUEST, to_json(SavedRequest((*inputs,), (*names,), root_of(options.root), *files)), check)


def how_to_go_on(place: Location, source: Any, command: str) -> str:
    """Return how to continue the job that was begun at a place: the command, if that needs only the folder."""
    is_begun, saved = _begun(place)
    if is_begun is False:
        return "No job has begun there yet"
    if isinstance(source, Stdin):
        return "Start again with --overwrite: stdin is gone"
    known = "Continue with" if is_begun else "If a job has begun there, continue with"
    return f"{known}\n{command}" if saved else f"{known} the same command and --resume"


def _begun(place: Location) -> tuple[bool | None, bool]:
    """Return whether a job was begun at a place, and whether its request is saved there.

    The first is None if the place is slow to answer.
    """
    found: SimpleQueue[tuple[bool | None, bool]] = SimpleQueue()

    def look() -> None:
        try:
            folder = OutputFolder(place)
            found.put((folder.is_begun, folder.store.has(REQUEST)))
        except BroadsheetError:  # the place may be out of reach now
            found.put((None, True))

    Thread(target=look, name="broadsheet-folder", daemon=True).start()
    try:
        return found.get(timeout=_LOOK_SECONDS)
    except Empty:
        return None, True


def taken_up(place: Location) -> tuple[Paths, list[str], dict[str, Any]]:
    """Return the input, models and options of the job in a folder. Raises UsageError if they are not saved there."""
    folder = OutputFolder(place)
    if not (folder.is_begun and folder.store.has(REQUEST)):
        raise UsageError(
            f"{place} does not hold what a job was asked for: none has begun, its rows were in memory or on stdin, or "
            "its input's address has a password or a signature. Give input, model and options again"
        )
    request = from_json(folder.store.read(REQUEST), SavedRequest, folder.path / REQUEST)
    files = {name: getattr(request, name) for name in ("root", "truth", "map_labels")}
    options = options_of(folder.manifest().fingerprint) | files
    del options["chunk_size"]  # a job that resumes takes it from its manifest (`plan` of run.py)
    return (
        Paths(request.inputs),
        [*request.models],
        {name: value for name, value in options.items() if value is not None},
    )


def options_of(job: Fingerprint) -> dict[str, Any]:
    """Return the options of a job that are not the defaults. Answers and a label map appear as their hash."""
    held, backend = job.settings, job.backend
    options = {name: getattr(held, name) for name in Settings.__struct_fields__ if name in TABLE}
    options |= {"text_column": held.text_columns, "label_column": held.truth_column, "id_column": held.kept_columns}
    if held.join is not UNSET:
        del options["text_column"]  # the template names the columns
    options |= {"device": backend.device, "precision": backend.precision}
    options["kernels"] = "auto" if backend.device == "cpu" or backend.kernels == TORCH else backend.kernels
    if held.windows is not UNSET:
        options |= zip(("windows", "overlap", "window_score"), held.windows, strict=True)
    return {name: value for name, value in options.items() if value is not UNSET and value != TABLE[name].default}


def flags(name: str, value: Any, quoted: Callable[[str], str] = shlex.quote) -> str:
    """Return an option as it is written in a command line."""
    values = value if isinstance(value, tuple | list) else [value]
    if TYPES.get(name) == HEADER:
        values = [",".join(values)]
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else " ".join(f"{flag} {quoted('tab' if v == _TAB else str(v))}" for v in values)


def refuse_difference(folder: OutputFolder, before: Fingerprint, now: Fingerprint, update: bool) -> None:
    """Raise UsageError unless the job in the folder is this one. The message names every difference."""
    if before == now:
        return
    steps, was, given = [], options_of(before), options_of(now)
    for name in TABLE:
        old, new = was.get(name), given.get(name)
        given_now = "" if new is None else _shown(name, new)
        if new and name == "id_column":
            given_now = "--id-column and --keep"  # the user may have given either
        if old is None and new is not None:
            steps.append(f"leave out {given_now}")
        elif name == "truth" and old != new:
            steps.append("give the --truth that it had, with the same answers")
        elif name == "map_labels" and old != new:
            steps.append("give the --map-labels that it had, with the same classes")
        elif old != new:
            steps.append(f"add {_shown(name, old)}" + ("" if new is None else f" in place of {given_now}"))
    for what, here in ((before.backend, now.backend), (before.writer, now.writer)):
        steps += [f"go on with {what}: this is {here}"] if what != here else []
    if before.model != now.model:
        request = from_json(folder.store.read(REQUEST), SavedRequest, REQUEST) if folder.store.has(REQUEST) else None
        steps.append(f"another model labelled its rows: {_shown('model', request.models) if request else 'give that'}")
    remedies = "; ".join(steps) or "its manifest is not that of such a job"
    verb = "update" if update else "resume"
    raise UsageError(f"cannot {verb} {folder.path}: {remedies}. Or start again with --overwrite")


def _shown(name: str, value: Any) -> str:
    """Return an option for a message, in Python's form: quotes around a text, and none around a number."""

    def quoted(text: str) -> str:
        return text if text.replace(".", "").isdecimal() else shlex.quote(text) if "'" in text else f"'{text}'"

    return "--truth" if name == "truth" else flags(name, value, quoted)
