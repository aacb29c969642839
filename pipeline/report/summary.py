"""Describes a job in a few lines, for the terminal, `print(report)` and a notebook.

Other functions give a line for the input that was not read, and hints.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ..errors import counted, first_of, in_python, printable
from ..output.account import most_allowed
from ..output.compact import Compacted
from ..output.record import Totals
from ..source.memory.tables import MEMORY
from ..source.plan.files import takes_encoding
from ..source.rows.compression import not_decoded
from ..source.rows.label_map import unmatched, unmatched_line
from ..source.rows.labels import NO_TRUTH, LabelRules, class_numbers_line
from ..telemetry.read_by import BY_GPU, BY_HOST
from .facts import UPDATE_CHANGED, JobFacts, RunFacts, models_of
from .overlap import overlap_line
from .results import Results
from .shares import accuracy_text
from .tally import Tally, balance

_WIDTH, _INDENT = 80, 10
_MOST_CLASSES = 10

LOOKED_AT = 10_000
"""The limit of quarantined rows that are examined: all rows of a small job, a sample of a large one."""

_MANY = 0.1
"""If at least this share of the rows is not text, a wrong encoding is more likely than wrong rows."""


def facts(job: JobFacts, tally: Tally, run: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact, without the output folder."""
    # Count the rows, files and chunks.
    yield "rows", f"{tally.rows_read:,} {balance(tally)}"
    if run.chunks_before:
        chunks = tally.chunks - (tally.earlier.chunks if tally.earlier else 0)
        yield "resumed", f"{run.chunks_before:,} of {counted(chunks, 'chunk')} done before"
    if job.growth is not None:
        yield "update", str(job.growth)
    if run.compacted is not None:
        yield "parts", compacted_line(run.compacted)
    # Say how long it took and what computed the labels.
    pace = f"; {run.articles_per_second:,.0f} articles a second once started" if run.rows else ""
    yield "time", f"{run.seconds:,.1f} s{pace}"
    if read := read_line(run.read_by):
        yield "read", read
    yield "model", job.model + (f", for {job.meant_for}" if job.meant_for else "")
    yield "on", job.backend.partition(" (")[0]  # the versions are in the records and on the page
    # Describe the labels and the texts.
    if job.label_numbers_from is not None:
        yield "truth", class_numbers_line(job.label_numbers_from, job.classes)
    if job.no_gpu:
        yield "no GPU", job.no_gpu
    if tally.unlabelled and tally.rows_filtered:
        yield "no label", f"{tally.unlabelled:,} of the rows written"
    if tally.rows_written:
        text = f"{tally.chars / tally.rows_written:,.0f} characters on average"
        text += f", {tally.unknown_chars / tally.chars:.2%} outside the alphabet" if tally.unknown_chars else ""
        yield "text", text + (f", {counted(tally.truncated, 'row')} too long" if tally.truncated else "")
        if " int8," in job.backend:
            a_row = tally.saturated / tally.rows_written
            yield "int8", f"{tally.saturated:,} saturated activations, {a_row:,.2f} a row"
    if tally.asked:
        labelled = counted(tally.rows_written + tally.rows_filtered, "row")
        yield job.second, f"asked {counted(tally.asked, 'time')} for {labelled} ({tally.asked_share:.1%})"


def compacted_line(parts: Compacted) -> str:
    """Return a line about how small parts were joined."""
    if not parts.joined:
        return f"{parts.parts_after:,}, none to join"
    return f"{parts.parts_after:,}, after {parts.joined:,} of {parts.parts_before:,} were joined"


def read_line(records: Counter[str]) -> str | None:
    """Return a line that says how many records a GPU has read, and how many the host has read and why.

    Return None if no GPU has read any. records: the number of records by the keys of `telemetry.read_by`.
    """
    if not records[BY_GPU]:
        return None
    host = [f"{records[reason]:,} {why}" for reason, why in BY_HOST.items() if records[reason]]
    line = f"{records[BY_GPU] / records.total():.1%} of {counted(records.total(), 'record')} by the GPU"
    return f"{line}; by the host {'; '.join(host)}" if host else line


