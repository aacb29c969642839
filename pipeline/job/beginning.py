"""Decides how a job begins (fresh, resumed, updated or overwritten) from its folder and options. Holds the values that
the steps of a job pass on: `JobRequest` -> `Prepared` -> `Planned` -> `Outcome`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from ..engine.base import Backend
from ..errors import OutputError, SourceError, UsageError
from ..model.several import Models
from ..options import TABLE, Options
from ..output.account import range_numbers
from ..output.columns import Columns
from ..output.finish import seal
from ..output.folder import OutputFolder
from ..output.layout import MANIFEST, PLAN, SUCCESS
from ..output.record import WRITER, Fingerprint, Manifest, SavedPlan, Totals
from ..output.saved_plan import Changes, changes, plan_again, plan_from, ranges_with, resolved, without
from ..output.select import OneFile
from ..output.store import Location
from ..report.facts import Growth
from ..report.job import JobReport, Progress
from ..source.inputs import Given, JobInput, identify, local_paths, paths_of
from ..source.plan.files import Files
from ..source.plan.plan import Plan, bound, files_in_ranges, parts_of
from ..source.rows.chunk import Selection
from ..source.rows.format import InputFile, Schema
from ..storage.buckets import refuse_useless
from ..storage.disk import refuse_outputs
from .again import refuse_difference

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class JobRequest:
    """A job that a user requests.

    Attributes
    ----------
    source : object
        The input, as `classify` takes it.
    folder : OutputFolder or None
        The output folder; None for results in memory.
    models : Models
        The models that label the input.
    client : distributed.Client or callable
        A client of a running cluster, whose workers' devices determine the chunk size. Or a function that connects to
        a cluster, which starts while the job is planned and ends with the job.
    options : Options
        The options of the job.
    progress : Progress
        The object that shows the job's progress to the user.
    stop : callable
        Called before each chunk is submitted. The job ends early when it returns True.
    puts_off_changed : bool
        If the job resumes: whether an update labels the files that have changed or are gone since it began, and the
        files that are read together with them.

    """

    source: Any
    folder: OutputFolder | None
    models: Models
    client: Client | Callable[[], AbstractContextManager[Client]]
    options: Options
    progress: Progress
    stop: Callable[[], bool]
    puts_off_changed: bool = False


def refuse_files(source: Any, output: Location | None, models: Iterable[str], options: Options) -> None:
    """Raise UsageError if the job may not write one of its files or folders, for example because the job reads it.

    Also raise UsageError for options of files and of object stores if the job has none. A job that resumes replaces the
    trace and the report of its last run. models: their files.
    """
    paths = paths_of(source)
    if paths is None and options.root is not None:
        raise UsageError("--root is for the paths of files, and the input has none: leave it out")
    of_labels = (options.label_numbers_from, options.fold_labels or None, options.map_labels)
    if options.label_column is None and any(given is not None for given in of_labels):
        raise UsageError("--label-numbers-from, --fold-labels and --map-labels go with --label-column")
    refuse_useless(options.endpoint, [*(paths or ()), str(output)])
    truth = [] if options.truth is None else [os.fspath(options.truth)]
    truth += [] if options.map_labels is None else [os.fspath(options.map_labels)]
    read = lambda: [*models, *truth, *local_paths(source, options.input_format)]
    written = {"--trace": options.trace, "--report": options.report}
    may_replace = options.overwrite or options.resume or options.update
    refuse_outputs(written, may_replace, read, str(output) if isinstance(output, Path) else None)


def named_input(source: Any, models: Models, options: Options, **keywords: Any) -> Given:
    """Return the input of a job, before it is planned. keywords: more of `identify`, which may raise UsageError."""
    named: dict[str, Any] = {name: getattr(options, name) for name in ("root", "endpoint", "input_format")}
    return identify(source, len(models.first.alphabet), models.first.length, **named, **keywords)


def rooted(source: Any, options: Options) -> Options:
    """Return the options. If the job writes a file beside each input file, the root is the one folder of its input.

    Raises UsageError if the input is not one folder and no root is given.
    """
    if options.layout == "parts" or options.root is not None:
        return options
    paths = paths_of(source) or ()
    if len(paths) != 1 or not (os.path.isdir(paths[0]) or paths[0].endswith("/")):
        raise UsageError(
            "--layout attributes repeats the paths of the input: give one folder, or --root, the folder above all files"
        )
    return options.replaced(root=paths[0])


def of_one_file(one: OneFile, source: Any, options: Options) -> Options:
    """Return the options of a job that writes its labels to one file.

    Raises UsageError if an option or the file does not fit. A job that resumes replaces the file.
    """
    # None of these options may be given, except a format that is also the ending of the file.
    for name in ("format", "layout", "partition_by", "part_rows", "shard", "update"):
        given = getattr(options, name)
        if given not in (TABLE[name].default, one.format):
            remedy = f"leave out --{name.replace('_', '-')}, or give a folder"
            raise UsageError(f"{one.place} is one file, made when the job is done: {remedy}")
    goes_on = options.resume and OutputFolder(one.folder).is_begun
    one.refuse(options.overwrite or goes_on, lambda: local_paths(source, options.input_format))
    return options.replaced(format=one.format)


@dataclass(frozen=True)
class Resumed:
    """A job that resumes.

    Attributes
    ----------
    before : Manifest
        The manifest of the job.
    saved : SavedPlan or None
        The plan of the job, with those of its updates; None if the folder has no plan.
    growth : Growth or None
        How many files were added since the job began, and how many are put off; None if there are neither.
    put_off : tuple of int
        The numbers of the ranges that are left to an update, because some of their files have changed or are gone.

    """

    before: Manifest
    saved: SavedPlan | None
    growth: Growth | None
    put_off: tuple[int, ...] = ()

    @property
    def is_updated(self) -> bool:
        """Whether ranges of the job were withdrawn or put off. If so, the saved plan is used."""
        return bool(self.before.updates or self.put_off)

    @property
    def left(self) -> SavedPlan | None:
        """The saved plan without the ranges that are put off."""
        return without(self.saved, self.put_off) if self.saved is not None and self.put_off else self.saved

    def plan(self, folder: OutputFolder, files: Files, requested: Selection, cut: bool) -> Plan | None:
        """Return the plan, or None if it must be made again. requested: what the options select. Raises OutputError."""
        if self.left is not None and (self.is_updated or self.left.whole is not UNSET):
            return plan_again(self.left, files.found, requested)
        data, settings = folder.plan(), self.before.fingerprint.settings
        path = folder.path / PLAN
        return (
            None if data is None else plan_from(data, files.found, requested, settings.chunk_size, path, settings.limit)
        )


@dataclass(frozen=True)
class Update:
    """A finished job to which files are added, or an update that resumes.

    Attributes
    ----------
    before : Manifest
        The manifest of the job.
    number : int
        The number of this update among the updates of the job, from 1.
    saved : SavedPlan or None
        The plan of this update, if an earlier run has begun it.
    whole : SavedPlan
        The plan of everything that was labelled before and stays.
    earlier : Totals
        The totals of everything that was labelled before and stays.
    files : sequence of InputFile
        The files that this update labels.
    withdrawn : tuple of int
        The numbers of the earlier ranges that do not stay, because some of their files have changed or are gone.
    growth : Growth
        The changes since the job, for the report.
    first_range : int
        The number of the first range of this update.

    """

    before: Manifest
    number: int
    saved: SavedPlan | None
    whole: SavedPlan
    earlier: Totals
    files: Sequence[InputFile]
    withdrawn: tuple[int, ...]
    growth: Growth
    first_range: int
    is_updated = True

    @property
    def is_empty(self) -> bool:
        return self.saved is None and not (self.files or self.withdrawn)

    def plan(self, _: OutputFolder, listed: Files, requested: Selection, cut: bool) -> Plan:
        """Return the plan of the update. It uses the columns of the job, and its range numbers follow those of the job.

        listed: the input. requested: what the options select. cut: as in `plan_files`. Raises OutputError.
        """
        if self.saved is not None:
            return plan_again(self.saved, self.files, requested)
        if self.whole.first is None:
            what = "no file of the job could be read, so its columns are not known"
            raise OutputError(f"{what}. Start again with --overwrite")
        path, names = self.whole.first
        selection = resolved(self.whole, requested)
        files = bound(self.files, selection)
        sizes = files_in_ranges(files, self.whole.chunk_rows)
        return Plan(
            files=tuple(files),
            sizes=tuple(sizes),
            parts=tuple(parts_of(files, sizes, self.whole.chunk_rows) if cut else [1] * len(sizes)),
            selection=selection,
            chunk_rows=self.whole.chunk_rows,
            first=(path, Schema(names)),
            problems=listed.problems,
            unread=tuple((path, None) for path, _ in listed.problems),
            left_out=listed.left_out,
            first_range=self.first_range,
        )


Beginning = Resumed | Update | None
"""None means fresh: the rows are in memory, or the folder has no manifest, or the job overwrites its folder."""


def beginning_of(request: JobRequest, given: Given, identity: str) -> Beginning:
    """Decide how a job begins. given: its input. identity: the digest of the input.

    Raises UsageError if the job in the folder is a different one or cannot be resumed or updated, and OutputError if
    the folder is damaged.
    """
    folder, options = request.folder, request.options
    before = folder.take_up() if folder and (options.resume or options.update) else None
    if folder is None or before is None:
        if folder and options.update and folder.is_begun:
            raise OutputError(f"{folder.path / MANIFEST} is damaged: --resume repairs this")
        return None
    # Compare the settings before the saved plan is used. The backend is compared later, when it is known.
    settings = options.settings(options.chunk_size or before.fingerprint.settings.chunk_size, request.models)
    digest = request.models.digest
    now = msgspec.structs.replace(before.fingerprint, settings=settings, model=digest, writer=WRITER)
    refuse_difference(folder, before.fingerprint, now, options.update)
    if options.update:
        return _begin_update(folder, before, given, options)
    puts_off = request.puts_off_changed
    return _continued(folder, before, given) or _resumed(folder, before, given, identity, puts_off)


def _resumed(folder: OutputFolder, before: Manifest, given: Given, identity: str, puts_off_changed: bool) -> Resumed:
    """Resume the job in a folder; new files are left to an update. Raises UsageError if the input has changed.

    Parameters
    ----------
    folder : OutputFolder
        The folder.
    before : Manifest
        Its manifest.
    given : Files or rows in memory
        The input as it is now.
    identity : str
        The digest of the input.
    puts_off_changed : bool
        Whether files that have changed are left to an update too.

    """
    saved = None
    if isinstance(given, Files) and (before.updates or folder.plan() is not None):
        saved = folder.checked_plan(before)
    if saved is None or not isinstance(given, Files):
        if before.fingerprint.input != identity:
            raise UsageError(f"cannot resume {folder.path}: the input changed. Start again with --overwrite")
        return Resumed(before, None, None)
    differ = changes(saved, given)
    stale = {*differ.changed, *differ.gone}
    if stale and not puts_off_changed:
        raise UsageError(f"cannot resume {folder.path}: {differ}. {_remedy_of_changes(before)}")
    _refuse_unknown_gone(differ, given)
    growth = Growth(0, len(saved.files), later=len(differ.new), put_off=len(stale)) if differ.new or stale else None
    return Resumed(before, saved, growth, ranges_with(saved, stale) if stale else ())


def _refuse_unknown_gone(differ: Changes, now: Files) -> None:
    """Raise SourceError if an incomplete listing hides which files are gone."""
    if differ.gone and now.problems:
        raise SourceError(f"{now.problems[0][1]}. So it is not known which files are gone: leave out --changed")


def _remedy_of_changes(before: Manifest) -> str:
    """Return the remedy for a job that cannot be resumed because its files have changed."""
    settings = before.fingerprint.settings
    if settings.limit is not None or settings.shard is not UNSET:  # such a job cannot be updated
        return "Start again with --overwrite"
    if before.totals is not None:
        return "Its job is finished: --update --changed labels what has changed, and nothing else"
    return "--update --changed labels the rest and what has changed; the labels of other files stay"


def _continued(folder: OutputFolder, before: Manifest, given: Given) -> Update | None:
    """Return the interrupted update of a job that is resumed.

    Raises UsageError if the files of the update have changed.
    """
    update = _unfinished(folder, before, given)
    if update is None or update.saved is None or not isinstance(given, Files):
        return None
    differ = changes(update.saved, given)
    if differ.changed or differ.gone:
        differ = replace(differ, new=())
        raise UsageError(f"cannot resume the update of {folder.path}: {differ}. --update begins it anew without that")
    return update


def _begin_update(folder: OutputFolder, manifest: Manifest, now: Given, options: Options) -> Update:
    """Begin the update of the job in a folder, or continue one that is under way.

    An update that is under way is continued if its files have not changed since it began; otherwise it is discarded.
    With `strict`, a changed file stops the update.

    Raises UsageError for a job that cannot be updated, SourceError for a file that has changed.
    """
    if not isinstance(now, Files):
        raise UsageError(f"cannot update {folder.path}: only files can be new, and the input is something else")
    if manifest.totals is None:
        raise UsageError(f"cannot update {folder.path}: its job is not finished. Continue with --resume")
    if manifest.fingerprint.settings.limit is not None:
        raise UsageError(f"cannot update {folder.path}: its job had a --limit, which ends before the new files")
    update, least = _unfinished(folder, manifest, now, options.changed), 0
    if update is not None and update.saved is not None:
        differ = changes(update.saved, now)
        if differ.changed or differ.gone:
            folder.discard_update(update.number, update.saved, manifest.fingerprint.id)
            least = range_numbers(update.saved).stop  # a late worker may still write chunks of these ranges
            update = None
    if update is None and not folder.store.has(SUCCESS):
        seal(folder, manifest)
    update = update or update_of(folder, manifest, now, None, options.changed, least)
    if options.strict and update.growth.changed:
        raise SourceError(f"{update.growth.lines[0]} (--strict stops here)")
    return update


def _unfinished(folder: OutputFolder, manifest: Manifest, now: Given, changed: bool = False) -> Update | None:
    """Return the update that is under way, or None.

    changed: as in `update_of`. Raises OutputError for a damaged plan.
    """
    number = folder.under_way(manifest)
    if number is None or manifest.totals is None or not isinstance(now, Files):
        return None
    if folder.compaction_under_way(manifest) is not None:
        return None  # the files that a compaction has written do not count
    return update_of(folder, manifest, now, folder.plan_of(manifest, number), changed)


def asked_update(folder: OutputFolder, now: Files, changed: bool) -> Update | None:
    """Return what an update would do, for a dry run; nothing is written. Returns None if no finished job is there."""
    manifest = folder.manifest() if folder.is_begun else None
    if manifest is None or manifest.totals is None:
        return None
    unfinished = _unfinished(folder, manifest, now, changed)
    return unfinished or update_of(folder, manifest, now, None, changed)


def update_of(
    folder: OutputFolder, manifest: Manifest, now: Files, saved: SavedPlan | None, changed: bool, least: int = 0
) -> Update:
    """Return the update that adds the new files of a listing, or that continues a saved one.

    Raises SourceError if an incomplete listing hides which files are gone.

    Parameters
    ----------
    folder : OutputFolder
        The folder of the job.
    manifest : Manifest
        The manifest of the job, with totals.
    now : Files
        The input as it is listed now.
    saved : SavedPlan or None
        The plan of an update that is under way.
    changed : bool
        Whether to label changed files again, and to remove the labels of files that are gone.
    least : int
        The lowest number that the first range may have.

    """
    # Compare the listing with the plan of the job.
    earlier, whole = manifest.totals, folder.checked_plan(manifest)
    assert earlier is not None
    if whole is None:
        raise UsageError(f"cannot update {folder.path}: the rows of its job were in memory, and not in files")
    differ = changes(whole, now)
    if changed:
        _refuse_unknown_gone(differ, now)
    stale = {*differ.changed, *differ.gone} if changed else set()
    # Withdraw the ranges with files that are labelled again or are gone.
    withdrawn = saved.withdrawn or () if saved else ranges_with(whole, stale)
    left = without(whole, withdrawn)
    if withdrawn:
        earlier = folder.totals(left, manifest.fingerprint.id, {*range_numbers(left)} - {*withdrawn})
    # Choose the files to label, and count the others for the report.
    by_path, stay = {file.path: file for file in now.found}, {file.path for file in left.files}
    to_label = [path for path in by_path if path not in stay] if saved is None else [file.path for file in saved.files]
    growth = Growth(
        new=len({*to_label} & {*differ.new}),
        before=len(whole.files),
        changed=tuple(path for path in differ.changed if path in stay),
        gone=tuple(path for path in differ.gone if path in stay),
        later=len((by_path.keys() - stay - {*to_label}) | (stale & stay)),
        again=len({*to_label} & {*differ.changed}),
        removed=len({*differ.gone} - stay),
    )
    # Put together the update, whose first range comes after all ranges of the job.
    files, first = [by_path[path] for path in to_label if path in by_path], max(least, whole.ranges)
    earlier = _without_repaired(earlier, {*to_label})
    return Update(manifest, len(manifest.updates) + 1, saved, left, earlier, files, withdrawn, growth, first)


def _without_repaired(earlier: Totals, labelled: set[str]) -> Totals:
    """Return the totals without the problems of files that could not be opened then, and that an update labels."""
    problems = tuple(problem for problem in earlier.problems if problem[0] not in labelled)
    unread = tuple(file for file in earlier.unread if file[0] not in labelled)
    return msgspec.structs.replace(earlier, problems=problems, unread=unread)


def only_known(whole: SavedPlan, now: Files) -> Files:
    """Return the files of a plan, in its order, without new files."""
    by_path = {file.path: file for file in now.found}
    return replace(now, found=tuple(by_path[file.path] for file in whole.files))


@dataclass(frozen=True)
class Engines:
    """The models on every worker.

    Attributes
    ----------
    keys : tuple of str
        The keys by which tasks find the engine of each model.
    backend : Backend
        The backend of the first model's engines.
    seconds : float
        The time that the job waited for the engines.

    """

    keys: tuple[str, ...]
    backend: Backend
    seconds: float


@dataclass(frozen=True)
class Prepared:
    """A request whose input is known.

    Attributes
    ----------
    request : JobRequest
        The request.
    found : Given
        The input: the listed files, or rows in memory.
    identity : str
        The SHA-256 of the listing of the files, or of the data that identifies rows in memory.
    beginning : Beginning
        How the job begins.
    began : float
        The time when preparation began, by `time.perf_counter`.
    started : float
        The same moment, in seconds since the epoch.

    """

    request: JobRequest
    found: Given
    identity: str
    beginning: Beginning
    began: float
    started: float


@dataclass(frozen=True)
class Planned:
    """A prepared job whose ranges are known.

    Attributes
    ----------
    prepared : Prepared
        The request, with its input.
    input : JobInput
        The input, cut into ranges.
    columns : Columns
        The columns that are computed and written.
    chunk_rows : int
        The largest number of rows in a chunk.
    seconds : float
        The time of preparation and planning, without the loading of engines.

    """

    prepared: Prepared
    input: JobInput
    columns: Columns
    chunk_rows: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """A job whose chunks have all run.

    Attributes
    ----------
    report : JobReport
        Its report.
    fingerprint : Fingerprint
        The settings that decide the content of the output folder.
    counted : dict of str to bytes
        The digest of each chunk's entry in the report's totals, by the chunk's name.

    """

    report: JobReport
    fingerprint: Fingerprint
    counted: dict[str, bytes]
