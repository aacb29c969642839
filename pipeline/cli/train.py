"""broadsheet train: labelled articles in, a model file out."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from pipeline.errors import UsageError
from pipeline.report.console import PlainConsole, say

if TYPE_CHECKING:
    from pipeline.model.frame import Frame
    from pipeline.train import Epoch, Trained
    from pipeline.train.data import Labelled

_DATA = "Files, folders, globs or URLs, read as `classify` reads them."


def command(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=_DATA, show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="MODEL", help="The model file to write.")],
    label_column: Annotated[str, typer.Option(metavar="NAME", help="Column with the class.")],
    text_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Column with the text; several are joined by a space.  [default: text]"),
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,C", help="Column names of a headerless CSV.")] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Class names in order; labels are then names or numbers from 1."),
    ] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="A text may have several labels: the label column holds lists.")
    ] = False,
    label_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The label column holds texts with this between two labels.")
    ] = None,
    alphabet: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="with-space, published, or a UTF-8 file with the symbols.")
    ] = "with-space",
    length: Annotated[int, typer.Option(metavar="CHARACTERS", help="Characters read of an article.")] = 1014,
    frame: Annotated[
        str,
        typer.Option(metavar="text|dense", help="text: compute an article's text only; dense: all of its length."),
    ] = "text",
    hold_out: Annotated[float, typer.Option(metavar="SHARE", help="Share of each class held out.")] = 0.05,
    test: Annotated[
        list[str] | None, typer.Option(metavar="DATA", help="Rows to evaluate the finished model on, once.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Passes over the data.  [default: 80]")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Articles per step.  [default: 256]")] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="RATE", help="Its peak.  [default: 0.001]")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of the recipe.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of every random choice.")] = 0,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="auto: the GPU, if there is one.")] = "auto",
    precision: Annotated[str, typer.Option(metavar="auto|fp32|bf16", help="Of products; auto: bf16 on a GPU.")] = (
        "auto"
    ),
    dtype: Annotated[str, typer.Option(metavar="float16|float32", help="Of the stored weights.")] = "float16",
    checkpoint_every: Annotated[
        int, typer.Option(metavar="EPOCHS", min=0, help="How often to write MODEL.checkpoint; 0: never.")
    ] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from MODEL.checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model file.")] = False,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="A line for the model card.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the training curve.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Train the network on labelled articles.

    The defaults are the recipe of the shipped model. Needs PyTorch: pip install 'broadsheet[train]'.
    """
    try:
        from pipeline.train import CHECKPOINT, Recipe, train
        from pipeline.train.curve import plot_curve
        from pipeline.train.recipe import ALPHABETS
    except ModuleNotFoundError as error:
        raise UsageError(f"training needs PyTorch ({error}): pip install 'broadsheet[train]'") from error
    from pipeline.source.inputs import Paths

    if plot and find_spec("matplotlib") is None:
        raise UsageError("--plot needs Matplotlib: pip install 'broadsheet[train]'")
    if output.exists() and not overwrite:
        raise UsageError(f"{output} is there already: give another name, or --overwrite")
    if not output.parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}")
    checkpoint = output.with_name(output.name + CHECKPOINT)
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None]
    recipe = Recipe().with_settings([*settings, *(set_ or [])])
    watch = _Watch(PlainConsole(stderr=True, quiet=quiet), recipe.epochs)
    about: dict[str, Any] = {"command": shlex.join(["broadsheet", *sys.argv[1:]])}
    if note:
        about["note"] = note
    try:
        trained = train(
            Paths(data),
            text_column=text_column or (),
            label_column=label_column,
            columns=None if columns is None else columns.split(","),
            classes=None if classes is None else classes.split(","),
            multi_label=multi_label,
            label_separator=label_separator,
            alphabet=ALPHABETS.get(alphabet) or _symbols(alphabet),
            length=length,
            frame=cast("Frame", frame),
            recipe=recipe,
            hold_out_share=hold_out,
            test=Paths(test) if test else None,
            seed=seed,
            device=device,
            precision=precision,
            dtype=dtype,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            resume=resume,
            about=about,
            on_start=watch.start,
            on_epoch=watch.epoch,
        )
    except KeyboardInterrupt:
        if checkpoint.exists():
            say(f"broadsheet: interrupted; {checkpoint} stays, continue with --resume", error=True)
            raise typer.Exit(1) from None
        raise
    trained.model.save(output)
    checkpoint.unlink(missing_ok=True)
    watch.finish(trained, output)
    if plot:
        plot_curve(trained.history, plot)


class _Watch:
    """Tells a terminal or a log how the run goes, a line an epoch."""

    def __init__(self, console: PlainConsole, epochs: int) -> None:
        self._console, self._epochs = console, epochs
        self._began = self._last = time.monotonic()

    def start(self, data: Labelled, held_out: int) -> None:
        skipped = f", {data.skipped:,} unreadable rows left out" if data.skipped else ""
        self._console.print(
            f"{len(data):,} articles of {len(data.classes)} classes, {held_out:,} of them held out{skipped}",
            soft_wrap=True,
        )
        self._last = time.monotonic()

    def epoch(self, epoch: Epoch) -> None:
        now = time.monotonic()
        held_out = "" if epoch.accuracy != epoch.accuracy else f"  held out {epoch.accuracy:7.2%}"
        self._console.print(
            f"epoch {epoch.number:>3}/{self._epochs}  loss {epoch.loss:.4f}{held_out}  {now - self._last:.1f} s"
        )
        self._last = now

    def finish(self, trained: Trained, output: Path) -> None:
        card = trained.model.card
        if "held_out_accuracy" in card:
            self._console.print(f"held out: {card['held_out_accuracy']:.2%}")
        if "held_out_micro_f1" in card:
            of_them = "with thresholds chosen on the same rows"
            self._console.print(f"held out, {of_them}: {_f1(card, 'held_out_')}")
        if "test" in card:
            test = card["test"]
            figure = f"{test['accuracy']:.2%} of" if "accuracy" in test else f"{_f1(test, '')}, of"
            self._console.print(f"test: {figure} {test['rows']:,} rows")
        self._console.print(f"{output} written after {time.monotonic() - self._began:,.0f} s", soft_wrap=True)


def _f1(figures: Mapping[str, Any], prefix: str) -> str:
    shown = (figures[f"{prefix}{kind}_f1"] for kind in ("micro", "macro"))
    micro, macro = ("–" if value is None else f"{value:.3f}" for value in shown)
    return f"micro F1 {micro}, macro F1 {macro}"


def _symbols(path: str) -> str:
    """The symbols in a file, all of them: a line break at its end is one too."""
    try:
        return Path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"no alphabet {path!r}: with-space, published, or a UTF-8 file ({error})") from error