def unknown_labels_line(counts: Mapping[str, int], classes: Sequence[str]) -> str | None:
    """Return a line about labels that name no class of the model; None if there are none.

    counts: the number of rows by label.
    """
    if not counts:
        return None
    shown = [f"{label!r} in {counted(rows, 'row')}" for label, rows in Counter(counts).most_common()]
    line = f"not judged, since these labels name no class of the model: {first_of(shown)}"
    positions = LabelRules(fold=True).indices(counts, classes)
    alike = next((label for label, position in positions.items() if position != NO_TRUTH), None)
    if alike is not None:
        return f"{line}. {alike!r} looks like the class {classes[positions[alike]]!r}: --fold-labels takes both as one"
    numbers = {*map(str, range(len(classes) + 1))}
    return f"{line}. For class numbers, give --label-numbers-from 0 or 1" if counts.keys() <= numbers else line


def doubt(job: JobFacts, tally: Tally) -> str | None:
    """Return one line about the rows that the model could hardly judge; None if there are none."""
    return doubt_line(tally.doubtful, job.model, job.meant_for)


def doubt_line(doubtful: Counter[str], model: str, meant_for: str | None) -> str | None:
    """Return one line about the rows that the model could hardly judge; None if there are none.

    doubtful: the number of rows by reason. meant_for: the texts that the model is for.
    """
    rows = sum(doubtful.values())
    if not rows:
        return None
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in doubtful.most_common())
    labels = "their labels" if rows > 1 else "its label"
    line = f"{counted(rows, 'row')} gave the model too little to go by: {reasons}; do not rely on {labels}."
    return line + (f" {model} is for {meant_for}." if meant_for else "")


def unfinished(job: JobFacts, run: RunFacts) -> str | None:
    """Return a line about what is left to do; None for a finished job."""
    if run.set_aside:
        if not job.growth and any("changed since the job was planned" in reason for _, reason in run.set_aside):
            remedy = "start again with --overwrite"
            if job.repair_flags == UPDATE_CHANGED:
                remedy = f"{UPDATE_CHANGED} labels what is left and what has changed; other labels stay"
            return f"The job cannot be finished as it began, since its input has changed: {remedy}."
        return "The job is not finished: --resume tries those chunks again."
    if run.stopped:
        return "The job was stopped early: --resume does the chunks that are left."
    return None


def as_text(job: JobFacts, tally: Tally, run: RunFacts) -> str:
    """Return the facts as lines of up to 80 columns. A path stays on one line."""
    lines = []
    for name, value in _all_facts(job, tally, run):
        begin = f"{name:>{_INDENT - 2}}  "
        lines += textwrap.wrap(printable(value), _WIDTH, initial_indent=begin, subsequent_indent=" " * _INDENT)
    for name, path in (("output", job.output), ("page", run.page)):
        if path:
            lines.append(f"{name:>{_INDENT - 2}}  {printable(path)}")
    for message in _remarks(job, tally, run):
        lines += textwrap.wrap(printable(in_python(message)), _WIDTH)
    return "\n".join(lines)


def as_html(job: JobFacts, tally: Tally, run: RunFacts) -> str:
    """Return the facts as a small HTML table, with a link to the page if there is one."""
    rows = [(escape(printable(name)), escape(printable(value))) for name, value in _all_facts(job, tally, run)]
    if job.output:
        rows.append(("output", f"<code>{escape(printable(job.output))}</code>"))
    if run.page:
        page = Path(run.page)
        # A relative link, since a notebook's own page may not link to files by their absolute path.
        link = page.as_uri() if page.is_absolute() else quote(page.as_posix().encode("utf-8", "surrogateescape"))
        rows.append(("page", f'<a href="{escape(link)}" target="_blank">{escape(printable(run.page))}</a>'))
    head, cell = "text-align:right;vertical-align:top", "text-align:left;overflow-wrap:anywhere"
    body = "".join(f'<tr><th style="{head}">{name}</th><td style="{cell}">{value}</td></tr>\n' for name, value in rows)
    notes = "".join(f"<p>{escape(printable(in_python(message)))}</p>\n" for message in _remarks(job, tally, run))
    return f"<table>\n{body}</table>\n{notes}"


