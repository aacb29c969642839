"""broadsheet evaluate: a model against labelled articles."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from pipeline.accuracy import Confusion
from pipeline.errors import UsageError
from pipeline.evaluate import Evaluation, evaluate
from pipeline.report.terminal import print_confusion
from pipeline.source.inputs import Paths


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model's name, or a file.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="Files, folders, globs or URLs.")],
    label_column: Annotated[str, typer.Option(metavar="NAME", help="True class, by name or number from 1.")],
    text_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column with the text; several are joined by a space.  [default: text]"),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,C", help="Column names of a headerless CSV.")] = None,
    mistakes: Annotated[int, typer.Option(metavar="N", min=0, help="Most confident mistakes to show.")] = 10,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="auto: the GPU, if there is one.")] = "auto",
    precision: Annotated[str, typer.Option(metavar="auto|fp32|fp16|bf16")] = "auto",
    kernels: Annotated[str, typer.Option(metavar="auto|simt|sm80|sm90", help="CUDA kernels, by generation.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the confusion matrix.")] = None,
) -> None:
    """Print accuracy, its standard error, figures by class, the confusion matrix and the most confident mistakes."""
    if plot and find_spec("matplotlib") is None:
        raise UsageError("--plot needs Matplotlib: pip install 'broadsheet[train]'")
    result = evaluate(
        model,
        Paths(data),
        text_column=text_column or (),
        label_column=label_column,
        columns=None if columns is None else columns.split(","),
        mistakes=mistakes,
        device=device,
        precision=precision,
        kernels=kernels,
    )
    if not result.confusion.rows:
        raise UsageError(f"no row has a class of the model in column {label_column!r}")
    if as_json:
        typer.echo(json.dumps(result.to_dict(), ensure_ascii=False))
    else:
        _print(result, Console(highlight=False))
    if plot:
        _plot(result.confusion, plot)


def _print(result: Evaluation, console: Console) -> None:
    console.print(f"{result.model} on {result.backend}", soft_wrap=True)
    if result.quarantined:
        console.print(f"{result.quarantined:,} unreadable rows left out", style="yellow")
    if result.overflowed:
        console.print(f"{result.overflowed:,} rows left out on which the model overflows", style="yellow")
    print_confusion(result.confusion, console)
    if result.mistakes:
        console.print("most confident mistakes", style="bold")
    for mistake in result.mistakes:
        where = f"{mistake.file} row {mistake.row}"
        console.print(Text(f"{mistake.score:.3f} {mistake.label}, not {mistake.truth}  ({where})"), soft_wrap=True)
        console.print(Text(f"      {' '.join(mistake.text.split())[:160]}", style="dim"), soft_wrap=True)


def _plot(confusion: Confusion, path: Path) -> None:
    from matplotlib.figure import Figure

    names = confusion.classes
    side = max(4.0, 0.5 * len(names) + 2)
    figure = Figure(figsize=(side + 0.6, side), dpi=150, layout="constrained")
    axes = figure.add_subplot(xlabel="labelled", ylabel="true class")
    totals = confusion.counts.sum(axis=1, keepdims=True)
    shares = confusion.counts / totals.clip(min=1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_title(f"accuracy {confusion.accuracy:.2%} of {confusion.rows:,} rows")
    if len(names) <= 20:
        for i, row in enumerate(confusion.counts):
            for j, count in enumerate(row):
                color = "white" if shares[i, j] > 0.5 else "black"
                axes.text(j, i, f"{count:,}", ha="center", va="center", color=color)
    figure.savefig(path)
