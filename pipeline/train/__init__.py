"""Training: makes a `Model` from labelled articles.

The network needs PyTorch (the extra `train-network`); n-grams do not. The stages:

1. `data.py` reads and encodes the articles; some of them are held out. With soft labels, `teachers.py` reads them.
2. `branch.py` fits the n-grams beside the network, or a head on an encoder, which `fine_tune.py` may train before.
3. `job.py` describes the run of the network: `loop.py` minimises a loss of `objective.py`.
4. `after.py` makes a model of the weights, with its card.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..engine.base import Texts
from ..engine.open import opened
from ..errors import UsageError
from ..evaluation.chain import Top, answers_of, fitted_chain, refuse_few
from ..evaluation.rows import hold_out, strata
from ..model.alphabet import Alphabet
from ..model.cascade import AGREEMENT
from ..model.charcnn import Model
from ..model.loading import load_encoder
from ..model.model_file import COLUMNS_CARD
from ..options.training import TRAIN, TrainKeywords, TrainRequest
from ..processes.threads import free_cores
from ..source.rows.label_map import read_label_map, unmatched
from ..source.rows.labels import class_numbers_line
from .after import Compared, Parts, model_of
from .answers import Answers
from .branch import Branch, fit_branch, fit_head
from .copies import copies
from .corrections import corrected
from .data import (
    ArticleReader,
    LabelledArticles,
    TrainingData,
    read_heads,
    read_labelled,
    read_numbers,
)
from .job import Examples, Outcome, TrainingJob, without_network
from .objective import Objective, SeveralLabels, objective_of
from .oddities import oddities
from .progress import Cost, Epoch, Fit, Note, Odd, Oddities, RowsDone, Step, Stuck, interrupts_noted
from .recipe import Beginning, Recipe, beginning, fits_on_gpu, kinds_for, need_pytorch, ngram_bits, recipe_for, sees_gpu
from .teachers import SoftLabels, Taught, hold_out_labelled
from .vectors import chosen_vectors, read_vectors

if TYPE_CHECKING:
    from ..model.encoder import Encoder
    from ..model.torch_encoder import TorchEncoder

__all__ = [
    "Cost", "Epoch", "Fit", "Note", "Odd", "Oddities", "Recipe", "RowsDone", "SoftLabels", "Step", "Trained",
    "odd_rows", "train",
]  # fmt: skip

CHECKPOINT = ".checkpoint"
"""What the name of a checkpoint adds to the name of the model file."""

_HELD_OUT = 0.05  # the share of rows to hold out from a network
_HELD_OUT_OF_TUNED = 0.1  # from an encoder that is fine-tuned
_LEAST_HELD_OUT = 4  # the fewest rows that can choose an epoch of fine-tuning
# Rows that are held out in turn would not measure a student: its teacher has learned their labels, and passes them on.
_HELD_OUT_OF_TAUGHT = 0.2


@dataclass(frozen=True)
class Trained:
    """The result of `train`.

    Attributes
    ----------
    model : Model
        The model. Its weights are the averaged weights, rounded to the dtype in which they are stored. Its card says
        how they were trained.
    history : tuple of Epoch
        Number, training loss and held-out accuracy of each epoch; empty if neither a network nor an encoder was
        trained.
    compared : Compared, optional
        The accuracy on held-out rows, and that of two simple models, if there are such rows. If a teacher labelled
        these rows, it is the agreement with the teacher.
    compared_columns : dict of str to Compared
        The same for each of several label columns, by the name of the column, instead of `compared`.
    suspects : pyarrow.Table, optional
        With ``suspects=True``: the rows whose label, `truth`, is probably wrong, with the class that is probably right,
        `label`. The models that decide this were not fitted to these rows.

    """

    model: Model
    history: tuple[Epoch, ...]
    compared: Compared | None = None
    compared_columns: Mapping[str, Compared] | None = None
    suspects: pa.Table | None = None


@TRAIN.takes(TrainKeywords)
def train(source: Any, **options: Unpack[TrainKeywords]) -> Trained:
    """Train a network with n-grams beside it, or a head on an encoder, on every labelled article of `source`.

    The n-grams are fitted first, as a linear model whose settings cross-validation chooses. Then the network is
    trained. Without a GPU that would take hours, so it is trained there only if an option asks for it, such as
    `recipe` or ``ngrams=0``. The model's logits are a weighted sum of both, with the weights that fit the held-out rows
    best.

    A model with a network gets the activation scales that int8 needs, from up to 2,048 articles of its training rows.
    If at least 100 rows are held out, at once or in turn, the model gets the temperature at which its scores fit these
    rows best.

    Parameters
    ----------
    source : str, path, Paths, list of str, pandas, Arrow or Dask object
        Anything that `classify` takes.
    **options
        What the model learns, and how.

    Returns
    -------
    Trained
        The model, the history of the run, and the comparison with simple models.

    Raises
    ------
    UsageError
        For an option out of range, a network without PyTorch, a missing column, an unknown label, fewer than two
        classes, or a checkpoint that is missing, that is of another run, or that exists already without `resume`.
    SourceError
        For a file that cannot be read.
    BroadsheetError
        If training diverges, or if one of several processes is lost.
    KeyboardInterrupt
        If Ctrl-C or SIGTERM stopped the run, after it wrote its checkpoint. A second interrupt does not wait for that.

    Examples
    --------
    >>> trained = broadsheet.train("news.csv", text_column=["title", "body"], label_column="topic", device="cpu")
    >>> trained.model.classes
    ('Business', 'Sports')

    """
    # Decide what to train: a network, n-grams alone, or an encoder; and check that the packages for it are there.
    request = TrainRequest(**options)
    begin = beginning(request.init, request.alphabet, request.length, request.frame)
    excludes_network = request.learns_numbers or request.keep_teacher or request.encoder is not None
    trains_network = not excludes_network and (request.needs_network or sees_gpu(request.device))
    encoder = None if request.encoder is None else load_encoder(request.encoder)
    if request.fine_tune or trains_network:
        need_pytorch("fine-tuning" if request.fine_tune else "the network")
    # Read the rows, hold some out, and report repeated texts.
    history, tuning = tuple[Epoch, ...](), dict[str, Any]()
    prepared = _read(source, request, begin, _share_to_hold_out(request, trains_network))
    job = _job_of(request, begin, prepared)
    data = prepared.data
    bits = ngram_bits(request.ngrams, len(data.classes))
    request.on_start(data, len(prepared.held))
    repeated, tested = copies(data.text, prepared.tested.text if prepared.tested else None)
    for line in (*repeated.lines(), *tested.test_lines()):
        request.tell(Note(line))
    # Fit the head of an encoder, or the n-grams; then train the network.
    if encoder is not None:
        request.tell(Note(f"{request.encoder} makes a vector of each text, and to these a head is fitted"))
        answers = _answers(request, prepared)
        branch: Branch | None
        if request.fine_tune:
            branch, history, tuning = _fine_tuned(encoder, answers, request, prepared)
        else:
            branch = fit_head(encoder, data.text, answers, prepared.fit, prepared.held, request.tell)
    else:
        branch = None if bits is None else _fit_ngrams(request, prepared, begin.length, bits)
    outcome = _train_network(request, job, prepared) if trains_network else without_network(job)
    if not trains_network and not excludes_network:
        request.tell(Note("the model has n-grams only; to train a network too without a GPU, set the epochs"))
    # Make a model of both, with its card; with a kept teacher, a chain.
    card = {**(request.about or {}), **repeated.about(), COLUMNS_CARD: _columns(request)}
    if request.encoder is not None:
        card["encoder"] = str(request.encoder)
        if tuning:
            card["fine-tuning"] = tuning
    if request.soft_labels:
        right = {} if prepared.taught_right is None else {"teacher_accuracy": round(prepared.taught_right, 6)}
        card["soft_labels"] = {**request.soft_labels.about(), **right}
    parts = Parts(outcome, job, prepared, request.dtype, branch, request.keep_network)
    model, compared, suspects = model_of(parts, card, request.suspects)
    if request.keep_teacher:
        model = _chain(model, request, prepared)
    if outcome.is_trained and not model.has_network:
        reason = "the held-out rows are not clearly likelier with the network, which --keep-network would keep"
        request.tell(Note(f"the model has n-grams only: {reason}"))
    return Trained(model, history or outcome.history, compared.get(""), compared if data.heads else {}, suspects)


def _share_to_hold_out(request: TrainRequest, trains_network: bool) -> float:
    """Return the share of rows to hold out: that of the user, or else one that suits the model."""
    given: float | None = request.hold_out_share
    if given is not None:
        return given
    if request.fine_tune:
        return _HELD_OUT_OF_TUNED
    if trains_network:
        return _HELD_OUT
    return 0.0 if request.soft_labels is None else _HELD_OUT_OF_TAUGHT  # 0: cross-validation holds out rows in turn


def _fine_tuned(
    encoder: Encoder | TorchEncoder, answers: Answers, request: TrainRequest, prepared: TrainingData
) -> tuple[Branch, tuple[Epoch, ...], dict[str, Any]]:
    """Fine-tune an encoder and fit a head. Returns the branch, the epochs, and what the card says about them.

    With few rows, there are two runs: the first one without the held-out rows, which then measure how good such a model
    is, and the second one with them, since a tenth more rows makes a model of few rows better. Raises UsageError for
    too few held-out rows.
    """
    # Choose the settings.
    from .fine_tune import FEW_ROWS, Tuning, fine_tune

    if len(prepared.held) < _LEAST_HELD_OUT:
        raise UsageError(
            f"{len(prepared.held)} held-out rows cannot choose how long an encoder is to learn: give more rows, or "
            "hold more of them out"
        )
    tuning = Tuning.of(len(prepared.fit), request.settings or (), answers.steps is None and answers.labels.ndim == 1)
    options: dict[str, Any] = {"tuning": tuning, "seed": request.seed, "tell": request.tell}
    options["device"] = "cuda" if sees_gpu(request.device) else "cpu"
    text, fit, held = prepared.data.text, prepared.fit, prepared.held
    # Fine-tune on the training rows, and fit a head, which gives the logits of the held-out rows.
    with interrupts_noted() as stop:
        tuned = fine_tune(encoder, text, answers, fit, held, **options, stop=stop)
        if stop():
            request.tell(Note(f"interrupted: the model has the encoder of epoch {tuned.about['epoch']}"))
        branch = fit_head(tuned.encoder, text, answers, fit, held, request.tell)
        # With few rows, fine-tune again on all of them. The logits remain those of the first encoder.
        if len(fit) < FEW_ROWS and not stop():
            every, none = np.sort(np.concatenate([fit, held])), held[:0]
            request.tell(Note(f"the encoder now learns all {len(every):,} rows, with those that were held out"))
            again = fine_tune(encoder, text, answers, every, none, **options, stop=stop)
            if stop():
                request.tell(Note("interrupted: the model is the one that has not learned the held-out rows"))
            else:
                whole = fit_head(again.encoder, text, answers, every, none, request.tell)
                branch = branch._replace(encoder=whole.encoder, bias=whole.bias, has_learned_held=True)
    return branch, tuned.history, tuned.about | {"learned held-out rows": branch.has_learned_held}


def _columns(request: TrainRequest) -> dict[str, Any]:
    """Return the columns that the model learned from, for its card."""
    labels = request.label_column or ((request.target_column,) if request.target_column else ())
    joined = {} if request.join is None else {"join": request.join}
    return {"text": list(request.text_column or ("text",)), "label": list(labels), **joined}


def _chain(first: Model, request: TrainRequest, prepared: TrainingData) -> Model:
    """Make a chain of the n-grams and the teacher, which answers if the n-grams are not sure.

    The held-out rows determine how sure they must be.
    """
    assert prepared.answers is not None
    encoder, held = request.soft_labels.encoder, prepared.held
    with opened([first], request.device) as (engine,):
        given = engine.classify(Texts(*prepared.data.text.rows(held)), all_scores=True)
    top = Top.of(request.top, request.recall, request.top_of, encoder)
    return fitted_chain(first, encoder, answers_of(first, given), prepared.answers[held], AGREEMENT, top)


def _job_of(request: TrainRequest, begin: Beginning, prepared: TrainingData) -> TrainingJob:
    """Return the job of the network's run."""
    data = prepared.data
    recipe = request.recipe or recipe_for(len(prepared.fit), request.settings)
    of_columns = [(column.labels[prepared.fit], len(data.classes[column.part])) for column in data.columns]
    objective: Objective = SeveralLabels()
    if not request.multi_label:
        objective = objective_of(of_columns, recipe.label_smoothing, request.balanced)
    with_checkpoint = request.checkpoint is not None and (request.checkpoint_every or request.resume)
    return TrainingJob(
        classes=data.classes,
        symbols=prepared.symbols,
        length=begin.length,
        frame=begin.frame,
        start=begin.tensors,
        recipe=recipe,
        objective=objective,
        seed=request.seed,
        device=request.device,
        precision=request.precision,
        checkpoint=Path(request.checkpoint) if with_checkpoint else None,
        every=request.checkpoint_every,
        resume=request.resume,
    )


