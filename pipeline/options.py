"""The options of a job: how it reads, computes and writes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path

from msgspec import UNSET

from .errors import UsageError
from .labelling.windows import SCORES, Windows
from .model.several import Models
from .output.expression import parse
from .output.layout import FORMATS
from .output.model_columns import ModelColumns, Names
from .output.record import Settings
from .source.chunk import Selection
from .source.delimiter import delimiter_named
from .source.find.search import printable
from .source.label_sets import SEPARATOR
from .source.open.encoding import encoding_named
from .source.open.opening import read_local, reason
from .storage.buckets import check_endpoint
from .storage.names import root_of


@dataclass(frozen=True)
class Options:
    """How a job reads, computes and writes: the keyword arguments of `classify`, which documents them, checked.

    Raises
    ------
    UsageError
        For a value out of range, a column named twice, or a file that cannot be written.

    Examples
    --------
    >>> broadsheet.Options(text_column=["title", "body"], top_k=3).text_column
    ('title', 'body')

    """

    text_column: str | Iterable[str] = ()
    id_column: str | Iterable[str] = ()
    keep: str | Iterable[str] = ()
    keep_all: bool = False
    columns: Iterable[str] | None = None
    truth_column: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    root: str | os.PathLike[str] | None = None
    limit: int | None = None
    truth: str | os.PathLike[str] | None = None
    scores: bool = False
    top_k: int = 1
    abstain: float | None = None
    format: str = "parquet"
    partition_by: str | None = None
    where: str | None = None
    windows: int | None = None
    overlap: int = 0
    window_score: str = "mean"
    chunk_size: int | None = None
    device: str = "auto"
    precision: str = "auto"
    kernels: str = "auto"
    workers: int | None = None
    endpoint: str | None = None
    resume: bool = False
    overwrite: bool = False
    update: bool = False
    strict: bool = False
    hash: str = "listing"
    allow_mixed: bool = False
    profile: bool = False
    trace: str | os.PathLike[str] | None = None
    report: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "chunk_size", "limit", "workers", "windows"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1) and (value is not None or name == "top_k"):
                raise UsageError(f"{name} is {value!r}, it must be an integer of at least 1")
        if not isinstance(self.overlap, int) or self.overlap < 0:
            raise UsageError(f"overlap is {self.overlap!r}, it must be an integer of at least 0")
        if self.window_score not in SCORES:
            raise UsageError(f"window_score {self.window_score!r}: choose {' or '.join(SCORES)}")
        if self.windows is None and (self.overlap or self.window_score != SCORES[0]):
            raise UsageError("--overlap and --window-score go with --windows, the most windows of a text")
        object.__setattr__(self, "encoding", encoding_named(self.encoding))
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", delimiter_named(self.delimiter))
        for name in ("text_column", "id_column", "keep", "columns"):
            if getattr(self, name) is not None:
                given = _names(getattr(self, name))
                object.__setattr__(self, name, given)
                if len(set(given)) < len(given):
                    raise UsageError(f"{name} names {next(n for n in given if given.count(n) > 1)!r} twice")
                _refuse_not_utf8(name, *given)
        _refuse_not_utf8("truth_column", self.truth_column or "")
        _refuse_not_utf8("truth", os.fspath(self.truth or ""))
        _refuse_not_utf8("root", os.fspath(self.root or ""))
        root_of(self.root)
        if self.endpoint is not None:
            check_endpoint(self.endpoint)
        _refuse_unwritable(self.trace, self.report)
        if self.hash not in ("listing", "full"):
            raise UsageError(f"hash {self.hash!r}: choose listing or full")
        if self.format not in FORMATS:
            raise UsageError(f"format {self.format!r}: choose {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
        if self.abstain is not None and not 0 < self.abstain <= 1:
            raise UsageError(f"abstain is {self.abstain!r}, it must be a score above 0, up to 1")
        if self.partition_by not in (None, "label"):
            raise UsageError(f"partition_by {self.partition_by!r}: choose label")
        if self.where is not None:
            _refuse_not_utf8("where", self.where)
            parse(self.where)

    @property
    def _kept(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*_names(self.id_column), *_names(self.keep))))

    def selection(self, models: Models) -> Selection:
        return Selection(
            text=_names(self.text_column),
            kept=self._kept,
            truth=self.truth_column,
            header=None if self.columns is None else tuple(self.columns),
            classes=models.classes,
            answers=None if self.truth is None else os.path.abspath(self.truth),
            keep_all=self.keep_all,
            encoding=self.encoding,
            delimiter=self.delimiter,
            reads=self._reads(models),
            prefixes=models.prefixes,
            windows=self.windows is not None,
        )

    @property
    def _windows(self) -> Windows | None:
        return None if self.windows is None else Windows(self.windows, self.overlap, self.window_score)

    def _reads(self, models: Models) -> int:
        """Characters of a text that its labels need. Raises UsageError for an overlap of whole windows."""
        windows = self._windows
        if windows is None:
            return models.reads
        for model in models.every:
            if windows.overlap >= model.length:
                raise UsageError(
                    f"overlap is {windows.overlap:,}: it must be below the {model.length:,} characters that "
                    f"{model.name} reads"
                )
        return max(windows.reads(model.length) for model in models.every)

    def model_columns(self, models: Models) -> tuple[ModelColumns, ...]:
        """What each model is to say of each row."""
        self._refuse_unfit(models)
        return tuple(
            ModelColumns(
                classes=model.classes,
                top_k=self.top_k,
                scores=self.scores,
                names=Names(prefix, model.is_multi_label),
                truths=models.classes,
                abstain=None if model.is_multi_label else self.abstain,
                thresholds=model.thresholds,
                windows=self._windows,
            )
            for model, prefix in zip(models.every, models.prefixes, strict=True)
        )

    def _refuse_unfit(self, models: Models) -> None:
        """Raise UsageError for what a model that gives several labels cannot do."""
        several = next((model for model in models.every if model.is_multi_label), None)
        if several is None:
            return
        if self.truth_column is not None or self.truth is not None:
            raise UsageError(
                f"{several.name} gives a text several labels: leave out --truth-column, and compare them with the true "
                "ones by `broadsheet evaluate`"
            )
        if self.partition_by is not None and models.first.is_multi_label:
            raise UsageError(f"{several.name} gives a text several labels: a row cannot be in the folder of each")
        if self.abstain is not None and all(model.is_multi_label for model in models.every):
            raise UsageError(f"{several.name} gives a text several labels, by its own thresholds: leave out --abstain")
        joined = next((name for name in several.classes if SEPARATOR in name), None)
        if self.format == "csv" and joined is not None:
            raise UsageError(
                f"the class {joined!r} cannot be written to CSV, where {SEPARATOR!r} separates labels: use --format "
                "jsonl or parquet"
            )

    def settings(self, chunk_rows: int, models: Models) -> Settings:
        """The options that change a byte of the output."""
        several = tuple(model.is_multi_label for model in models.every)
        return Settings(
            text_columns=_names(self.text_column),
            kept_columns=self._kept,
            keep_all=self.keep_all,
            columns=None if self.columns is None else tuple(self.columns),
            truth_column=self.truth_column,
            truth=None if self.truth is None else _digest(self.truth),
            scores=self.scores,
            top_k=self.top_k,
            chunk_size=chunk_rows,
            hash=self.hash,
            encoding=self.encoding,
            delimiter=self.delimiter,
            limit=self.limit,
            format=self.format,
            partition_by=self.partition_by,
            where=self.where,
            models=models.short_names if len(models.every) > 1 else UNSET,
            abstain=UNSET if self.abstain is None else self.abstain,
            multi_label=several if any(several) else UNSET,
            windows=UNSET if self.windows is None else (self.windows, self.overlap, self.window_score),
        )


OPTIONS = tuple(field.name for field in fields(Options))
"""The names of all options."""


def _refuse_not_utf8(option: str, *values: str) -> None:
    for value in values:
        if printable(value) != value:
            raise UsageError(f"{option} is {value!r}, which is not UTF-8")


def _refuse_unwritable(trace: str | os.PathLike[str] | None, report: str | os.PathLike[str] | None) -> None:
    """Raise UsageError, before the job runs, where a file could not be written or drawn."""
    for name, path in (("trace", trace), ("report", report)):
        if path is not None and (not Path(path).absolute().parent.is_dir() or Path(path).is_dir()):
            raise UsageError(f"--{name} {os.fspath(path)}: give a file in a folder that exists")
    if report is not None and find_spec("matplotlib") is None:
        raise UsageError("--report needs Matplotlib: pip install 'broadsheet[report]'")


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _digest(path: str | os.PathLike[str]) -> str:
    try:
        return hashlib.sha256(read_local(os.fspath(path))).hexdigest()
    except OSError as error:
        raise UsageError(f"the answer file {path} cannot be read: {reason(error)}") from error
