"""Training: labelled articles in, a `Model` out. The network needs PyTorch (the extra `train-network`), n-grams do not.

In stages: `data.py` (articles, encoded, and those held out), `branch.py` (the n-grams beside the network), `job.py`
(the network's run: `loop.py` minimises what `objective.py` says), `after.py` (from weights to a model and its card).
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
from ..model.charcnn import Model, load_encoder
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
_HELD_OUT = 0.05
_HELD_OUT_OF_TUNED, _LEAST_HELD_OUT = 0.1, 4
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
        The accuracy on held-out rows beside that of two simple models, where there are such rows. Where their labels
        are a teacher's it is agreement with these.
    compared_columns : dict of str to Compared
        Of several label columns, by the name of each, in place of `compared`.
    suspects : pyarrow.Table, optional
        With ``suspects=True``: the rows whose label, `truth`, is probably wrong, and which is probably right, `label`.
        The models that say so were not fitted to these rows.

    """

    model: Model
    history: tuple[Epoch, ...]
    compared: Compared | None = None
    compared_columns: Mapping[str, Compared] | None = None
    suspects: pa.Table | None = None


@TRAIN.takes(TrainKeywords)
def train(source: Any, **options: Unpack[TrainKeywords]) -> Trained:
    """Train the network, and n-grams beside it, or a head on an encoder, on every labelled article of `source`.

    The n-grams are fitted first, as a linear model whose settings are chosen by cross-validation. Then the network is
    trained, unless that would take hours: without a GPU only where `recipe` or ``ngrams=0`` asks for it. The sum of
    their logits is weighted to fit the held-out rows best.

    The model gets the activation scales that int8 needs, found on up to 2,048 of the articles it was trained on, and
    the temperature at which its scores fit the held-out rows best, where there are 100 or more.

    Parameters
    ----------
    source : str, path, Paths, list of str, pandas, Arrow or Dask object
        Anything that `classify` takes.
    **options
        What is learned, and how.

    Returns
    -------
    Trained
        The model, the history of the run, and what its accuracy compares with.

    Raises
    ------
    UsageError
        For an option out of range, a network without PyTorch, a missing column, an unknown label, fewer than two
        classes, or a checkpoint that is missing, of another run, or there already without `resume`.
    SourceError
        For a file that cannot be read.
    BroadsheetError
        If training diverges, or one of several processes is lost.
    KeyboardInterrupt
        If Ctrl-C or SIGTERM stopped the run, after its checkpoint was written. A second one does not wait for that.

    Examples
    --------
    >>> trained = broadsheet.train("news.csv", text_column=["title", "body"], label_column="topic", device="cpu")
    >>> trained.model.classes
    ('Business', 'Sports')

    """
    request = TrainRequest(**options)
    begin = beginning(request.init, request.alphabet, request.length, request.frame)
    without = request.learns_numbers or request.keep_teacher or request.encoder is not None
    alone = without or not (request.needs_network or sees_gpu(request.device))
    encoder = None if request.encoder is None else load_encoder(request.encoder)
    if request.fine_tune or not alone:
        need_pytorch("fine-tuning" if request.fine_tune else "the network")
    share, history, tuning = request.hold_out_share, tuple[Epoch, ...](), dict[str, Any]()
    if share is None and request.fine_tune:
        share = _HELD_OUT_OF_TUNED
    elif share is None:
        share = (0.0 if request.soft_labels is None else _HELD_OUT_OF_TAUGHT) if alone else _HELD_OUT
    prepared = _read(source, request, begin, share)
    job = _job_of(request, begin, prepared)
    data = prepared.data
    bits = ngram_bits(request.ngrams, len(data.classes))
    request.on_start(data, len(prepared.held))
    repeated, tested = copies(data.text, prepared.tested.text if prepared.tested else None)
    for line in (*repeated.lines(), *tested.test_lines()):
        request.tell(Note(line))
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
    outcome = without_network(job) if alone else _train_network(request, job, prepared)
    if alone and not without:
        request.tell(Note("the model has n-grams only; to train a network too without a GPU, set the epochs"))
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


def _fine_tuned(
    encoder: Encoder | TorchEncoder, answers: Answers, request: TrainRequest, prepared: TrainingData
) -> tuple[Branch, tuple[Epoch, ...], dict[str, Any]]:
    """An encoder that has learned the rows, with a head; the epochs, and what the card says of them.

    Few rows are learned twice: first without the held-out ones, which then say how good such a model is, and again
    with them, since a tenth more of few rows makes a model better. Raises UsageError for too few held-out rows.
    """
    from .fine_tune import FEW_ROWS, Tuning, fine_tune

    if len(prepared.held) < _LEAST_HELD_OUT:
        raise UsageError(
            f"{len(prepared.held)} held-out rows cannot choose how long an encoder is to learn: give more rows, or "
            "hold more of them out"
        )
    tuning = Tuning.of(len(prepared.fit), request.settings or (), answers.steps is None and answers.labels.ndim == 1)
    how: dict[str, Any] = {"tuning": tuning, "seed": request.seed, "tell": request.tell}
    how["device"] = "cuda" if sees_gpu(request.device) else "cpu"
    text, fit, held = prepared.data.text, prepared.fit, prepared.held
    with interrupts_noted() as stop:
        tuned = fine_tune(encoder, text, answers, fit, held, **how, stop=stop)
        if stop():
            request.tell(Note(f"interrupted: the model has the encoder of epoch {tuned.about['epoch']}"))
        branch = fit_head(tuned.encoder, text, answers, fit, held, request.tell)
        if len(fit) < FEW_ROWS and not stop():
            every, none = np.sort(np.concatenate([fit, held])), held[:0]
            request.tell(Note(f"the encoder now learns all {len(every):,} rows, with those that were held out"))
            again = fine_tune(encoder, text, answers, every, none, **how, stop=stop)
            if stop():
                request.tell(Note("interrupted: the model is the one that has not learned the held-out rows"))
            else:
                whole = fit_head(again.encoder, text, answers, every, none, request.tell)
                branch = branch._replace(encoder=whole.encoder, bias=whole.bias, has_learned_held=True)
    return branch, tuned.history, tuned.about | {"learned held-out rows": branch.has_learned_held}