def _answers(request: TrainRequest, prepared: TrainingData) -> Answers:
    """Return what linear models learn of all rows."""
    data = prepared.data
    answers = Answers.of(data.labels, len(data.classes), request.balanced, data.heads)
    if data.levels is not None and data.numbers is not None:
        answers = answers._replace(steps=data.levels.steps(data.numbers), absolute=request.loss == "absolute")
    if prepared.sure is not None:
        answers = answers._replace(weights=prepared.sure, soft=prepared.targets)
    return answers


def _fit_ngrams(request: TrainRequest, prepared: TrainingData, length: int, bits: int) -> Branch:
    """Fit the branch of n-grams, in 2^bits buckets, beside a network that reads `length` characters."""
    data, answers = prepared.data, _answers(request, prepared)
    kinds = kinds_for(data.text, length)
    named = chosen_vectors(request.vectors, len(prepared.fit))
    known = read_vectors(named, data.text, request.device, request.tell) if named else None
    in_one_process = request.client is None and (request.gpus or 1) == 1  # several processes need the GPUs themselves
    on_gpu = in_one_process and fits_on_gpu(request.device)
    learned, settings = (data.text, answers, prepared.fit, prepared.held), (kinds, bits, request.balanced, known)
    with threadpool_limits(free_cores(), "blas"):
        branch = fit_branch(*learned, *settings, request.tell, on_gpu)
    if known is not None:
        count = f"count {branch.settings.vectors:g}" if branch.settings.vectors else "do not help and are left out"
        request.tell(Note(f"word vectors of {known.about['name']} {count}, by cross-validation"))
    if data.levels is None:
        what = "the labels of " if request.multi_label or data.heads else ""
        with_labels = [column for column in data.columns if data.counts(column, branch.rows).any()]
        right = ((name, branch.share_right(labels, part)) for name, part, labels in with_labels)
        shares = ", ".join(f"{name} {share:.2%}".strip() for name, share in right)
        each = "each row by a model that has not seen it"
        if data.are_taught(branch.rows):
            request.tell(Note(f"n-grams agree with the teacher on {shares} of {len(branch.rows):,} rows, {each}"))
        else:
            request.tell(Note(f"n-grams get {shares} of {what}{len(branch.rows):,} rows right, {each}"))
    return branch


