"""Describes the scores of finished jobs, so that a user can choose a threshold.

`look` gives the scores by the values of a column, and `compare` the differences between two jobs. DuckDB counts the
rows, and uses the disk if they do not fit into memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..errors import OutputError, UsageError
from .cut import answered, rows_on_disk
from .folder import OutputFolder
from .model_columns import N_CHARS
from .object_store import place_of
from .read_again import MOST_ROWS, order_of
from .select import ROWS, Labels, OneFile, check_columns, plain, side_by_side

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Facts = dict[str, Any]
"""An object that is printed as JSON."""

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""The quantiles that are given of the scores of each value."""

_THRESHOLDS, _SHARES, _AT = (0.5, 0.7, 0.9, 0.99), (0.1, 0.25, 0.5, 0.75, 0.9, 0.99), 0.9
"""The default thresholds of `look`; the quantiles that take their place if scores are no shares; and the default
threshold of `compare`.
"""

_FEW, _FEW_TO_FOLLOW = 10, 100
"""A value with fewer rows than the first number does not count: its scores are not called constant. With fewer rows
than the second number, scores are not said to follow a column or the length of texts.
"""

_FOLLOWS = 0.5
"""From this share of the variance on, scores follow a column; and from this correlation on, the length of texts."""

_BY_CHANCE = 1e-3
"""A value of which all rows, or none, are kept has a remark if that would happen by chance less often than this."""

_NAMED = 4
"""The largest number of values that a remark names."""

_BY_VALUE = """GROUP BY GROUPING SETS ((), ({value})) ORDER BY grouping({value}) DESC, rows DESC, value LIMIT 1001"""
_SPAN = "SELECT min({score}) AS low, max({score}) AS high, approx_quantile({score}, {shares}) AS shares FROM {table}"
_LOOKED = """SELECT {value} AS value, count(*) AS rows, [{kept}] AS kept, approx_quantile({score}, {shares}) AS
quantiles, stddev_pop({score}) AS std, avg({score}) AS mean, count({score}) AS scored, min({score}) AS lowest,
max({score}) AS highest, mode({label}) AS label, [{long}] AS kept_chars, [{short}] AS dropped_chars,
coalesce(list_max(map_values(histogram({label}))), 0) / count(*) AS label_share,
CASE WHEN count(*) >= 10 THEN corr({score}, ln(1 + {chars})) END AS follows_length FROM labelled {of}"""
_OF_THE_MOST_FREQUENT = """SEMI JOIN (SELECT {value} AS top FROM labelled GROUP BY top ORDER BY count(*) DESC, top LIMIT
1000) ON {value} IS NOT DISTINCT FROM top GROUP BY {value} ORDER BY rows DESC, value"""
_PAIRS = """CREATE TABLE pairs AS SELECT first.*, second.score AS also, second.label AS other_label,
coalesce(first.score >= {at}::FLOAT, false) AS keep, coalesce(second.score >= {at}::FLOAT, false) AS keeps
FROM first JOIN second USING (place)"""
_COMPARED = """SELECT {value} AS value, count(*) AS rows, avg((label IS NOT DISTINCT FROM other_label)::INT) AS
same_label, count(*) FILTER (keep AND keeps) AS both, count(*) FILTER (keep AND NOT keeps) AS only_first,
count(*) FILTER (keeps AND NOT keep) AS only_second, corr(score, also) AS correlation FROM pairs """
_EXAMPLES = """SELECT place, score, label, also, other_label FROM pairs WHERE keep = {first} AND keeps <> {first}
ORDER BY abs(score - also) DESC NULLS LAST, place LIMIT 5"""


def look(name: str, per: Sequence[str], by: str | None = None, at: Sequence[float] = ()) -> list[Facts]:
    """Return the distribution of the scores of finished rows by model and by the values of each given column.

    Raises UsageError if a column is missing or DuckDB is not installed, and OutputError if the job is not finished.

    Parameters
    ----------
    name : str
        The output folder of a finished job, or its URL; or a file of rows.
    per : sequence of str
        The columns whose values divide the rows.
    by : str, optional
        The column of scores. Default: the scores of each model's labels.
    at : sequence of float
        Thresholds. Default: values from 0.5 to 0.99. If scores are not from 0 to 1, the default is the scores that 90
        to 1 % of the rows reach.

    """
    path, schema, read = _rows_of(name)
    models = _scores_in(schema, path, by, per)
    names = [*dict.fromkeys(one for one in [*per, *chain(*models), N_CHARS.name] if one in schema.names)]
    called = {name: f"c{number}" for number, name in enumerate(names)}
    with rows_on_disk("scores are counted") as database:
        pieces = chain([schema.empty_table()], read({*names}))
        _fill(database, "labelled", ({c: _best(rows.column(n)) for n, c in called.items()} for rows in pieces))
        chosen_columns = [(column, label, score) for column in per for label, score in models]
        return [{"column": one[0], "score": one[2], **_look_at(database, called, one, at)} for one in chosen_columns]


