"""Makes a Croissant card for the output folder of a job: JSON-LD that dataset search engines and loaders read.

The format is Croissant 1.0 of MLCommons: https://docs.mlcommons.org/croissant/docs/croissant-spec.html.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from ..errors import printable
from ..output.folder import OutputFolder
from ..output.layout import NULL_FOLDER
from ..output.record import Manifest
from ..output.verify import finished
from .folder_card import refuse_without_parts
from .tally import balance

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that the specification gives."""

_ENCODINGS = {"parquet": "application/x-parquet", "jsonl": "application/jsonlines", "csv": "text/csv"}
_FILES, _ROWS = "parts", "rows"

ASKED_FOR = ("license", "url", "creator")
"""Properties that the specification requires and that only the publisher knows."""


def croissant_card(folder: OutputFolder, name: str) -> dict[str, Any]:
    """Return the card of an output folder as JSON values, for a file beside the folder `parts`.

    The card has no path of the input.

    Parameters
    ----------
    folder : OutputFolder
        The output folder.
    name : str
        The title of the dataset.

    Raises
    ------
    OutputError
        If the job is not finished.
    UsageError
        If the folder has no parts.

    """
    # Describe the files, then the rows in them.
    manifest, totals = finished(folder)
    refuse_without_parts(folder, manifest)
    names, writer = manifest.fingerprint.settings.names, manifest.fingerprint.writer
    by = f"by Broadsheet {writer.broadsheet}, model digest {manifest.fingerprint.model}"
    files = {
        "@type": "cr:FileSet",
        "@id": _FILES,
        "name": _FILES,
        "description": f"{totals.chunks:,} chunks of rows",
        "encodingFormat": _ENCODINGS[names.format],
        "includes": f"{names.folder}/{'*/' * len(names.by)}*.{names.format}",
    }
    fields = [_field(field, manifest) for field in folder.schema(manifest)]
    rows = {
        "@type": "cr:RecordSet",
        "@id": _ROWS,
        "name": _ROWS,
        "description": "A labelled text in each row",
        "key": [{"@id": field["@id"]} for field in fields if field["name"] in ("file", "row")],
        "field": fields,
    }
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": printable(name),
        "description": f"{totals.rows_read:,} rows {balance(totals)}, {by}.",
        "version": f"1.{len(manifest.updates)}.0",
        "datePublished": datetime.now(UTC).date().isoformat(),
        "distribution": [files],
        "recordSet": [rows],
    }


def _field(field: pa.Field, manifest: Manifest) -> dict[str, Any]:
    """Return the description of a column."""
    names = manifest.fingerprint.settings.names
    kind, separator = field.type, (field.metadata or {}).get(b"separator")
    source: dict[str, Any] = {"fileSet": {"@id": _FILES}, "extract": {"column": field.name}}
    description = f"Of type {kind}"
    if field.name in names.by and names.format == "parquet":  # the value is only in the folder's name
        folder = re.escape(quote(field.name, safe=""))
        source |= {"extract": {"fileProperty": "fullpath"}, "transform": {"regex": f".*/{folder}=([^/]*)/"}}
        description += f", here as folders are named: percent-encoded, {NULL_FOLDER} for a null"
        kind = pa.string()
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if names.format == "csv" and is_list:
        is_list = separator is not None  # without a separator it is JSON text
        source |= {"transform": {"separator": separator.decode()}} if separator is not None else {}
    about = {
        "@type": "cr:Field",
        "@id": f"{_ROWS}/{quote(field.name, safe='')}",
        "name": printable(field.name),
        "description": description,
        "dataType": _data_type(kind.value_type if is_list else kind),
        "source": source,
    }
    return about | ({"repeated": True} if is_list else {})


def _data_type(kind: pa.DataType) -> str:
    """Return Croissant's name for a type. A type without a name is read as text."""
    types = pa.types
    plain = kind.value_type if types.is_dictionary(kind) else kind
    for is_of, name in (
        (types.is_boolean, "sc:Boolean"),
        (types.is_integer, "sc:Integer"),
        (types.is_floating, "sc:Float"),
        (types.is_date, "sc:Date"),
        (types.is_timestamp, "sc:DateTime"),
    ):
        if is_of(plain):
            return name
    return "sc:Text"