def _train_network(request: TrainRequest, job: TrainingJob, prepared: TrainingData) -> Outcome:
    """Run a job on a cluster, in several processes, or in this process."""
    data, tell = prepared.data, request.tell
    targets = data.labels if prepared.targets is None else prepared.targets
    examples = Examples(data.ids, targets, prepared.fit, prepared.held)
    if targets.ndim == 1 and request.soft_labels is None:
        tell = Stuck(tell, data.labels[prepared.fit], len(data.classes), job.recipe)
    with interrupts_noted() as stop:
        if request.client is not None:
            from .on_cluster import run_on

            return run_on(request.client, job, examples, request.gpus, tell, stop)
        if request.gpus is not None and request.gpus > 1:
            from .processes import run_here

            return run_here(job, examples, request.gpus, tell, stop)
        from .loop import run

        return run(job, examples, tell, stop)


class _Given(NamedTuple):
    """The labelled rows of a source.

    Attributes
    ----------
    data : LabelledArticles
        The rows.
    taught : Taught or None
        The same rows with their soft labels, if there are teachers or columns for these. The teachers have not answered
        yet.
    symbols : Alphabet
        The alphabet of the model.
    read : callable
        Reads other rows, with the same classes.
    odd : tuple of Odd
        The oddities of the rows.
    decided : bool [N], optional
        The rows whose label a person has decided.

    """

    data: LabelledArticles
    taught: Taught | None
    symbols: Alphabet
    read: Callable[[Any], LabelledArticles]
    odd: tuple[Odd, ...]
    decided: NDArray[np.bool_] | None = None


