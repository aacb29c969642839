"""The plan in the output folder: saved, and loaded for a resumed job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from pipeline.errors import OutputError
from pipeline.output.record import (
    SavedFragment,
    SavedPlan,
    SavedSelection,
    SavedStream,
    SavedUnit,
    from_json,
    to_json,
)
from pipeline.source.chunk import Selection
from pipeline.source.formats.base import Fragment, InputFile, Stream
from pipeline.source.plan import Plan, Unit


def plan_bytes(plan: Plan) -> bytes:
    """A plan as JSON, without size, time and hash of its files, which are part of the job's fingerprint."""
    number = {id(file): i for i, file in enumerate(plan.files)}

    def saved(unit: Unit | Stream) -> SavedUnit | SavedStream:
        if isinstance(unit, Stream):
            return SavedStream(unit.number, unit.start)
        fragments = (
            SavedFragment(number[id(f.file)], f.start, f.stop, f.first_row, f.rows, f.group, f.regular)
            for f in unit.fragments
        )
        return SavedUnit(unit.name, tuple(fragments))

    chosen = plan.selection
    id_types = pa.schema(list(zip(chosen.ids, chosen.id_types, strict=False)))
    selection = SavedSelection(
        text=chosen.text,
        ids=chosen.ids,
        id_types=id_types.serialize().to_pybytes().hex(),
        truth=chosen.truth,
        header=chosen.header,
        classes=chosen.classes,
        answers=chosen.answers,
    )
    units = tuple(saved(unit) for unit in plan.units)
    return to_json(
        SavedPlan(
            columns=plan.columns,
            units=units,
            problems=plan.problems,
            selection=selection,
            chunk_rows=plan.chunk_rows,
        )
    )


def plan_from(data: bytes, found: Sequence[InputFile], name: object) -> Plan:
    """Load a plan over the files as found now. Raises OutputError, with `name`, where it is damaged."""
    saved = from_json(data, SavedPlan, name)
    try:
        pairs = zip(found, saved.columns, strict=True)
        files = [replace(file, format=file.format.for_columns(names)) for file, names in pairs]
        units = tuple(_unit(unit, files) for unit in saved.units)
        id_types = tuple(pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(saved.selection.id_types))).types)
    except (IndexError, ValueError, pa.ArrowException) as error:
        raise OutputError(f"{name} is damaged: {error}") from error
    chosen = saved.selection
    selection = Selection(
        chosen.text, chosen.ids, chosen.truth, chosen.header, chosen.classes, id_types, chosen.answers
    )
    return Plan(tuple(files), saved.columns, units, saved.problems, selection, saved.chunk_rows)


def _unit(unit: SavedUnit | SavedStream, files: Sequence[InputFile]) -> Unit | Stream:
    if isinstance(unit, SavedStream):
        return Stream(unit.file, files[unit.file], unit.start)
    fragments = (
        Fragment(files[f.file], f.start, f.stop, f.first_row, f.rows, f.group, f.regular) for f in unit.fragments
    )
    return Unit(unit.name, tuple(fragments))
