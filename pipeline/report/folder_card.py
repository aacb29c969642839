"""Makes a README for the output folder of a job, with what the users of the labels should know."""

from __future__ import annotations

import json
from collections.abc import Iterator

from msgspec import UNSET

from ..errors import OutputError, UsageError, counted, printable
from ..output.folder import OutputFolder
from ..output.layout import PART_FORMAT_NAMES, PARTS, REQUEST
from ..output.record import Manifest, Totals
from ..output.verify import finished
from .tally import balance

_MOST_LABELS = 50


def folder_card(folder: OutputFolder, name: str) -> str:
    """Return the README of an output folder in Markdown, with the metadata block that Hugging Face reads.

    Parameters
    ----------
    folder : OutputFolder
        The output folder.
    name : str
        The title of the README.

    Raises
    ------
    OutputError
        If the job is not finished.
    UsageError
        If the folder has no parts.

    """
    manifest, totals = finished(folder)
    settings = manifest.fingerprint.settings
    refuse_without_parts(folder, manifest)
    kind = settings.names.format
    head = {"configs": [{"config_name": "default", "data_files": f"parts/**/*.{kind}"}]}
    schema = folder.schema(manifest)
    sections = {
        "Labels": [f"- {printable(label)}: {rows:,}" for label, rows in _labels(totals)],
        "Columns": [f"- `{printable(field.name)}`: {field.type}" for field in schema],
        "What is missing": [*_missing(totals)] or ["Nothing: every row of the input has been labelled."],
        "How it was made": [f"- {what}: {printable(value)}" for what, value in _made(folder, manifest)],
    }
    lines = ["---", json.dumps(head), "---", "", f"# {printable(name)}", ""]
    by = f"by Broadsheet {manifest.fingerprint.writer.broadsheet}"
    lines += [f"{totals.rows_read:,} rows {balance(totals)}, {by}.", ""]
    for title, body in sections.items():
        lines += [f"## {title}", "", *body, ""]
    return "\n".join(lines)


def refuse_without_parts(folder: OutputFolder, manifest: Manifest) -> None:
    """Raise UsageError if a folder has no parts."""
    names = manifest.fingerprint.settings.names
    if names.format not in PART_FORMAT_NAMES or names.folder != PARTS:
        raise UsageError(f"{folder.path} has a file beside each input file, and no parts: it gets no card")


def _labels(totals: Totals) -> list[tuple[str, int]]:
    """Return the most frequent labels of the first model, with the number of their rows."""
    return sorted(totals.labels.items(), key=lambda item: -item[1])[:_MOST_LABELS]


def _missing(totals: Totals) -> Iterator[str]:
    if totals.rows_quarantined:
        yield f"- {counted(totals.rows_quarantined, 'row')} could not be labelled: `_quarantine/` says why."
    if totals.rows_filtered:
        yield f"- Of the labelled rows, {totals.rows_filtered:,} were not chosen."
    yield from (f"- {printable(message)}" for _, message in totals.problems)
    yield from (f"- {printable(path)} was skipped: {printable(reason)}" for path, reason in totals.left_out or ())


def _made(folder: OutputFolder, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield how the labels were made: the model, the device, the columns and the choice of rows.

    Paths of the input are left out, because they may be private.
    """
    fingerprint, settings = manifest.fingerprint, manifest.fingerprint.settings
    try:
        request = json.loads(folder.store.read(REQUEST)) if folder.store.has(REQUEST) else {}
    except (OutputError, ValueError):
        request = {}
    names = [model.rpartition("/")[2] for model in request.get("models", ())]
    yield "model", ", ".join([*names, f"digest {fingerprint.model}"])
    yield "computed on", str(fingerprint.backend)
    yield "text columns", ", ".join(settings.text_columns) or "text"
    if settings.join is not UNSET:
        yield "joined by the template", settings.join
    if settings.where is not None:
        yield "rows for which", settings.where
    yield "updates since", f"{len(manifest.updates):,}"