def _look_at(
    database: DuckDBPyConnection,
    called: Mapping[str, str],
    chosen_columns: tuple[str, str | None, str],
    at: Sequence[float],
) -> Facts:
    """Return one result of `look`, computed from the table `labelled`.

    called: the names of the columns in the table. chosen_columns: the columns of the value, the label and the score.
    at: the thresholds. Raises UsageError if there are no rows.
    """
    # Choose the thresholds, by the quantiles if the scores are no shares.
    column, label, score = chosen_columns
    score_column, chars = called[score], called.get(N_CHARS.name, "NULL::BIGINT")
    thresholds = sorted({*at}) or [*_THRESHOLDS]
    (span,) = _facts(database, _SPAN.format(score=score_column, shares=[*_SHARES], table="labelled"))
    if not at and not _is_share(span):
        thresholds = sorted({float(f"{share:.2g}") for share in span["shares"]})

    # Count the rows of the table, then those of each of the most frequent values.
    is_above = [f"coalesce({score_column} >= {least!r}::FLOAT, false)" for least in thresholds]
    parts = {"kept": "avg(({one})::INT)", "long": f"avg({chars}) FILTER ({{one}})"}
    parts["short"] = f"avg({chars}) FILTER (NOT {{one}})"
    lists = {name: ", ".join(part.format(one=one) for one in is_above) for name, part in parts.items()}
    names = {
        "shares": [*QUANTILES],
        "score": score_column,
        "label": called.get(label or "", "NULL::VARCHAR"),
        "chars": chars,
    }
    (every,) = _facts(database, _LOOKED.format(**lists, **names, value="NULL", of=""))
    of_each = {"value": called[column], "of": _OF_THE_MOST_FREQUENT.format(value=called[column])}
    values = _facts(database, _LOOKED.format(**lists, **names, **of_each))
    if not every["rows"]:
        raise UsageError("there are no rows to look at")

    # Give the lengths at the threshold that keeps about half of the rows.
    middle = min(range(len(is_above)), key=lambda i: abs(every["kept"][i] - 0.5))
    for one in (every, *values):
        one |= {name: one[name][middle] for name in ("kept_chars", "dropped_chars")}
    about = {"thresholds": thresholds, "at": thresholds[middle], "all": every, "values": values}
    between = _between(values)
    remarks = [*_sorts(column, between), *_remarks(every, values, thresholds, N_CHARS.name in called)]
    return about | {"between": between, "remarks": remarks}


def _between(values: Sequence[Facts]) -> float | None:
    """Return the share of the variance of scores that lies between the values of a column.

    Values with few rows are left out. Return None if too few values or rows remain. The share is the correlation ratio
    (Fisher, "Statistical Methods for Research Workers", 1925).
    """
    some = [one for one in values if one["scored"] >= _FEW]
    rows = sum(one["scored"] for one in some)
    if len(some) < 2 or rows < _FEW_TO_FOLLOW:
        return None
    mean = sum(one["scored"] * one["mean"] for one in some) / rows
    within = sum(one["scored"] * one["std"] ** 2 for one in some)
    between = sum(one["scored"] * (one["mean"] - mean) ** 2 for one in some)
    return between / (within + between) if within + between else None


def _sorts(column: str, between: float | None) -> Iterator[str]:
    """Yield a warning if the scores distinguish the values of a column more than the rows that share a value."""
    if between is not None and between >= _FOLLOWS:
        yield f"Warning: scores follow {column}: {between:.0%} of their variance lies between its values"


