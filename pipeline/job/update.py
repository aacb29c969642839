"""Updates of a folder that grows: which files are new since its job, and the plan over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import OutputError, SourceError, UsageError
from ..output.account import groups_of
from ..output.finish import seal
from ..output.folder import OutputFolder
from ..output.layout import SUCCESS
from ..output.record import Manifest, SavedPlan, Totals
from ..output.saved_plan import changes, plan_again, resolved
from ..report.facts import Growth
from ..source.chunk import Selection
from ..source.find.files import Files
from ..source.formats.base import InputFile, Schema
from ..source.inputs import Given
from ..source.plan.group import group_sizes
from ..source.plan.plan import Plan, bound


@dataclass(frozen=True)
class Update:
    """An update that a run is to do. number: from 1. saved: its plan, where an earlier run has begun it. whole: the
    plan of all that was labelled before, and earlier its totals. files: of the update. first_group: the number of its
    first group.
    """

    number: int
    saved: SavedPlan | None
    whole: SavedPlan
    earlier: Totals
    files: Sequence[InputFile]
    growth: Growth
    first_group: int

    @property
    def is_empty(self) -> bool:
        return self.saved is None and not self.files

    def plan(self, found: Files, asked: Selection) -> Plan:
        """Its plan: by the columns of the job that it adds to, and with groups numbered on from there.

        found: the input as it was listed. asked: what the options select. Raises OutputError.
        """
        if self.saved is not None:
            return plan_again(self.saved, self.files, asked)
        if self.whole.first is None:
            raise OutputError(
                "no file of the job could be read, so its columns are not known. Start again with --overwrite"
            )
        path, names = self.whole.first
        selection = resolved(self.whole, asked)
        files = bound(self.files, selection)
        return Plan(
            files=tuple(files),
            sizes=tuple(group_sizes(files, self.whole.chunk_rows)),
            selection=selection,
            chunk_rows=self.whole.chunk_rows,
            first=(path, Schema(names)),
            problems=found.problems,
            unread=tuple((path, None) for path, _ in found.problems),
            first_group=self.first_group,
        )


def begin(folder: OutputFolder, manifest: Manifest, now: Given, strict: bool) -> Update:
    """The update of the job in a folder. An update that is under way is continued, as long as its files are still
    those that it began with; otherwise it is discarded. strict: whether a file that has changed stops it.

    Raises UsageError for a job that cannot be updated, SourceError for a file that has changed.
    """
    if not isinstance(now, Files):
        raise UsageError(f"cannot update {folder.path}: only files can be new, and the input is something else")
    if manifest.totals is None:
        raise UsageError(f"cannot update {folder.path}: its job is not finished. Continue with --resume")
    if manifest.fingerprint.settings.limit is not None:
        raise UsageError(f"cannot update {folder.path}: its job had a --limit, which ends before the new files")
    found, least = unfinished(folder, manifest, now), 0
    if found is not None and found.saved is not None:
        differ = changes(found.saved, now)
        if differ.changed or differ.gone:
            folder.discard_update(found.number, found.saved, manifest.fingerprint.id)
            least = groups_of(found.saved).stop  # a worker that is late may still write chunks of those groups
            found = None
    if found is None and not folder.store.has(SUCCESS):
        seal(folder, manifest)
    found = found or _update(folder, manifest, manifest.totals, now, None, least)
    if strict and found.growth.changed:
        raise SourceError(f"{found.growth.lines[0]} (--strict stops here)")
    return found


def unfinished(folder: OutputFolder, manifest: Manifest, now: Given) -> Update | None:
    """The update that is under way; None where none is. Raises OutputError for a damaged plan."""
    number = folder.under_way(manifest)
    if number is None or manifest.totals is None or not isinstance(now, Files):
        return None
    return _update(folder, manifest, manifest.totals, now, folder.plan_of(manifest, number))


def _update(
    folder: OutputFolder, manifest: Manifest, earlier: Totals, now: Files, saved: SavedPlan | None, least: int = 0
) -> Update:
    """least: the number that its first group has at least."""
    whole = folder.checked_plan(manifest)
    if whole is None:
        raise UsageError(f"cannot update {folder.path}: the rows of its job were in memory, and not in files")
    differ = changes(whole, now)
    by_path = {file.path: file for file in now.found}
    own = differ.new if saved is None else tuple(file.path for file in saved.files)
    files = [by_path[path] for path in own if path in by_path]
    later = len(set(differ.new) - set(own))
    growth = Growth(len(own), len(whole.files), differ.changed, differ.gone, later)
    return Update(len(manifest.updates) + 1, saved, whole, earlier, files, growth, max(least, len(whole.groups)))


def only_known(whole: SavedPlan, now: Files) -> Files:
    """The files of a plan, in its order, without those that are new."""
    by_path = {file.path: file for file in now.found}
    return replace(now, found=tuple(by_path[file.path] for file in whole.files))