def _given(source: Any, request: TrainRequest, begin: Beginning) -> _Given:
    """Read the rows to learn, and report what is odd in them. Raises the errors of `train`."""
    # Prepare to read articles with the alphabet, the options and the label map.
    try:
        symbols = Alphabet(begin.alphabet)
    except ValueError as error:
        raise UsageError(f"the alphabet: {error}") from error
    classes_of = {} if request.map_labels is None else read_label_map(request.map_labels)
    reading = ArticleReader(request.text_column, symbols, begin.length, request.reading, classes_of, request.id_column)
    names, soft = request.classes, request.soft_labels
    if not (request.label_column or request.target_column or soft):
        reading.refuse_without_labels(source)
    label_column = next(iter(request.label_column), None)

    def labelled(rows: Any, like: LabelledArticles | None = None) -> LabelledArticles:
        if request.target_column is not None:
            return read_numbers(rows, reading, request.target_column, names, like)
        if len(request.label_column) > 1:
            return read_heads(rows, reading, request.label_column, like)
        classes = names if like is None else like.classes
        return read_labelled(rows, reading, label_column or "", classes, request.multi_label, request.label_separator)

    # Read the source, and apply corrections.
    taught = None if soft is None else soft.read(source, reading, label_column, names)
    data, decided = labelled(source) if taught is None else taught.data, None
    if request.corrections is not None:
        path = Path(request.corrections)
        data, corrections, decided = corrected(data, path, symbols, begin.length, keep_classes=names is not None)
        request.tell(Note(corrections.line(path)))
    # Report how class numbers were read, and what is odd.
    if data.numbers_from is not None:
        request.tell(Note(class_numbers_line(data.numbers_from, data.classes)))
    leaves_out = any(classes_of[label] == "" for label in reading.matched)
    odd = oddities(data, request.balanced, unmatched(classes_of, reading.matched), leaves_out)
    request.tell(Oddities(odd))
    return _Given(data, taught, symbols, lambda rows: labelled(rows, data), odd, decided)


