"""A Croissant card of an output folder, compared with the specification and with the folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import CommandHere

REQUIRED = {
    "sc:Dataset": {"@context", "@type", "conformsTo", "description", "name", "datePublished"},
    "cr:FileSet": {"@type", "@id", "name", "encodingFormat", "includes"},
    "cr:RecordSet": {"@type", "@id", "name", "field"},
    "cr:Field": {"@type", "@id", "name", "dataType", "source"},
}
"""The properties of https://docs.mlcommons.org/croissant/docs/croissant-spec.html, except those that only a publisher
knows: license, url, creator.
"""

DATA_TYPES = {"sc:Boolean", "sc:Date", "sc:DateTime", "sc:Float", "sc:Integer", "sc:Text", "sc:URL"}
ENCODINGS = {"parquet": "application/x-parquet", "jsonl": "application/jsonlines", "csv": "text/csv"}

KINDS = [
    {"format": "parquet", "more": ("--scores", "--top-k", "2")},
    {"format": "jsonl", "more": ("--scores",)},
    {"format": "csv", "more": ("--top-k", "2")},
    {"format": "parquet", "more": ("--partition-by", "n", "--partition-by", "label")},
]


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each object of a card that has a type."""
    if isinstance(value, dict):
        if {"@type", "@id"} <= value.keys() or "conformsTo" in value:
            yield value
        for name, own in value.items():
            yield from nodes(own) if name != "@context" else ()
    elif isinstance(value, list):
        for own in value:
            yield from nodes(own)


def references(value: Any) -> Iterator[str]:
    """Yield the ids by which a card refers to objects elsewhere in it."""
    if isinstance(value, dict):
        if [*value] == ["@id"]:
            yield value["@id"]
        for name, own in value.items():
            yield from references(own) if name != "@context" else ()
    elif isinstance(value, list):
        for own in value:
            yield from references(own)


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind['format']} {' '.join(kind['more'])}")
def made(
    request: pytest.FixtureRequest, small_model_file: Path, tmp_path: Path, broadsheet_here: CommandHere
) -> tuple[Path, dict[str, Any]]:
    """An output folder and its card."""
    source = tmp_path / "in"
    source.mkdir()
    days = pa.array([None if n % 5 == 4 else n for n in range(20)], pa.date32())
    table = {"text": [f"text {n}" for n in range(20)], "n": [n % 3 for n in range(20)], "a day/é": days}
    pq.write_table(pa.table(table), source / "a.parquet")
    job = ("classify", source, "-o", tmp_path / "out", "--model", small_model_file, "--root", source, "--keep", "n")
    how = ("--format", request.param["format"], "--keep", "a day/é", "--chunk-size", 8, *request.param["more"])
    code, said = broadsheet_here(*job, *how)
    assert code == 0, said
    code, said = broadsheet_here("inspect", tmp_path / "out", "--card", tmp_path / "croissant.json")
    assert (code, "before you publish it: license, url, creator" in " ".join(said.split())) == (0, True)
    text = (tmp_path / "croissant.json").read_text()
    assert str(tmp_path) not in text
    return tmp_path / "out", json.loads(text)


def test_the_card_is_what_the_specification_asks_for(made: tuple[Path, dict[str, Any]]) -> None:
    _, card = made
    context = card["@context"]
    assert (context["@vocab"], context["sc"]) == ("https://schema.org/", "https://schema.org/")
    assert (context["cr"], context["dct"]) == ("http://mlcommons.org/croissant/", "http://purl.org/dc/terms/")
    assert card["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", card["datePublished"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", card["version"])
    every = [*nodes(card)]
    for node in every:
        assert not REQUIRED[node["@type"]] - node.keys(), node
        assert all(name in context or name.startswith("@") or name in SCHEMA_ORG for name in node)
    ids = [node["@id"] for node in every if "@id" in node]
    assert len(ids) == len({*ids})
    assert not any(" " in one for one in ids)
    assert {*references(card)} <= {*ids}
    assert {node["dataType"] for node in every if node["@type"] == "cr:Field"} <= DATA_TYPES


SCHEMA_ORG = {"name", "description", "version", "datePublished", "distribution", "encodingFormat"}
"""The names that stand for those of schema.org, whose vocabulary needs no prefix."""


@pytest.mark.slow
def test_the_card_describes_the_parts(made: tuple[Path, dict[str, Any]]) -> None:
    """Its pattern matches all parts and nothing else, and each column is where the card says."""
    out, card = made
    (files,), (rows,) = card["distribution"], card["recordSet"]
    parts = sorted(path for path in (out / "parts").rglob("part-*"))
    kind = parts[0].suffix[1:]
    assert files["encodingFormat"] == ENCODINGS[kind]
    assert sorted(out.glob(files["includes"])) == parts
    assert [key["@id"] for key in rows["key"]] == ["rows/file", "rows/row"]
    manifest = json.loads((out / "_manifest.json").read_text())
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(manifest["schema"])))
    assert [field["name"] for field in rows["field"]] == schema.names
    first = parts[0].relative_to(out).as_posix()
    for field, column in zip(rows["field"], schema, strict=True):
        source = field["source"]
        if "column" in source["extract"]:
            assert source["extract"]["column"] == column.name
            if kind == "parquet":
                assert column.name in pq.read_schema(parts[0]).names
        else:
            assert source["extract"] == {"fileProperty": "fullpath"}
            assert re.match(source["transform"]["regex"], first)[1] == first.split(f"{column.name}=")[1].split("/")[0]
        assert field.get("repeated", False) == pa.types.is_list(column.type) or kind == "csv"
    types = {field["name"]: field["dataType"] for field in rows["field"]}
    in_folders = files["includes"].count("/") > 1  # values in names of folders are text
    assert (types["row"], types["score"]) == ("sc:Integer", "sc:Float")
    assert types["n"] == ("sc:Text" if in_folders else "sc:Integer")
    assert (types["a day/é"], types["truncated"], types["label"]) == ("sc:Date", "sc:Boolean", "sc:Text")


@pytest.mark.skipif(find_spec("mlcroissant") is None, reason="mlcroissant is not installed")
def test_the_card_is_read_by_mlcroissant(made: tuple[Path, dict[str, Any]]) -> None:
    """If mlcroissant is installed, a card with a license has no errors and no warnings, and mlcroissant finds
    the rows.
    """
    import mlcroissant

    out, card = made
    known = {"license": "https://spdx.org/licenses/MIT", "url": "https://host/data", "citeAs": "A et al."}
    known["creator"] = {"@type": "sc:Person", "name": "A"}
    beside = shutil.copytree(out / "parts", out.parent / "dataset" / "parts").parent
    (beside / "croissant.json").write_text(json.dumps(card | known))
    dataset = mlcroissant.Dataset(beside / "croissant.json")
    assert (dataset.metadata.ctx.issues.errors, dataset.metadata.ctx.issues.warnings) == (set(), set())
    found = [*dataset.records(record_set="rows")]
    assert sorted(row["rows/row"] for row in found) == [*range(20)]
    assert {row["rows/label"].decode() for row in found} <= {f"class {n}" for n in range(4)} | {
        f"class%20{n}" for n in range(4)
    }
