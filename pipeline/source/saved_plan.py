"""A plan as JSON, so that a resumed job need not read its input again to find where records begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from pipeline.source.chunk import Selection
from pipeline.source.formats.base import Fragment, InputFile, Stream
from pipeline.source.plan import Plan, Unit


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Everything of a plan but what its files are (size, time, hash): the job's fingerprint has that."""
    number = {id(file): i for i, file in enumerate(plan.files)}
    units: list[Any] = []
    for unit in plan.units:
        if isinstance(unit, Stream):
            units.append({"stream": unit.number, "start": unit.start})
        else:
            fragments = [
                [number[id(f.file)], f.start, f.stop, f.first_row, f.rows, f.group, f.regular] for f in unit.fragments
            ]
            units.append({"name": unit.name, "fragments": fragments})
    selection = {k: v for k, v in asdict(plan.selection).items() if k != "id_types"}
    return {
        "columns": [list(names) for names in plan.columns],
        "units": units,
        "problems": [list(problem) for problem in plan.problems],
        "selection": selection,
        "row_schema": plan.selection.row_schema.serialize().to_pybytes().hex(),
        "chunk_rows": plan.chunk_rows,
    }


def plan_from_json(saved: dict[str, Any], found: Sequence[InputFile]) -> Plan:
    """The plan again, over the same files as found now."""
    columns = tuple(tuple(names) for names in saved["columns"])
    files = [replace(f, format=f.format.for_columns(names)) for f, names in zip(found, columns, strict=True)]
    units: list[Unit | Stream] = []
    for unit in saved["units"]:
        if "stream" in unit:
            units.append(Stream(unit["stream"], files[unit["stream"]], unit["start"]))
        else:
            fragments = tuple(Fragment(files[number], *rest) for number, *rest in unit["fragments"])
            units.append(Unit(unit["name"], fragments))
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in saved["selection"].items()}
    row_schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(saved["row_schema"])))
    id_types = tuple(row_schema.types[-len(fields["ids"]) :]) if fields["ids"] else ()
    problems = tuple((path, message) for path, message in saved["problems"])
    selection = Selection(**fields, id_types=id_types)
    return Plan(tuple(files), columns, tuple(units), problems, selection, saved["chunk_rows"])