def _columns(request: TrainRequest) -> dict[str, Any]:
    """The columns that the model learned from, as its card has them."""
    labels = request.label_column or ((request.target_column,) if request.target_column else ())
    joined = {} if request.join is None else {"join": request.join}
    return {"text": list(request.text_column or ("text",)), "label": list(labels), **joined}


def _chain(first: Model, request: TrainRequest, prepared: TrainingData) -> Model:
    """The n-grams, and the teacher that is asked where they are not sure, by the held-out rows."""
    assert prepared.answers is not None
    encoder, held = request.soft_labels.encoder, prepared.held
    with opened([first], request.device) as (engine,):
        given = engine.classify(Texts(*prepared.data.text.rows(held)), all_scores=True)
    top = Top.of(request.top, request.recall, request.top_of, encoder)
    return fitted_chain(first, encoder, answers_of(first, given), prepared.answers[held], AGREEMENT, top)


def _job_of(request: TrainRequest, begin: Beginning, prepared: TrainingData) -> TrainingJob:
    """The run of the network."""
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
    """What linear models learn of all rows."""
    data = prepared.data
    answers = Answers.of(data.labels, len(data.classes), request.balanced, data.heads)
    if data.levels is not None and data.numbers is not None:
        answers = answers._replace(steps=data.levels.steps(data.numbers), absolute=request.loss == "absolute")
    if prepared.sure is not None:
        answers = answers._replace(weights=prepared.sure, soft=prepared.targets)
    return answers


def _fit_ngrams(request: TrainRequest, prepared: TrainingData, length: int, bits: int) -> Branch:
    """The branch of n-grams, in 2^bits buckets, beside a network that reads `length` characters."""
    data, answers = prepared.data, _answers(request, prepared)
    kinds = kinds_for(data.text, length)
    named = chosen_vectors(request.vectors, len(prepared.fit))
    known = read_vectors(named, data.text, request.device, request.tell) if named else None
    in_one_process = request.client is None and (request.gpus or 1) == 1  # of several, the GPUs are for them
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
    """Run a job: on a cluster, in several processes, or here."""
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
        The same rows, where a teacher or columns give soft labels; teachers have answered nothing yet.
    symbols : Alphabet
        The alphabet of the model.
    read : callable
        Reads other rows, with the same classes.
    odd : tuple of Odd
        What is odd in them.
    decided : bool [N], optional
        Of which rows a person has decided what the label is.

    """

    data: LabelledArticles
    taught: Taught | None
    symbols: Alphabet
    read: Callable[[Any], LabelledArticles]
    odd: tuple[Odd, ...]
    decided: NDArray[np.bool_] | None = None


def _given(source: Any, request: TrainRequest, begin: Beginning) -> _Given:
    """Read the rows to learn, and report what is odd in them. Errors are those of `train`."""
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

    taught = None if soft is None else soft.read(source, reading, label_column, names)
    data, decided = labelled(source) if taught is None else taught.data, None
    if request.corrections is not None:
        of_new = Path(request.corrections), symbols, begin.length, names is not None
        data, corrections, decided = corrected(data, *of_new)
        request.tell(Note(corrections.line(Path(request.corrections))))
    if data.numbers_from is not None:
        request.tell(Note(class_numbers_line(data.numbers_from, data.classes)))
    leaves_out = any(classes_of[label] == "" for label in reading.matched)
    odd = oddities(data, request.balanced, unmatched(classes_of, reading.matched), leaves_out)
    request.tell(Oddities(odd))
    return _Given(data, taught, symbols, lambda rows: labelled(rows, data), odd, decided)


def _read(source: Any, request: TrainRequest, begin: Beginning, hold_out_share: float) -> TrainingData:
    """Read `source`, and the rows to test on, and hold rows out. Errors are those of `train`."""
    given = _given(source, request, begin)
    data, taught, soft = given.data, given.taught, request.soft_labels
    learned: dict[str, Any] = {}
    if given.decided is not None:
        learned["decided"] = given.decided
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
    if len(np.unique(data.text.numbered()[fit])) < 2:
        raise UsageError("all rows that are trained on have the same text: give two texts or more")
    tested = None if request.test is None else given.read(request.test)
    return TrainingData(data, tested, fit, held, given.symbols, **learned)


@TRAIN.takes(TrainKeywords)
def odd_rows(source: Any, **options: Unpack[TrainKeywords]) -> tuple[Odd, ...]:
    """Say what is odd in labelled rows, without training anything.

    Parameters
    ----------
    source : str, path, Paths, list of str, pandas, Arrow or Dask object
        Anything that `classify` takes.
    **options
        As of `train`.

    Returns
    -------
    tuple of Odd
        Rows that are left out, since they have no label or no text; labels of `map_labels` that no row has; classes
        that look like spellings of one; texts with different labels; and classes of few rows.

    Raises
    ------
    UsageError
        As `train` does for what it reads.
    SourceError
        For a file that cannot be read.

    """
    request = TrainRequest(**options)
    begin = beginning(request.init, request.alphabet, request.length, request.frame)
    return _given(source, request, begin).odd
