"""A plan as JSON, so that a resumed job need not read its input again to find where records begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from pipeline.source.chunk import Selection
from pipeline.source.files import InputFile
from pipeline.source.plan import Fragment, Plan, Stream, Unit


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Everything of a plan but what its files are (size, time, hash): the job's fingerprint has that."""
    number = {file.path: i for i, file in enumerate(plan.files)}
    units: list[Any] = []
    for unit in plan.units:
        if isinstance(unit, Stream):
            units.append({"name": unit.name, "stream": number[unit.file.path], "start": unit.start})
        else:
            fragments = [[number[f.file.path], f.start, f.stop, f.first_row, f.rows, f.group] for f in unit.fragments]
            units.append({"name": unit.name, "fragments": fragments})
    fields = [pa.field(name, kind) for name, kind in zip(plan.selection.ids, plan.selection.id_types, strict=True)]
    selection = {k: v for k, v in asdict(plan.selection).items() if k != "id_types"}
    return {
        "columns": [list(file.columns) for file in plan.files],
        "units": units,
        "problems": [list(problem) for problem in plan.problems],
        "selection": selection,
        "id_types": pa.schema(fields).serialize().to_pybytes().hex(),
        "chunk_rows": plan.chunk_rows,
    }


def plan_from_json(saved: dict[str, Any], found: Sequence[InputFile]) -> Plan:
    """The plan again, over the same files as found now."""
    files = [replace(file, columns=tuple(names)) for file, names in zip(found, saved["columns"], strict=True)]
    units: list[Unit | Stream] = []
    for unit in saved["units"]:
        if "stream" in unit:
            units.append(Stream(unit["name"], files[unit["stream"]], unit["start"]))
        else:
            fragments = tuple(Fragment(files[number], *rest) for number, *rest in unit["fragments"])
            units.append(Unit(unit["name"], fragments))
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in saved["selection"].items()}
    id_types = tuple(f.type for f in pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(saved["id_types"]))))
    problems = tuple((path, message) for path, message in saved["problems"])
    selection = Selection(**fields, id_types=id_types)
    return Plan(tuple(files), tuple(units), problems, selection, saved["chunk_rows"])
