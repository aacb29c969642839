"""The names of folders and files in an output folder.

Everything but the parts begins with an underscore, and nothing else ends in `.parquet`: the folder itself is a dataset
for pandas, Polars, DuckDB and Dask. Names of a chunk's files end with the id of the job, so two jobs never share one.
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

FORMATS = ("parquet", "jsonl", "csv")
"""The formats of parts; each is also the ending of its files."""

QUARANTINE, RUNS = "_quarantine", "_runs"
FOLDERS = (PARTS, QUARANTINE, ENTRIES, RUNS)
HIDDEN_PARTS, SIDECARS = "_parts", "_sidecars"
"""Of a job with a file for each input file: the parts from which these are made, and the record of them."""

WITH_SIDECARS = (HIDDEN_PARTS, SIDECARS, QUARANTINE, ENTRIES, RUNS)
OF_CHUNKS = (PARTS, HIDDEN_PARTS, QUARANTINE)
EVERY_FOLDER = (*FOLDERS, HIDDEN_PARTS, SIDECARS)
REQUEST = f"{RUNS}/request.json"
PLAN, CLAIM, SUCCESS = "_plan.json", "_claim.json", "_SUCCESS"

VERSION: Final = 4
"""The version of this layout and of every file in it but the parts."""

WITHDRAWING: Final = 5
"""The version of the plan of an update that withdraws ranges, which builds that know none must not take for another."""

COMPACTING: Final = 6
"""The version of the plan of a compaction, which earlier builds would continue by labelling its files again."""

_CLOSING, _UPDATE = "group-", "_plan-"

PART_ENCODING = 4
"""The version of the encoding of parts: another encoding gives other bytes for the same rows."""

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""In place of a value, in the name of the folder of rows without one: readers of Hive folders take it for a null."""

Values = tuple[str | None, ...]
"""Of the columns by which rows are in folders, as text."""

CHUNK_PATTERN = r"^part-\d{6,}-\d{7,}$"
JOB_PATTERN = r"^[0-9a-f]{16}$"
FILE_PATTERN = r"^(_?parts|parts(/[^/=]+=[^/]*)+|_quarantine)/part-\d{6,}-\d{7,}-[0-9a-f]{8}\.(parquet|jsonl|csv)$"


@dataclass(frozen=True)
class PartNames:
    """How the parts of a job are called.

    Attributes
    ----------
    format : str
        The format of the parts, one of FORMATS.
    by : tuple of str
        The columns each of whose values has a folder, as Hive names them, that of a later column in that of an earlier
        one; none where all rows of a chunk are in one part.
    folder : str
        The folder that the parts are in.

    """

    format: str = "parquet"
    by: tuple[str, ...] = ()
    folder: str = PARTS

    @classmethod
    def like(cls, name: str) -> PartNames:
        """Of the job that has such a part."""
        hidden = name.startswith(f"{HIDDEN_PARTS}/")
        return cls(name.rpartition(".")[2], (*folder_values(name),), HIDDEN_PARTS if hidden else PARTS)

    @property
    def folders(self) -> tuple[str, ...]:
        """Of such a job."""
        return FOLDERS if self.folder == PARTS else WITH_SIDECARS

    def files(self, chunk: str, job: str, values: Iterable[Values]) -> list[tuple[str, Values]]:
        """The parts of a chunk whose rows have these values in the columns `by`: the name of each, and the values of
        all its rows; without such columns one name.
        """
        name = f"{_stem(chunk, job)}.{self.format}"
        if not self.by:
            return [(f"{self.folder}/{name}", ())]
        in_order = sorted(values, key=lambda row: [(value is None, value or "") for value in row])
        folders = ("/".join(map(value_folder, self.by, row)) for row in in_order)
        return [(f"{PARTS}/{folder}/{name}", row) for folder, row in zip(folders, in_order, strict=True)]


def value_folder(column: str, value: str | None) -> str:
    """Percent-encoded, as Arrow, Hive and Spark write it and every reader decodes it."""
    return f"{quote(column, safe='')}={NULL_FOLDER if value is None else quote(value, safe='')}"


def folder_values(name: str) -> dict[str, str | None]:
    """The columns in folders of whose values a part is, and these values; None of rows without one."""
    pairs = (folder.partition("=")[::2] for folder in name.split("/")[1:-1])
    return {unquote(column): None if value == NULL_FOLDER else unquote(value) for column, value in pairs}


def quarantine_file(chunk: str, job: str) -> str:
    return f"{QUARANTINE}/{_stem(chunk, job)}.jsonl"


def entry_file(chunk: str, job: str) -> str:
    return f"{ENTRIES}/{_stem(chunk, job)}.json"


def closing_file(group: int, job: str) -> str:
    return f"{ENTRIES}/{_CLOSING}{group:06d}-{job[:8]}.json"


def sidecars_file(group: int, job: str) -> str:
    return f"{SIDECARS}/{_CLOSING}{group:06d}-{job[:8]}.json"


def update_plan(number: int, job: str) -> str:
    """The plan of an update of a job. number: from 1."""
    return f"{_UPDATE}{number}-{job[:8]}.json"


def is_update_plan(name: str) -> bool:
    return name.startswith(_UPDATE)


def group_of(name: str) -> int:
    """The group that a file of a chunk or of a group is of, by its name; -1 for any other file."""
    match = re.match(r"(?:part|group)-(\d{6,})-", name.rpartition("/")[2])
    return int(match[1]) if match else -1


def group_in(name: str, job: str) -> int:
    """The same of a file of this job; -1 for any other file."""
    return group_of(name) if of_job(name, job) else -1


def is_closing(name: str) -> bool:
    """Whether an entry closes a group, by its name."""
    return name.startswith(f"{ENTRIES}/{_CLOSING}")


def of_job(name: str, job: str) -> bool:
    """Whether a chunk's file is of this job, by its name."""
    return name.rpartition("/")[2].partition(".")[0].endswith(f"-{job[:8]}")


def _stem(chunk: str, job: str) -> str:
    return f"{chunk}-{job[:8]}"