def _read(source: Any, request: TrainRequest, begin: Beginning, hold_out_share: float) -> TrainingData:
    """Read `source` and the test rows, and hold rows out. Raises the errors of `train`."""
    given = _given(source, request, begin)
    data, taught, soft = given.data, given.taught, request.soft_labels
    learned: dict[str, Any] = {}
    if given.decided is not None:
        learned["decided"] = given.decided
    # Hold rows out. With soft labels, only labelled rows are held out, and teachers answer after that.
    if taught is None or soft is None:
        fit, held = hold_out(strata(data.labels), hold_out_share, data.text.numbered())
    else:
        texts = data.text.numbered()
        fit, held = hold_out_labelled(data.labels, taught.labelled, hold_out_share, texts)
        if request.keep_teacher:
            top = Top.of(request.top, request.recall, request.top_of, soft.encoder)
            refuse_few(len(held), AGREEMENT, top, len(texts))
        taught = soft.taught(taught, held, request.tell)
        data = replace(taught.data, taught=~taught.labelled)
        fit, held = (rows[taught.answered[rows]] for rows in (fit, held))
        if unknown := np.count_nonzero(~taught.answered):
            request.tell(Note(f"{unknown:,} rows have no label, and no probabilities of a teacher: they are left out"))
        learned["answers"] = taught.probabilities
        if data.levels is None:
            right = taught.right(held)
            learned |= {"targets": taught.targets(soft.share, held), "sure": taught.sure(), "taught_right": right}
    # Refuse rows that all have the same text, and read the test rows.
    if len(np.unique(data.text.numbered()[fit])) < 2:
        raise UsageError("all rows that are trained on have the same text: give two texts or more")
    tested = None if request.test is None else given.read(request.test)
    return TrainingData(data, tested, fit, held, given.symbols, **learned)


@TRAIN.takes(TrainKeywords)
def odd_rows(source: Any, **options: Unpack[TrainKeywords]) -> tuple[Odd, ...]:
    """Find what is odd in labelled rows, without training a model.

    Parameters
    ----------
    source : str, path, Paths, list of str, pandas, Arrow or Dask object
        Anything that `classify` takes.
    **options
        The options of `train`.

    Returns
    -------
    tuple of Odd
        Rows that are left out because they have no label or no text; labels of `map_labels` that no row has; classes
        that look like spellings of one class; texts with different labels; and classes with few rows.

    Raises
    ------
    UsageError
        If `train` would raise it while it reads the rows.
    SourceError
        For a file that cannot be read.

    """
    request = TrainRequest(**options)
    begin = beginning(request.init, request.alphabet, request.length, request.frame)
    return _given(source, request, begin).odd