def _all_facts(job: JobFacts, tally: Tally, run: RunFacts) -> list[tuple[str, str]]:
    items, models = [*facts(job, tally, run)], models_of(job, tally)
    several = len(models) > 1
    for model in models:
        shown = model.labels.most_common(_MOST_CLASSES)
        labels = ", ".join(f"{name} {rows:,}" for name, rows in shown)
        more = len(model.labels) - len(shown)
        begin = f"{model.name}: " if several and labels else ""
        items.append(("labels", begin + labels + (f", and {more} more classes" if more else "")))
    for model in models:
        confusion = model.confusion
        if confusion is not None and confusion.rows:
            begin = f"{model.name}: " if several else ""
            items.append(("accuracy", f"{begin}{accuracy_text(confusion)}"))
        if line := overlap_line(model.overlap):
            items.append(("learned", line))
    return [(name, value) for name, value in items if value]


def _remarks(job: JobFacts, tally: Tally, run: RunFacts) -> list[str]:
    growth = job.growth.lines if job.growth else []
    return [message for message in (*growth, doubt(job, tally), unfinished(job, run)) if message]


def not_read(tally: Tally | Totals, set_aside: Sequence[tuple[str, str]]) -> list[str]:
    """Return a line for each kind of input that was skipped or read in part, with a count and the first names."""
    lines = []
    if tally.unread:
        lines.append(unread_line(tally.unread))
    if tally.left_out:
        lines.append(left_out_line(tally.left_out))
    unread = {path for path, _ in tally.unread}
    in_part = [message for path, message in tally.problems if path not in unread]
    if in_part:
        lines.append(f"{_count(in_part, 'read with a problem')}: {first_of(in_part, 1, '; ')}")
    if set_aside:
        chunks = [f"{name}: {reason}" for name, reason in set_aside]
        lines.append(f"{_count(chunks, 'set aside', 'chunk')}: {first_of(chunks, 1, '; ')}")
    return lines


def left_out_line(left_out: Sequence[tuple[str, str]]) -> str:
    """Return a line that says how many files were skipped, and for each reason the first of them."""
    by_reason: dict[str, list[str]] = {}
    for path, reason in left_out:
        by_reason.setdefault(reason, []).append(path)
    each = [f"{first_of(paths)} ({reason})" for reason, paths in by_reason.items()]
    return f"{_count(left_out, 'skipped')}: {'; '.join(each)}"


def repair_line(tally: Tally, repair_flags: str) -> str:
    """Return a line that says how to label the files that could not be read, after they are repaired.

    repair_flags: see `JobFacts`.
    """
    line = f"Once a file is repaired, {repair_flags} labels it"
    line += ", without the rest of the job" if "--update" in repair_flags else ", with the rest of the job"
    if tally.again:
        return f"{line}; where a permission or the network was at fault, --resume reads the file again"
    return line


def unread_line(unread: Sequence[tuple[str, int | None]]) -> str:
    """Return a line that says how many files were not read, and how many rows they have, as far as it is known."""
    known = [rows for _, rows in unread if rows]
    rows = counted(sum(known), "row") + ("" if len(known) == len(unread) else f" in {len(known):,} of them")
    return f"{_count(unread, 'not read')}{f' ({rows})' if known else ''}: {first_of([path for path, _ in unread])}"


def _count(items: Sequence[object], what: str, kind: str = "file") -> str:
    return f"{counted(len(items), kind)} {'was' if len(items) == 1 else 'were'} {what}"


