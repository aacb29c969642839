"""What a job can be told: how it reads, computes and writes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.model.charcnn import Model
from pipeline.output.record import Settings
from pipeline.report.explain import refuse_unwritable
from pipeline.source.chunk import Selection


@dataclass(frozen=True)
class Options:
    """How a job reads, computes and writes; the fields are `classify`'s keyword arguments.

    text_column: one name or several, joined by one space and the result stripped; "text" by default.
    id_column: one name or several, copied to the output. columns: names of a headerless CSV's fields.
    truth_column: holds the true class, by name or by number from 1. truth: the answer file of a one-hot input.
    scores: a probability for every class. top_k: the k best labels. chunk_size: rows in a chunk.
    device: "auto", "cpu" or "cuda". precision: "auto", "fp32", "fp16" or "bf16". kernels: "auto", or a generation of
    CUDA kernels, "simt", "sm80" or "sm90". workers: processes of an embedded cluster (a script that asks for them needs
    the main guard of multiprocessing).
    resume: go on with an interrupted job. overwrite: replace an old one. strict: stop at the first bad row.
    hash: "edges" or "full", how much of each input file identifies it. allow_mixed: workers may differ in kind.
    profile: record every kernel, and at the end measure each alone. trace: a file for the timeline, to be opened in
    ui.perfetto.dev. report: a file for the job as one HTML page.
    """

    text_column: str | Iterable[str] = ()
    id_column: str | Iterable[str] = ()
    columns: Iterable[str] | None = None
    truth_column: str | None = None
    truth: str | os.PathLike[str] | None = None
    scores: bool = False
    top_k: int = 1
    chunk_size: int | None = None
    device: str = "auto"
    precision: str = "auto"
    kernels: str = "auto"
    workers: int | None = None
    resume: bool = False
    overwrite: bool = False
    strict: bool = False
    hash: str = "edges"
    allow_mixed: bool = False
    profile: bool = False
    trace: str | os.PathLike[str] | None = None
    report: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "chunk_size", "workers"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1) and (value is not None or name == "top_k"):
                raise UsageError(f"{name} is {value!r}, it must be an integer of at least 1")
        for name in ("text_column", "id_column", "columns"):
            if getattr(self, name) is not None:
                given = _names(getattr(self, name))
                object.__setattr__(self, name, given)
                if len(set(given)) < len(given):
                    raise UsageError(f"{name} names {next(n for n in given if given.count(n) > 1)!r} twice")
        refuse_unwritable(self.trace, self.report)
        if self.hash not in ("edges", "full"):
            raise UsageError(f"hash {self.hash!r}: choose edges or full")

    def selection(self, model: Model) -> Selection:
        return Selection(
            text=_names(self.text_column),
            ids=_names(self.id_column),
            truth=self.truth_column,
            header=None if self.columns is None else tuple(self.columns),
            classes=model.classes,
            answers=None if self.truth is None else os.path.abspath(self.truth),
        )

    def settings(self, chunk_rows: int) -> Settings:
        """Every one that changes a byte of the output."""
        return Settings(
            text_columns=_names(self.text_column),
            id_columns=_names(self.id_column),
            columns=None if self.columns is None else tuple(self.columns),
            truth_column=self.truth_column,
            truth=None if self.truth is None else _digest(self.truth),
            scores=self.scores,
            top_k=self.top_k,
            chunk_size=chunk_rows,
            hash=self.hash,
        )


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _digest(path: str | os.PathLike[str]) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
