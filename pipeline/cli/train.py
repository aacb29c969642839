"""The command `train`, which makes a model file from labelled texts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError, counted, install
from ..options.training import TRAIN
from ..report.console import PlainConsole, say
from ..storage.disk import refuse_outputs
from .flags import Quiet, SchedulerFile, in_panel, keywords, with_options
from .tables import write_rows

if TYPE_CHECKING:
    from distributed import Client

_EPOCHS = "Passes over the data.  [default: 80; with --fine-tune 3, or 8 for few rows]"
_SET = "Any other setting of the recipe, such as dropout=0.5. A wrong name lists all."
_DATA = "Labelled texts: files, folders, globs or URLs, in the formats of `classify`."
_recipe, _soft, _cluster, _report = (
    partial(in_panel, panel) for panel in ("Recipe", "Scores of other models", "Cluster", "Report")
)


@with_options(TRAIN)
def command(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="MODEL", help="The model file to write.", show_default=False),
    ] = None,
    data: Annotated[list[str] | None, typer.Argument(metavar="DATA", help=_DATA, show_default=False)] = None,
    epochs: Annotated[int | None, _recipe("N", _EPOCHS)] = None,
    batch_size: Annotated[int | None, _recipe("N", "Articles per step.  [default: by number of rows]")] = None,
    learning_rate: Annotated[float | None, _recipe("RATE", "Highest rate.  [default: by number of rows]")] = None,
    set_: Annotated[list[str] | None, _recipe("NAME=VALUE", _SET, "--set")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report odd rows only; do not train.")] = False,
    teacher: Annotated[
        list[str] | None,
        _soft("WHAT", "Learn from the scores of a model, a sentence encoder or MODULE:FUNCTION; of several, the mean."),
    ] = None,
    soft_labels: Annotated[
        list[str] | None, _soft("COLUMN", "Learn from probabilities: a column of lists, or a column for each class.")
    ] = None,
    soft_share: Annotated[float, _soft("SHARE", "Weight of the soft label of a row that also has a label.")] = 0.5,
    unlabelled: Annotated[list[str] | None, _soft("DATA", "Texts without labels, which a --teacher labels.")] = None,
    cluster: Annotated[
        str | None, _cluster("WHERE", "Train on workers: local, cuda, slurm, or the address of a scheduler.")
    ] = None,
    scheduler_file: SchedulerFile = None,
    note: Annotated[str | None, _report("TEXT", "A line to add to the model card.")] = None,
    plot: Annotated[Path | None, _report("FILE.png", "Draw the training curve.")] = None,
    suspects: Annotated[
        Path | None, _report("FILE.csv", "Write the rows whose label is probably wrong, the most doubtful first.")
    ] = None,
    quiet: Quiet = False,
    **flags: Any,
) -> None:
    """Train a model on labelled texts.

    For example, `broadsheet train news.csv --label-column topic -o topics.safetensors` learns the column `topic` from
    the column `text`.

    The model has n-grams, and with a GPU also a network. By default, a network is trained with the settings of the
    shipped model, or below 5,000 rows with settings for few rows.

    n-grams need scikit-learn, which the extra `train` installs. The network needs PyTorch, which the extra
    `train-network` installs.
    """
    try:
        from ..train import CHECKPOINT, Recipe, odd_rows, train
        from ..train.progress import plot_curve
        from ..train.vectors import chosen_vectors
        from .training import TrainingProgress, print_oddities
    except ModuleNotFoundError as error:
        raise UsageError(f"training needs scikit-learn ({error}): {install('train')}") from error
    from ..source.inputs import Paths, local_paths

    # Refuse options that do not go together, and find the data.
    if plot and find_spec("matplotlib") is None:
        raise UsageError(f"--plot needs Matplotlib: {install('train')}")
    options = keywords(flags, TRAIN)
    if unlabelled and not teacher:
        raise UsageError("--unlabelled text needs a --teacher")
    if not data:
        data, unlabelled = unlabelled, None
    if not data:
        raise UsageError("name DATA to learn: labelled texts, or with --teacher any")
    if "id_column" in options and not suspects:
        raise UsageError("--id-column is for --suspects, which keeps it beside each row: add --suspects FILE")

    # Gather the files to read, and make the objects that `train` takes.
    options["suspects"] = suspects is not None
    resume = options.get("resume", False)
    read = [*data, *options.get("test", ()), *(unlabelled or ())]
    models = [*(teacher or ()), *(str(options[name]) for name in ("init", "alphabet") if name in options)]
    models += chosen_vectors(options.get("vectors"), 0)
    _resolve_inputs(options, teacher or (), soft_labels or (), unlabelled, soft_share)

    # Only report oddities, or refuse to replace files.
    if dry_run:
        print_oddities(odd_rows(Paths(data), **options), PlainConsole())
        return
    if output is None:
        raise UsageError("name the model file to write: -o MODEL.safetensors; or give --dry-run")
    outputs = {"-o": output, "--plot": plot, "--suspects": suspects}
    refuse_outputs(outputs, overwrite, lambda: [*models, *local_paths(Paths(read))])
    checkpoint = (output.parent.absolute() / output.name).with_name(output.name + CHECKPOINT)
    if checkpoint.exists() and not resume:
        if not overwrite:
            remedy = "go on with --resume, or begin anew with --overwrite"
            raise UsageError(f"{checkpoint} is of a run that did not end: {remedy}")
        say(f"broadsheet: {checkpoint} is replaced: a run that did not end is lost", error=True)
        checkpoint.unlink()

    # Train, and keep the checkpoint of an interrupted run.
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None] + (set_ or [])
    is_fine_tuning = bool(options.get("fine_tune"))
    epochs = 0 if is_fine_tuning else Recipe().with_settings(settings).epochs  # fine-tuning reports how many
    watch = TrainingProgress(PlainConsole(stderr=True, quiet=quiet), epochs, "encoder" if is_fine_tuning else "network")
    about: dict[str, Any] = {"command": shlex.join(["broadsheet", *sys.argv[1:]])}
    if note:
        about["note"] = note
    options |= {"settings": settings, "checkpoint": checkpoint, "about": about, "on_start": watch.start, "tell": watch}
    try:
        with _workers(cluster, scheduler_file, options.get("gpus")) as client:
            trained = train(Paths(data), client=client, **options)
    except KeyboardInterrupt:
        watch.stop()
        if checkpoint.exists():
            say(f"broadsheet: interrupted; {checkpoint} holds what was trained, continue with --resume", error=True)
            raise typer.Exit(1) from None
        raise
    finally:
        watch.stop()

    # Write the model, the suspects and the plot.
    trained.model.save(output)
    checkpoint.unlink(missing_ok=True)
    watch.finish(trained, output)
    if suspects and (found := trained.suspects) is not None and (judged := trained.compared) is not None:
        write_rows(suspects, found)
        seen = f"{len(found):,} of {judged.rows:,} rows, each judged by a model that has not seen it,"
        say(f"{suspects}: {seen} may have a wrong label")
    elif suspects:
        say(f"{suspects} is not written: no row was held out in which to look for wrong labels", error=True)
    if plot:
        plot_curve(trained.history, plot)


def _resolve_inputs(
    options: dict[str, Any],
    teachers: Sequence[str],
    soft_columns: Sequence[str],
    unlabelled: list[str] | None,
    soft_share: float,
) -> None:
    """Replace the values of flags in `options` by the objects that `train` takes.

    Parameters
    ----------
    options : dict
        The options of `train`, which are changed in place.
    teachers, soft_columns, unlabelled, soft_share
        The values of the flags for soft labels: `--teacher`, `--soft-labels`, `--unlabelled` and `--soft-share`.

    """
    from ..source.inputs import Paths
    from ..train import SoftLabels
    from ..train.recipe import ALPHABETS

    if teachers or soft_columns:
        sys.path.append("")  # MODULE:FUNCTION may be in the current folder
        more = Paths(unlabelled) if unlabelled else None
        device = options.get("device", "auto")
        options["soft_labels"] = SoftLabels(tuple(soft_columns), tuple(teachers), more, soft_share, device)
    if "test" in options:
        options["test"] = Paths(options["test"])
    if (alphabet := options.get("alphabet")) is not None:
        options["alphabet"] = ALPHABETS.get(alphabet) or _symbols(alphabet)
    if str(options.get("vectors")) == "none":
        options["vectors"] = None


@contextmanager
def _workers(where: str | None, scheduler_file: Path | None, count: int | None) -> Iterator[Client | None]:
    """Provide the client of the cluster to train on, or None if the user names no cluster."""
    if where is None and scheduler_file is None:
        yield None
        return
    if where is not None and scheduler_file is not None:
        raise UsageError("give --cluster or --scheduler-file, and not both")
    from ...cluster import connect
    from ...cluster.protocol import count_gpus

    workers = count if where in ("local", "cuda", "slurm") else None
    gpus = count_gpus() if where == "cuda" else 0
    if workers is not None and 0 < gpus < workers:
        raise UsageError(f"--gpus {workers}: this machine has {counted(gpus, 'GPU')}")
    with connect(where or "local", workers=workers, scheduler_file=scheduler_file) as client:
        yield client


def _symbols(path: str) -> str:
    """Return all symbols in a file. A line break at its end is a symbol too."""
    try:
        return Path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        remedy = "choose with-space, published, or a UTF-8 file"
        raise UsageError(f"no alphabet {path!r}: {remedy} ({error})") from error