def _remarks(every: Facts, values: Sequence[Facts], thresholds: Sequence[float], has_chars: bool) -> Iterator[str]:
    """Yield what the user should know before trusting the scores."""
    names_of: dict[str, list[str]] = defaultdict(list)
    for name, one in (("all rows", every), *((shown(one["value"]), one) for one in values)):
        # If the rows of a value were drawn from all rows, each would be kept with the probability `of_all`.
        shares = [*zip(thresholds, one["kept"], every["kept"], strict=True)]
        for bound, what, places in ((1, "wholly kept", shares[::-1]), (0, "wholly dropped", shares)):
            chances = ((at, abs(1 - bound - of_all) ** one["rows"]) for at, share, of_all in places if share == bound)
            if at := next((at for at, chance in chances if chance < _BY_CHANCE), None):
                names_of[f"{what} at {at:g}"].append(name)
        if one["rows"] >= _FEW and one["lowest"] == one["highest"] is not None:
            names_of["constant scores"].append(name)
        if one["rows"] >= _FEW_TO_FOLLOW and abs(one["follows_length"] or 0) >= _FOLLOWS:
            names_of["scores follow length"].append(f"{name} ({one['follows_length']:+.2f})")
    for what, names in sorted(names_of.items()):
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        yield f"Warning: {what}: {', '.join(names[:_NAMED])}{more}"
    if others := every["rows"] - sum(one["rows"] for one in values):
        yield f"{others:,} rows have less frequent values."
    if not has_chars:
        yield f"The rows have no {N_CHARS.name}: how long their texts are is not known."


def shown(value: Any) -> str:
    """Return a value of a column as text."""
    return "(null)" if value is None else "(empty)" if value == "" else str(value)


