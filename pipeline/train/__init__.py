"""Training: labelled articles in, a `Model` out. The network needs PyTorch (the extra `train-network`), n-grams do not.

In stages: `data.py` (articles, encoded, and those held out), `branch.py` (the n-grams beside the network), `job.py`
(the network's run: `loop.py` minimises what `objective.py` says), `after.py` (from weights to a model and its card).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..errors import UsageError
from ..measures.rows import hold_out, strata
from ..model.alphabet import Alphabet
from ..model.charcnn import Model
from ..model.layers import Frame
from ..processes.threads import free_cores
from .after import Compared, model_of
from .branch import Answers, fit_branch
from .data import ArticleReader, LabelledArticles, TrainingData, copies, read_heads, read_labelled, read_numbers
from .job import Examples, TrainingJob, without_network
from .objective import Objective, SeveralLabels, objective_of
from .progress import Cost, Epoch, Fit, Note, Step, Stuck, Tell, interrupts_noted
from .recipe import Beginning, Recipe, beginning, fits_on_gpu, is_alone, kinds_for, need_pytorch, ngram_bits, recipe_for
from .teachers import SoftLabels, hold_out_labelled
from .vectors import AUTO, chosen_vectors, read_vectors

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Cost", "Epoch", "Fit", "Note", "Recipe", "SoftLabels", "Step", "Trained", "train"]

CHECKPOINT = ".checkpoint"
LOSSES = ("squared", "absolute")
_HELD_OUT = 0.05
_RARE, _RARE_SHOWN = 0.1, 5
_HELD_OUT_OF_TAUGHT = 0.2  # a teacher that learned from labels tells them on: rows in turn would be no measure


@dataclass(frozen=True)
class Trained:
    """The result of `train`.

    Attributes
    ----------
    model : Model
        The averaged weights, rounded to the dtype they are stored in; its card says how they were trained.
    history : tuple of Epoch
        Number, training loss and held-out accuracy of each epoch; none where only the n-grams were fitted.
    compared : Compared, optional
        The accuracy on held-out rows beside that of two simple models, where there are such rows.
    compared_columns : dict of str to Compared
        Of several label columns, by the name of each, in place of `compared`.

    """

    model: Model
    history: tuple[Epoch, ...]
    compared: Compared | None = None
    compared_columns: Mapping[str, Compared] = field(default_factory=dict)


def train(
    source: Any,
    *,
    text_column: str | Iterable[str],
    label_column: str | Iterable[str] | None = None,
    target_column: str | None = None,
    loss: str = "squared",
    columns: Iterable[str] | None = None,
    classes: Iterable[str] | None = None,
    multi_label: bool = False,
    label_separator: str | None = None,
    alphabet: str | None = None,
    length: int | None = None,
    frame: Frame | None = None,
    init: str | Path | Model | None = None,
    recipe: Recipe | None = None,
    settings: Sequence[str] = (),
    ngrams: int | None = None,
    vectors: str | Path | None = AUTO,
    balanced: bool = False,
    hold_out_share: float | None = None,
    test: Any = None,
    keep_network: bool = False,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    dtype: str = "float16",
    checkpoint: Path | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    gpus: int | None = None,
    client: Client | None = None,
    soft_labels: SoftLabels | None = None,
    about: dict[str, Any] | None = None,
    on_start: Callable[[LabelledArticles, int], None] = lambda data, held: None,
    tell: Tell = lambda what: None,
) -> Trained:
    """Train the network, and n-grams beside it, on every labelled article of `source`.

    The n-grams are fitted first, as a linear model whose settings are chosen by cross-validation. Then the network is
    trained, unless that would take hours: without a GPU only where `recipe` or ``ngrams=0`` asks for it. The sum of
    their logits is weighted to fit the held-out rows best.

    The model gets the activation scales that int8 needs, found on up to 2,048 of the articles it was trained on, and
    the temperature at which its scores fit the held-out rows best, where there are 100 or more.

    Parameters
    ----------
    source : str, path, Paths, list of str, pandas, Arrow or Dask object
        Anything that `classify` takes.
    text_column : str or iterable of str
        Column with the text. Several are joined by a space.
    label_column : str, iterable of str, or None
        Column with the label. With `soft_labels` there may be rows without, or no such column (None). Of several, one
        model learns all: it has a head for each, over the same n-grams and the same network. A row may lack some of
        these labels.
    target_column : str, optional
        In place of `label_column`: a column of numbers to learn, such as a quality from 0 to 5, or with `classes` of
        the names of levels, from the lowest, which stand for 1, 2 and so on. n-grams learn them, without a network.
    loss : str
        Of numbers, what is least: "squared" or "absolute".
    columns : iterable of str, optional
        Column names of a CSV or TSV without a header line.
    classes : iterable of str, optional
        Class names in the order of the model; labels are then names, or numbers from 1. Default: the labels that occur,
        sorted.
    multi_label : bool
        Train a model that gives each text any number of labels: each class has a score of its own, and a threshold, at
        which F1 is best on the held-out rows. `label_column` holds lists, or texts.
    label_separator : str, optional
        What is between two labels where they are a text.
    alphabet : str, optional
        The symbols that the model reads. Default: those of `init`, or the published alphabet with a space.
    length : int, optional
        Characters of each article that the network reads, from 64 to 4,096. Default: as many as `init`, or 1,014.
    frame : str, optional
        "text": block 1's output is zero after the end of an article's text, so that only the text is computed. "dense":
        it is not, as in the published network. Default: that of `init`, or "text".
    init : str, Path or Model, optional
        A shipped model's name, a model file, or a loaded `Model`: the network begins with its weights, but for those of
        the last layer, and learns these at a lower rate, the recipe's `init_rate`.
    recipe : Recipe, optional
        Epochs, learning rate, augmentation and so on. Default: the recipe of the shipped model, or of fewer than 5,000
        rows one with smaller batches, a lower rate and less noise.
    settings : sequence of str
        In place of `recipe`: settings of the default, such as "epochs=10".
    ngrams : int, optional
        Buckets for n-grams of words and characters, a power of two; 0 for none. Default: about a million for few
        classes, fewer for many.
    vectors : str, Path or None
        Pretrained word vectors that are folded into the n-grams: "wordllama", a file or a folder (docs/train_options.md
        lists the formats). How much they count is chosen by cross-validation, and may be nothing. Default: "auto",
        those of wordllama where that package is installed and there are at most 10,000 labelled rows. None: none.
    balanced : bool
        Every class weighs the same, however many rows it has. Otherwise every row does.
    hold_out_share : float, optional
        Share of the texts of each class, up to 0.5, that is kept out of training; the accuracy on it is computed after
        each epoch. Rows with the same text are held out together.
        Default: 0.05; where only n-grams are fitted none, since cross-validation gives their accuracy, or with
        `soft_labels` 0.2.
    test : as `source`, optional
        Labelled articles on which the finished model is evaluated, once.
    keep_network : bool
        The network stays in the model, also where held-out rows are not clearly likelier with it.
    seed : int
        Seed of the initial weights, dropout and augmentation; the held-out rows do not depend on it.
    device : str
        "auto", "cpu" or "cuda".
    precision : str
        Of the products: "auto" (bf16 on CUDA, fp32 on a CPU), "fp32" or "bf16".
    dtype : str
        In which the weights are stored: "float16" or "float32".
    checkpoint : Path, optional
        File for the state of the run. It is also written where the run is interrupted, and never overwrites that of
        another run.
    checkpoint_every : int
        Epochs between two writes of `checkpoint`; 0 never writes it.
    resume : bool
        Continue from `checkpoint`; on a CPU the result has the same bits as an undisturbed run.
    gpus : int, optional
        GPUs of this machine that share each batch, a process each (with `device` "cpu": processes on its cores).
        Default: one. With `client`: of how many workers, by default of all.
    client : distributed.Client, optional
        Of a Dask cluster, on whose workers to train, a process on each (`cluster.connect`). They need PyTorch, and the
        folder of `checkpoint` has to be one that they share.
    soft_labels : SoftLabels, optional
        Probabilities of the classes, by teachers or in columns, to learn beside labels or in their place.
    about : dict, optional
        JSON values to add to the card of the model.
    on_start : callable
        Called once with the training data, `LabelledArticles`, and the number of held-out rows.
    tell : callable
        Called with a `Fit` after each fit of n-grams, a `Cost` before the first step of the network, a `Step` after
        each, an `Epoch` at the end of each, and a `Note` where there is something else to say.

    Returns
    -------
    Trained
        The model, the history of the run, and what its accuracy compares with.

    Raises
    ------
    UsageError
        For an option out of range, a network without PyTorch, a missing column, a null or unknown label, fewer than two
        classes, or a checkpoint that is missing, of another run, or there already without `resume`.
    SourceError
        For a file that cannot be read.
    BroadsheetError
        If training diverges, or one of several processes is lost.
    KeyboardInterrupt
        If Ctrl-C or SIGTERM stopped the run, after its checkpoint was written. A second one does not wait for that.

    Examples
    --------
    >>> trained = train("train.csv", text_column=["title", "body"], label_column="class", recipe=Recipe(epochs=10))
    >>> trained.model.save("news.safetensors")

    """
    if label_separator is not None and not multi_label:
        raise UsageError("a label separator is for several labels a text: --multi-label")
    if label_separator == "":
        raise UsageError("the label separator is empty")
    if dtype not in ("float16", "float32"):
        raise UsageError(f"dtype {dtype!r}: choose float16 or float32")
    texts = (text_column,) if isinstance(text_column, str) else tuple(text_column)
    label_columns = (label_column,) if isinstance(label_column, str) else tuple(label_column or ())
    others = {
        "numbers": target_column, "classes by name": classes, "several labels a text": multi_label,
        "teachers or soft labels": soft_labels,
    }  # fmt: skip
    if len(label_columns) > 1 and (found := [what for what, given in others.items() if given]):
        raise UsageError(
            f"with several label columns ({', '.join(label_columns)}) there are no {found[0]}: leave these out"
        )
    if len({*label_columns}) < len(label_columns):
        raise UsageError(f"a label column is named twice: {', '.join(label_columns)}")
    if multi_label and (balanced or soft_labels is not None):
        raise UsageError(
            "with several labels a text there are no balanced classes, teachers or soft labels: leave them out"
        )
    if target_column is not None:
        network = keep_network or init or recipe or settings or gpus or client or ngrams == 0 or device == "cuda"
        if network or label_columns or multi_label or soft_labels or balanced:
            raise UsageError(
                "a target column is learned by n-grams alone, on a CPU: leave out label column, soft labels, balanced "
                "classes, and what is for the network"
            )
        dtype = "float32"
    if loss not in LOSSES:
        raise UsageError(f"loss {loss!r}: choose one of {', '.join(LOSSES)}")
    if recipe is not None and settings:
        raise UsageError("give a recipe, or settings that differ from the default's")
    begin = beginning(init, alphabet, length, frame)
    alone = target_column is not None or (
        not (client or gpus or settings) and init is None and is_alone(recipe, ngrams, device)
    )
    if not alone:
        need_pytorch()
    if hold_out_share is None:
        hold_out_share = (0.0 if soft_labels is None else _HELD_OUT_OF_TAUGHT) if alone else _HELD_OUT
    several = (multi_label, label_separator)
    prepared = _prepared(
        source,
        test,
        texts,
        (label_columns, target_column),
        begin,
        hold_out_share,
        columns,
        classes,
        soft_labels,
        several,
    )
    data = prepared.data
    recipe = recipe or recipe_for(len(prepared.fit), settings)
    bits = ngram_bits(ngrams, len(data.classes))
    of_columns = [(column.labels[prepared.fit], len(data.classes[column.part])) for column in data.columns]
    objective: Objective = SeveralLabels()
    if not multi_label:
        objective = objective_of(of_columns, recipe.label_smoothing, balanced)
    job = TrainingJob(
        classes=data.classes,
        symbols=prepared.symbols,
        length=begin.length,
        frame=begin.frame,
        start=begin.tensors,
        recipe=recipe,
        objective=objective,
        seed=seed,
        device=device,
        precision=precision,
        checkpoint=checkpoint if checkpoint_every or resume else None,
        every=checkpoint_every,
        resume=resume,
    )
    on_start(data, len(prepared.held))
    repeated, tested = copies(data.text, prepared.tested.text if prepared.tested else None)
    rarely = [] if balanced or data.levels else rare(data, prepared.fit)
    for line in (*repeated.lines(), *tested.test_lines(), *rarely):
        tell(Note(line))
    branch = None
    if bits is not None:
        kinds = kinds_for(data.text, begin.length)
        named = chosen_vectors(vectors, len(prepared.fit))
        known = None if named is None else read_vectors(named, data.text)
        answers = Answers.of(data.labels, len(data.classes), balanced, data.heads)
        if data.levels is not None and data.numbers is not None:
            answers = answers._replace(steps=data.levels.steps(data.numbers), absolute=loss == "absolute")
        if prepared.sure is not None:
            answers = answers._replace(weights=prepared.sure, soft=prepared.targets)
        with threadpool_limits(free_cores(), "blas"):
            rows = prepared.fit, prepared.held
            on_gpu = client is None and (gpus or 1) == 1 and fits_on_gpu(device)  # else the GPUs are for its processes
            branch = fit_branch(data.text, answers, *rows, kinds, bits, balanced, known, tell, on_gpu)
        if known is not None:
            count = f"count {branch.settings.vectors:g}" if branch.settings.vectors else "do not help and are left out"
            tell(Note(f"word vectors of {known.about['name']} {count}, by cross-validation"))
        if data.levels is None:
            what = "the labels of " if multi_label or data.heads else ""
            with_labels = [column for column in data.columns if data.counts(column, branch.rows).any()]
            each = ((name, branch.share_right(labels, part)) for name, part, labels in with_labels)
            shares = ", ".join(f"{name} {share:.2%}".strip() for name, share in each)
            of_rows = f"{shares} of {what}{len(branch.rows):,} rows right"
            tell(Note(f"n-grams get {of_rows}, each row by a model that has not seen it"))
    targets = data.labels if prepared.targets is None else prepared.targets
    examples = Examples(data.ids, targets, prepared.fit, prepared.held)
    if targets.ndim == 1 and soft_labels is None:
        tell = Stuck(tell, data.labels[prepared.fit], len(data.classes), job.recipe)
    with interrupts_noted() as stop:
        if alone:
            if target_column is None:
                tell(Note("the model has n-grams only: without a GPU, the network is trained where epochs are given"))
            outcome = without_network(job)
        elif client is not None:
            from .on_cluster import run_on

            outcome = run_on(client, job, examples, gpus, tell, stop)
        elif gpus is not None and gpus > 1:
            from .processes import run_here

            outcome = run_here(job, examples, gpus, tell, stop)
        else:
            from .loop import run

            outcome = run(job, examples, tell, stop)
    card = {**(about or {}), **repeated.about()}
    if soft_labels:
        right = {} if prepared.taught_right is None else {"teacher_accuracy": round(prepared.taught_right, 6)}
        card["soft_labels"] = {**soft_labels.about(), **right}
    model, compared = model_of(outcome, job, prepared, dtype, card, branch, keep_network)
    if outcome.is_trained and not model.has_network:
        told = "the held-out rows are not clearly likelier with the network, which --keep-network would keep"
        tell(Note(f"the model has n-grams only: {told}"))
    return Trained(model, outcome.history, compared.get(""), compared if data.heads else {})


def rare(data: LabelledArticles, rows: NDArray[np.int64]) -> Iterator[str]:
    """For the user, where some classes have few of these rows: a tenth of what the classes have on average, or less."""
    for column in () if data.is_multi_label else data.columns:
        counts, names = data.counts(column, rows), data.classes[column.part]
        few = [f"{names[i]} {counts[i]:,}" for i in np.flatnonzero(counts <= _RARE * counts.mean())[:_RARE_SHOWN]]
        if few:
            remedy = "is seldom given: where it is as important as the others, --balanced"
            yield f"warning: a class of few rows ({', '.join(few)}; {counts.mean():,.0f} on average) {remedy}"


def _prepared(
    source: Any,
    test: Any,
    text_columns: tuple[str, ...],
    columns_of: tuple[tuple[str, ...], str | None],
    begin: Beginning,
    hold_out_share: float,
    columns: Iterable[str] | None,
    classes: Iterable[str] | None,
    soft: SoftLabels | None,
    several: tuple[bool, str | None],
) -> TrainingData:
    """Read `source`, and `test` where it is not None, and hold rows out. Arguments and errors are those of `train`.

    several: whether an article may have several labels, and what is between two of them. columns_of: labels, targets.
    """
    if not 0 <= hold_out_share <= 0.5:
        raise UsageError(f"{hold_out_share} of the rows cannot be held out: at most half of them")
    try:
        symbols = Alphabet(begin.alphabet)
    except ValueError as error:
        raise UsageError(f"the alphabet: {error}") from error
    reading = ArticleReader(text_columns, symbols, begin.length, None if columns is None else tuple(columns))
    names = None if classes is None else tuple(classes)
    label_columns, target = columns_of
    label_column = next(iter(label_columns), None)
    learned: tuple[Any, ...] = ()
    if soft is not None:
        taught = soft.read(source, reading, label_column, names)
        texts = taught.data.text.numbered()
        fit, held = hold_out_labelled(taught.data.labels, taught.labelled, hold_out_share, texts)
        taught = soft.taught(taught, held)
        data = taught.data
        learned = taught.targets(soft.share, held), taught.sure(), taught.right(held)
    elif target is not None:
        data = read_numbers(source, reading, target, names)
        fit, held = hold_out(data.labels, hold_out_share, data.text.numbered())
    elif label_column is not None:
        if len(label_columns) > 1:
            data = read_heads(source, reading, label_columns)
        else:
            data = read_labelled(source, reading, label_column, names, *several)
        fit, held = hold_out(strata(data.labels), hold_out_share, data.text.numbered())
    else:
        raise UsageError("there is nothing to learn: name a column with labels, or where soft labels come from")
    if not np.ptp(data.text.numbered()[fit]):
        raise UsageError("all rows that are trained on have the same text: give two texts or more")
    tested = None
    if test is not None:
        if target is not None:
            tested = read_numbers(test, reading, target, names, data)
        elif label_column is None:
            raise UsageError("the rows to test on need labels: name their column")
        elif data.heads is not None:
            tested = read_heads(test, reading, label_columns, data)
        else:
            tested = read_labelled(test, reading, label_column, data.classes, *several)
    return TrainingData(data, tested, fit, held, symbols, *learned)
