"""broadsheet train: labelled articles in, a model file out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..errors import UsageError
from ..report.console import PlainConsole, say
from ..storage.disk import refuse_outputs
from .flags import Columns, Device, Quiet, SchedulerFile, Texts, in_panel, names_of

if TYPE_CHECKING:
    from distributed import Client

    from ..model.layers import Frame

_DATA = "Files, folders, globs or URLs, read as `classify` reads them."
_data, _network, _recipe, _soft, _computing, _cluster, _report = (
    partial(in_panel, panel)
    for panel in ("Input", "Network", "Recipe", "Scores of other models", "Computing", "Cluster", "Report")
)


def command(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=_DATA, show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="MODEL", help="The model file to write.")],
    label_column: Annotated[
        list[str] | None,
        _data("NAME", "Column with the class; needed without soft labels. Of several, the model learns each."),
    ] = None,
    target_column: Annotated[
        str | None, _data("NAME", "In its place: a column of numbers to learn, or with --classes of levels in order.")
    ] = None,
    text_column: Texts = None,
    columns: Columns = None,
    classes: Annotated[
        str | None, _data("A,B,C", "Class names in order; labels are then names or numbers from 1.")
    ] = None,
    multi_label: Annotated[
        bool, _data("", "A text may have several labels: the label column holds lists.", "--multi-label")
    ] = False,
    label_separator: Annotated[
        str | None, _data("TEXT", "The label column holds texts with this between two labels.")
    ] = None,
    init: Annotated[str | None, _network("MODEL", "Model whose network to begin with, all but its last layer.")] = None,
    alphabet: Annotated[
        str | None, _network("NAME|FILE", "published, or a UTF-8 file with the symbols.  [default: with-space]")
    ] = None,
    length: Annotated[int | None, _network("CHARACTERS", "Characters read of an article.  [default: 1014]")] = None,
    frame: Annotated[
        str | None, _network("text|dense", "Compute the text only, or the whole length.  [default: text]")
    ] = None,
    hold_out: Annotated[float | None, _data("SHARE", "Share of each class not trained on.  [default: 0.05]")] = None,
    test: Annotated[list[str] | None, _data("DATA", "Rows to evaluate the finished model on, once.")] = None,
    epochs: Annotated[int | None, _recipe("N", "Passes over the data.  [default: 80]")] = None,
    batch_size: Annotated[int | None, _recipe("N", "Articles per step.  [default: by the rows]")] = None,
    learning_rate: Annotated[float | None, _recipe("RATE", "Highest rate of the run.  [default: by the rows]")] = None,
    set_: Annotated[list[str] | None, _recipe("NAME=VALUE", "Any other setting of the recipe.", "--set")] = None,
    ngrams: Annotated[
        int | None, _network("N", "Buckets for n-grams, a power of two; 0: none.  [default: by the classes]")
    ] = None,
    vectors: Annotated[
        str, _network("WHAT", "Pretrained word vectors for the n-grams: wordllama, a file, a folder, or none.")
    ] = "auto",
    loss: Annotated[str, _recipe("squared|absolute", "What is least, of a --target-column.")] = "squared",
    balanced: Annotated[bool, _recipe("", "Every class weighs the same.", "--balanced")] = False,
    keep_network: Annotated[
        bool, _network("", "Keep it also where held-out rows are not likelier with it.", "--keep-network")
    ] = False,
    seed: Annotated[int, _recipe("N", "Seed of every random choice.")] = 0,
    device: Device = "auto",
    precision: Annotated[str, _computing("auto|fp32|bf16", "Format of products; auto: bf16 on a GPU.")] = "auto",
    dtype: Annotated[str, _network("float16|float32", "Number format of the stored weights.")] = "float16",
    checkpoint_every: Annotated[
        int, _computing("EPOCHS", "How often to write MODEL.checkpoint; 0: never.", min=0)
    ] = 10,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from MODEL.checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace model, checkpoint and plot.")] = False,
    teacher: Annotated[
        list[str] | None,
        _soft("WHAT", "Learn its scores too: a model, a sentence encoder, or MODULE:FUNCTION; of several, the mean."),
    ] = None,
    soft_labels: Annotated[
        list[str] | None, _soft("COLUMN", "Learn these probabilities: a column of lists, or one for each class.")
    ] = None,
    soft_share: Annotated[float, _soft("SHARE", "How much its soft label counts, where a row has a label too.")] = 0.5,
    unlabelled: Annotated[list[str] | None, _soft("DATA", "More text, for a --teacher to label.")] = None,
    gpus: Annotated[
        int | None, _computing("N", "GPUs that share each batch.  [default: 1; all of a cluster]", min=1)
    ] = None,
    cluster: Annotated[
        str | None, _cluster("WHERE", "Train on workers: local, cuda, slurm, or a scheduler's address.")
    ] = None,
    scheduler_file: SchedulerFile = None,
    note: Annotated[str | None, _report("TEXT", "A line for the model card.")] = None,
    plot: Annotated[Path | None, _report("FILE.png", "Draw the training curve.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on labelled texts: n-grams, and with a GPU the network too.

    The defaults are the recipe of the shipped model, or one for few rows.
    n-grams need scikit-learn: pip install 'broadsheet[train]'; the network PyTorch: 'broadsheet[train-network]'.
    """
    try:
        from ..train import CHECKPOINT, Recipe, SoftLabels, train
        from ..train.progress import plot_curve
        from ..train.recipe import ALPHABETS
        from .training import TrainingProgress
    except ModuleNotFoundError as error:
        raise UsageError(f"training needs scikit-learn ({error}): pip install 'broadsheet[train]'") from error
    from ..source.inputs import Paths, local_paths

    if plot and find_spec("matplotlib") is None:
        raise UsageError("--plot needs Matplotlib: pip install 'broadsheet[train]'")
    read = [*data, *(test or ()), *(unlabelled or ())]
    models = [one for one in (init, alphabet, vectors, *(teacher or ())) if one is not None]
    refuse_outputs({"-o": output, "--plot": plot}, overwrite, lambda: [*models, *local_paths(Paths(read))])
    checkpoint = (output.parent.absolute() / output.name).with_name(output.name + CHECKPOINT)
    if checkpoint.exists() and not resume:
        if not overwrite:
            raise UsageError(
                f"{checkpoint} is of a run that did not end: go on with --resume, or begin anew with --overwrite"
            )
        say(f"broadsheet: {checkpoint} is replaced: a run that did not end is lost", error=True)
        checkpoint.unlink()
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None] + (set_ or [])
    epochs = Recipe().with_settings(settings).epochs
    watch = TrainingProgress(PlainConsole(stderr=True, quiet=quiet), epochs)
    about: dict[str, Any] = {"command": shlex.join(["broadsheet", *sys.argv[1:]])}
    if note:
        about["note"] = note
    soft = None
    if teacher or soft_labels:
        sys.path.append("")  # where MODULE:FUNCTION may be
        more = Paths(unlabelled) if unlabelled else None
        soft = SoftLabels(tuple(soft_labels or ()), tuple(teacher or ()), more, soft_share, device)
    elif unlabelled:
        raise UsageError("--unlabelled text needs a --teacher")
    options: dict[str, Any] = {
        "soft_labels": soft,
        "text_column": text_column or (),
        "label_column": label_column or (),
        "target_column": target_column,
        "loss": loss,
        "columns": names_of(columns),
        "classes": names_of(classes),
        "multi_label": multi_label,
        "label_separator": label_separator,
        "alphabet": None if alphabet is None else ALPHABETS.get(alphabet) or _symbols(alphabet),
        "length": length,
        "frame": cast("Frame | None", frame),
        "init": init,
        "settings": settings,
        "ngrams": ngrams,
        "vectors": None if vectors == "none" else vectors,
        "balanced": balanced,
        "keep_network": keep_network,
        "hold_out_share": hold_out,
        "test": Paths(test) if test else None,
        "seed": seed,
        "device": device,
        "precision": precision,
        "dtype": dtype,
        "checkpoint": checkpoint,
        "checkpoint_every": checkpoint_every,
        "resume": resume,
        "about": about,
        "on_start": watch.start,
        "tell": watch,
    }
    try:
        with _workers(cluster, scheduler_file, gpus) as client:
            trained = train(Paths(data), gpus=gpus, client=client, **options)
    except KeyboardInterrupt:
        watch.stop()
        if checkpoint.exists():
            say(f"broadsheet: interrupted; {checkpoint} holds what was trained, continue with --resume", error=True)
            raise typer.Exit(1) from None
        raise
    finally:
        watch.stop()
    trained.model.save(output)
    checkpoint.unlink(missing_ok=True)
    watch.finish(trained, output)
    if plot:
        plot_curve(trained.history, plot)


@contextmanager
def _workers(where: str | None, scheduler_file: Path | None, count: int | None) -> Iterator[Client | None]:
    """The cluster to train on, if one is named."""
    if where is None and scheduler_file is None:
        yield None
        return
    if where is not None and scheduler_file is not None:
        raise UsageError("--scheduler-file excludes --cluster")
    from ...cluster import connect

    workers = count if where in ("local", "cuda", "slurm") else None
    with connect(where or "local", workers=workers, scheduler_file=scheduler_file) as client:
        yield client


def _symbols(path: str) -> str:
    """The symbols in a file, all of them: a line break at its end is one too."""
    try:
        return Path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"no alphabet {path!r}: with-space, published, or a UTF-8 file ({error})") from error