def compare(name: str, other: str, per: Sequence[str] = (), by: str | None = None, at: Sequence[float] = ()) -> Facts:
    """Return the differences between two finished jobs over the same input.

    Raises UsageError if the jobs have labelled other inputs, a column is missing or DuckDB is not installed, and
    OutputError if a job is not finished.

    Parameters
    ----------
    name, other : str
        The output folders of the jobs, or their URLs.
    per : sequence of str
        Columns of the first job. Rows are also counted by their values.
    by : str, optional
        The column of scores. Default: the score of the first model's label.
    at : sequence of float
        The threshold. Default: 0.9.

    """
    # Open both jobs and find their columns.
    if len(at) > 1 or OneFile.of(name, None) or OneFile.of(other, None):
        raise UsageError("two output folders are compared, at one threshold")
    jobs = [Labels(OutputFolder(place_of(one))) for one in (name, other)]
    _refuse_other_input(*jobs)
    chosen_columns = [
        _scores_in(job.schema, job.folder.path, by, needed)[0] for job, needed in zip(jobs, (per, ()), strict=True)
    ]
    paths = [*dict.fromkeys(path for job in jobs for _, entry in job.chunks for path, *_ in entry.sources)]
    called = {column: f"c{number}" for number, column in enumerate(per)}

    # Join their rows by the place in the input, and count where they differ.
    with rows_on_disk("rows are joined") as database:
        for table, job, (label, score), copied in zip(
            ("first", "second"), jobs, chosen_columns, (called, {}), strict=True
        ):
            if label is None:
                raise UsageError(f"{job.folder.path} has no labels: compare those that it was chosen from")
            columns = {"score": score, "label": label} | {c: column for column, c in copied.items()}
            pieces = chain([job.schema.empty_table()], _rows_of_job(job, {*ROWS, *columns.values()}))
            given = ({c: _best(rows.column(n)) for c, n in columns.items()} | _place(rows, paths) for rows in pieces)
            _fill(database, table, given)
            if not at and not _is_share(*_facts(database, _SPAN.format(score="score", shares=[0.5], table=table))):
                raise UsageError("the scores are not from 0 to 1: give the one from which on a row is kept")
        (least,) = at or (_AT,)
        answered(database, _PAIRS.format(at=least))
        queries = {column: (_COMPARED + _BY_VALUE).format(value=c) for column, c in {"": "NULL", **called}.items()}
        differ = {column: _facts(database, query) for column, query in queries.items()}
        examples = [_facts(database, _EXAMPLES.format(first=first)) for first in (True, False)]

    # Add the file, the row and the text of each example.
    for row in chain(*examples):
        place = row.pop("place")
        row |= {"file": paths[place // MOST_ROWS], "row": place % MOST_ROWS}
        row["text"] = next(filter(None, (_text_of(row, job) for job in jobs)), "")
    every = differ.pop("")[0]
    alone = [job.totals.rows_written - every["rows"] for job in jobs]
    values = {column: rows[1:] for column, rows in differ.items()}
    return {"at": least, "alone": alone, "all": every, "values": values, "examples": examples}


def _refuse_other_input(first: Labels, second: Labels) -> None:
    """Raise UsageError if two jobs have labelled different inputs."""
    one, other = ({file.path: file.size for file in job.plan.files} if job.plan else {} for job in (first, second))
    differ = [path for path in {**one, **other} if one.get(path, -1) != other.get(path, -1)]
    if differ or not (one or first.manifest.fingerprint.input == second.manifest.fingerprint.input):
        what = f"{differ[0]} is not in both, or not in the same size" if differ else "their rows in memory differ"
        raise UsageError(f"{first.folder.path} and {second.folder.path} have labelled other inputs: {what}")


def _text_of(row: Facts, job: Labels) -> str:
    """Return the text of a row; empty if the job has not kept it."""
    columns = [name for name in job.settings.text_columns if name in job.schema.names]
    for entry in (entry for _, entry in job.chunks if columns):
        if any(path == row["file"] and 0 <= row["row"] - first < rows for path, first, rows in entry.sources):
            rows = job.rows(entry, {*ROWS, *columns})
            here = rows.filter((pc.field("file") == row["file"]) & (pc.field("row") == row["row"]))
            return " ".join(str(text) for one in here.select(columns).to_pylist() for text in one.values())
    return ""


def _rows_of(name: str) -> tuple[object, pa.Schema, Callable[[set[str]], Iterator[pa.Table]]]:
    """Return the place and the schema of a job's rows, and a function that reads the columns of given names.

    Raises OutputError and UsageError.
    """
    file = OneFile.of(name, None)
    if file is None:
        job = Labels(OutputFolder(place_of(name)))
        return job.folder.path, job.schema, partial(_rows_of_job, job)
    if not isinstance(file.place, Path):
        raise UsageError(f"{file.place} is one file in a bucket: copy it to a disk, or give an output folder")
    try:
        rows = ds.dataset(str(file.place), format="json" if file.format == "jsonl" else file.format)
    except (OSError, ValueError) as error:
        raise OutputError(f"{file.place} is no file of labels ({error})") from error
    kinds = {field.name: pa.float32() for field in rows.schema if "score" in field.name and field.type == pa.float64()}
    schema = pa.schema([field.with_type(kinds.get(field.name, field.type)) for field in rows.schema])
    whole = ds.dataset(str(file.place), schema, format=rows.format)
    read = lambda names: (pa.Table.from_batches([one]) for one in whole.to_batches(columns=[*names]))
    return file.place, schema, read


def _rows_of_job(job: Labels, names: set[str]) -> Iterator[pa.Table]:
    return side_by_side((partial(job.rows, entry, names) for _, entry in job.chunks), job.at_once)


def _scores_in(schema: pa.Schema, path: object, by: str | None, per: Iterable[str]) -> list[tuple[str | None, str]]:
    """Return each model's column of labels and its column of scores; with `by`, only the pair of that column of scores.

    The column of labels is None if the rows have none. Raises UsageError.
    """
    ends = [(name, end) for end in ("labels", "label") for name in schema.names if name.endswith(end)]
    labels = {name.removesuffix(end): name for name, end in ends}
    kinds = {f"{prefix}score": pa.float32() for prefix in labels}
    kinds |= {f"{prefix}scores": pa.list_(pa.float32()) for prefix in labels}
    score_columns = [field.name for field in schema if kinds.get(field.name) == field.type] if by is None else []
    check_columns(schema, path, None if score_columns else by or "score", per)
    prefixes = sorted(labels, key=len, reverse=True)
    found = {
        score: [p for p in prefixes if score.startswith(f"{p}score")] for score in score_columns or [by or "score"]
    }
    return [(labels[matching[0]] if matching else None, score) for score, matching in found.items()]


def _place(rows: pa.Table, paths: Sequence[str]) -> dict[str, pa.Array]:
    """Return the column `place`: where each row stands in the input, as a number that sorts by file and row."""
    return {"place": pa.array(order_of(rows, paths), pa.int64())}


def _fill(database: DuckDBPyConnection, table: str, pieces: Iterable[Mapping[str, pa.ChunkedArray]]) -> None:
    """Make a table from the columns of pieces. The first piece may have no rows; it gives the types."""
    for number, columns in enumerate(pieces):
        made = database.from_arrow(pa.table(columns))
        (made.insert_into if number else made.create)(table)


def _best(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column as it is, or the first value of each row if a model gives several: the best label or score."""
    several = pa.types.is_list(column.type)
    return pc.list_flatten(pc.list_slice(column, 0, 1, return_fixed_size_list=True)) if several else plain(column)


def _facts(database: DuckDBPyConnection, query: str) -> list[Facts]:
    """Return the rows of a query's result.

    JSON has no infinity and no NaN: as the value of a column they become a text, elsewhere None.
    """
    found = answered(database, query)
    names = [name for name, *_ in found.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    odd = [(row, name) for row in rows for name in names if isinstance(row[name], float) and not isfinite(row[name])]
    for row, name in odd:
        row[name] = str(row[name]) if name == "value" else None
    return rows


def _is_share(span: Facts) -> bool:
    return span["low"] is None or 0 <= span["low"] <= span["high"] <= 1