def hints(job: JobFacts, tally: Tally, results: Results) -> list[str]:
    """Return lines that name an option by which more rows or columns may be read."""
    lines = []
    if tally.not_copied:
        keys = [f"{key!r} of {counted(rows, 'row')}" for key, rows in tally.not_copied.most_common()]
        lines.append(f"--keep-all did not copy {first_of(keys)}: the first rows have no such column. --keep copies it")
    if unknown := unknown_labels_line(tally.unknown_labels, tally.classes):
        lines.append(unknown)
    if line := unmatched_line(unmatched(job.label_map, tally.mapped_labels)):
        lines.append(line)
    quarantined, read = tally.rows_quarantined, tally.rows_read
    if quarantined <= _MANY * read:
        return lines
    looked_at = results.first_quarantined(LOOKED_AT)
    of_text = [row for row in looked_at if row["file"] != MEMORY and takes_encoding(row["file"])]
    encodings = Counter(name for row in of_text if (name := not_decoded(row["reason"])))
    hint = encoding_hint(encodings, read, quarantined, len(looked_at))
    return lines if hint is None else [*lines, hint]


def too_many_quarantined(quarantined: int, read: int, limit: str | int) -> str | None:
    """Return a line if more rows are in quarantine than the option `max_quarantined` allows, else None."""
    if quarantined <= most_allowed("max_quarantined", limit, read, "rows"):
        return None
    return f"{quarantined:,} of {read:,} rows are in quarantine, more than --max-quarantined {limit}: exit code 3"


def too_many_unread(unread: int, files: int, limit: str | int) -> str | None:
    """Return a line if more files could not be read completely than the option `max_unread` allows, else None."""
    if unread <= most_allowed("max_unread", limit, files, "files"):
        return None
    verb = "was" if unread == 1 else "were"
    of_all = f"{unread:,} of {counted(files, 'file')}"
    return f"{of_all} {verb} not read, or read with a problem: more than --max-unread {limit}, so the exit code is 3"


class OfReason(NamedTuple):
    """The rows in quarantine for one reason. Reasons that differ only in numbers are the same.

    Attributes
    ----------
    rows : int
        The number of rows.
    first : mapping
        The first of the rows.
    files : Counter of str
        The number of rows in each file.

    """

    rows: int
    first: Mapping[str, Any]
    files: Counter[str]

    @property
    def others(self) -> str:
        """A note about the other rows: how many there are, and in which files most are. Empty for a single row."""
        if self.rows == 1:
            return ""
        rows_by_file = [f"{rows:,} in {path}" for path, rows in self.files.most_common()]
        return f" (and {self.rows - 1:,} more{f': {first_of(rows_by_file)}' if len(rows_by_file) > 1 else ''})"


def without_numbers(reason: str) -> str:
    """Return a reason with N in place of each number, so that rows with one cause have the same reason."""
    return re.sub(r"0x[0-9a-f]+|[\d,]*\d", "N", reason)


def reasons(quarantined: Iterable[Mapping[str, Any]]) -> list[OfReason]:
    """Group the rows in quarantine by reason, the most frequent reason first."""
    by_reason: dict[str, list[Mapping[str, Any]]] = {}
    for row in quarantined:
        by_reason.setdefault(without_numbers(row["reason"]), []).append(row)
    found = [OfReason(len(rows), rows[0], Counter(row["file"] for row in rows)) for rows in by_reason.values()]
    return sorted(found, key=lambda one: -one.rows)


def encoding_hint(encodings: Counter[str], read: int, quarantined: int, looked_at: int) -> str | None:
    """Return a line if many of the rows that were read are not text in the expected encoding, else None.

    Parameters
    ----------
    encodings : Counter of str
        How many of the examined rows are not text, by the encoding that they were expected to have.
    read, quarantined : int
        How many rows were read, and how many are in quarantine.
    looked_at : int
        How many of the rows in quarantine were examined.

    """
    encoding, count = next(iter(encodings.most_common(1)), ("", 0))
    rows = count * quarantined // max(looked_at, 1)
    if rows <= _MANY * read:
        return None
    about = "about " if looked_at < quarantined else ""
    return (
        f"{about}{rows:,} of {read:,} rows are not {encoding}: if the files are in another encoding, name it, "
        "e.g. --encoding latin-1"
    )
