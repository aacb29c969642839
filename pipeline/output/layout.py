"""Names the folders and files of an output folder.

Every name but those of the parts begins with an underscore, and only parts end in `.parquet`. So the folder itself is a
dataset for pandas, Polars, DuckDB and Dask. The names of a chunk's files end with the id of the job, so two jobs never
share a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from ..storage.names import ENTRIES as ENTRIES
from ..storage.names import MANIFEST as MANIFEST
from ..storage.names import OLD_MANIFEST as OLD_MANIFEST
from ..storage.names import PARTS as PARTS

PART_FORMAT_NAMES = ("parquet", "jsonl", "csv")
"""The formats of parts; each is also the ending of its files."""

QUARANTINE, RUNS = "_quarantine", "_runs"
FOLDERS = (PARTS, QUARANTINE, ENTRIES, RUNS)
HIDDEN_PARTS, SIDECARS = "_parts", "_sidecars"
"""The folders of a job that writes sidecars: the parts that the sidecars are made from, and the records of sidecars."""

WITH_SIDECARS = (HIDDEN_PARTS, SIDECARS, QUARANTINE, ENTRIES, RUNS)
OF_CHUNKS = (PARTS, HIDDEN_PARTS, QUARANTINE)
EVERY_FOLDER = (*FOLDERS, HIDDEN_PARTS, SIDECARS)
REQUEST = f"{RUNS}/request.json"
PLAN, CLAIM, SUCCESS = "_plan.json", "_claim.json", "_SUCCESS"

VERSION: Final = 4
"""The version of this layout and of every file in it but the parts."""

WITHDRAWING: Final = 5
"""The version of the plan of an update that withdraws ranges, so that a build that cannot do this refuses the plan."""

COMPACTING: Final = 6
"""The version of the plan of a compaction. Earlier builds would continue it by labelling its files again."""

_CLOSING, _UPDATE = "group-", "_plan-"  # the file names of ranges begin with "group-"

PART_ENCODING = 4
"""The version of the encoding of parts. Another encoding gives other bytes for the same rows."""

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The value in the name of a folder whose rows have a null. Readers of Hive folders read it as a null."""

Values = tuple[str | None, ...]
"""The values, as text, of the columns that divide rows into folders."""

CHUNK_PATTERN = r"^part-\d{6,}-\d{7,}$"
JOB_PATTERN = r"^[0-9a-f]{16}$"
FILE_PATTERN = r"^(_?parts|parts(/[^/=]+=[^/]*)+|_quarantine)/part-\d{6,}-\d{7,}-[0-9a-f]{8}\.(parquet|jsonl|csv)$"


@dataclass(frozen=True)
class PartNames:
    """The names of a job's parts.

    Attributes
    ----------
    format : str
        The format of the parts, one of PART_FORMAT_NAMES.
    by : tuple of str
        The columns whose values have folders, with names as in Hive. The folders of a later column are inside those of
        an earlier one. If it is empty, all rows of a chunk are in one part.
    folder : str
        The folder that the parts are in.

    """

    format: str = "parquet"
    by: tuple[str, ...] = ()
    folder: str = PARTS

    @classmethod
    def like(cls, name: str) -> PartNames:
        """Return the names of the job that has a part of this name."""
        hidden = name.startswith(f"{HIDDEN_PARTS}/")
        return cls(name.rpartition(".")[2], (*folder_values(name),), HIDDEN_PARTS if hidden else PARTS)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders in the output folder of a job with such parts."""
        return FOLDERS if self.folder == PARTS else WITH_SIDECARS

    def files(self, chunk: str, job: str, values: Iterable[Values]) -> list[tuple[str, Values]]:
        """Return the name of each part of a chunk, and the values of its rows in the columns `by`.

        values: the values that the rows of the chunk have in these columns. Without such columns there is one part.
        """
        name = f"{_stem(chunk, job)}.{self.format}"
        if not self.by:
            return [(f"{self.folder}/{name}", ())]
        in_order = sorted(values, key=lambda row: [(value is None, value or "") for value in row])
        folders = ("/".join(map(value_folder, self.by, row)) for row in in_order)
        return [(f"{PARTS}/{folder}/{name}", row) for folder, row in zip(folders, in_order, strict=True)]


def value_folder(column: str, value: str | None) -> str:
    """Return the name of the folder of a value, percent-encoded as Arrow, Hive and Spark write it.

    Every reader decodes this form. value: None for a null.
    """
    return f"{quote(column, safe='')}={NULL_FOLDER if value is None else quote(value, safe='')}"


def folder_values(name: str) -> dict[str, str | None]:
    """Return the columns and values that the folders of a part name. A value is None for a null.

    name: the name of the part.
    """
    pairs = (folder.partition("=")[::2] for folder in name.split("/")[1:-1])
    return {unquote(column): None if value == NULL_FOLDER else unquote(value) for column, value in pairs}


def quarantine_file(chunk: str, job: str) -> str:
    return f"{QUARANTINE}/{_stem(chunk, job)}.jsonl"


def entry_file(chunk: str, job: str) -> str:
    return f"{ENTRIES}/{_stem(chunk, job)}.json"


def closing_file(number: int, job: str) -> str:
    return f"{ENTRIES}/{_CLOSING}{number:06d}-{job[:8]}.json"


def sidecars_file(number: int, job: str) -> str:
    return f"{SIDECARS}/{_CLOSING}{number:06d}-{job[:8]}.json"


def update_plan(number: int, job: str) -> str:
    """Return the name of the plan of an update. number: the number of the update, from 1."""
    return f"{_UPDATE}{number}-{job[:8]}.json"


def is_update_plan(name: str) -> bool:
    return name.startswith(_UPDATE)


def range_of(name: str) -> int:
    """Return the number of the range that a file belongs to, by the file's name; -1 if it belongs to no range."""
    match = re.match(r"(?:part|group)-(\d{6,})-", name.rpartition("/")[2])
    return int(match[1]) if match else -1


def range_in_job(name: str, job: str) -> int:
    """Return the number of the range that a file of this job belongs to, by the file's name; -1 for any other file."""
    return range_of(name) if of_job(name, job) else -1


def is_closing(name: str) -> bool:
    """Return whether an entry is a closing entry, by its name."""
    return name.startswith(f"{ENTRIES}/{_CLOSING}")


def of_job(name: str, job: str) -> bool:
    """Return whether a chunk's file belongs to this job, by its name."""
    return name.rpartition("/")[2].partition(".")[0].endswith(f"-{job[:8]}")


def _stem(chunk: str, job: str) -> str:
    return f"{chunk}-{job[:8]}"
