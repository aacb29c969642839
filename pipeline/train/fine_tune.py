"""Fine-tuning: trains the weights of an encoder on labels, together with a linear head.

Only the encoder is used afterwards: `branch.fit_head` fits the final head. The loss of the head is the cross-entropy of
labels, or the squared error of numbers, as in Devlin et al., "BERT" (2019). From few rows, an encoder learns little
with this loss alone. So a second loss pulls texts of one class together and pushes others apart, for all pairs of a
batch at once: Khosla et al., "Supervised Contrastive Learning" (2020). SetFit (Tunstall et al., 2022) learns from pairs
as well.

The encoder keeps the weights of the epoch that is best on the held-out rows. If there are few rows, there are so few
held-out ones that they would choose by chance. The encoder then keeps the weights of the last epoch, and the held-out
rows only measure how good they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ..errors import BroadsheetError, UsageError
from ..model.encoder import Encoder
from ..model.stored_tokenizer import strings
from ..model.torch_encoder import TorchEncoder
from .answers import Answers
from .data import TextBuffers
from .progress import Cost, Epoch, Note, Step, Tell
from .tunable import tunable

RowNumbers = NDArray[np.int64]

FEW_ROWS = 2_000
"""With fewer rows than this, the loss of pairs is used, and the final model also learns the held-out rows."""

SETTINGS = ("epochs", "batch_size", "learning_rate")
_SCORED_AT_ONCE = 64  # texts
_MOST_TOKENS = 128
"""The tokens of a text from which the encoder learns. More tokens would add little, but take time in proportion."""


@dataclass(frozen=True)
class Tuning:
    """The settings of fine-tuning.

    Attributes
    ----------
    epochs : int
        Passes over the rows.
    batch_size : int
        Rows in a step.
    learning_rate : float
        Peak learning rate of the encoder's weights, for AdamW. The rate rises in the first tenth of the steps, and then
        falls to zero.
    contrast : float
        The factor of the loss of pairs, which is added to the loss of the head.
    head_rate : float
        Peak learning rate of the head, whose weights begin at zero.
    weight_decay : float
        Decay of all weights, multiplied by the learning rate.
    clip : float
        Maximum norm of the encoder's gradient.

    """

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    contrast: float = 0.0
    head_rate: float = 5e-3
    weight_decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name in SETTINGS:
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be above 0")

    @classmethod
    def of(cls, rows: int, settings: Sequence[str], has_classes: bool) -> Tuning:
        """Return the settings for a number of rows, with `NAME=VALUE` settings changed.

        Raises UsageError for a name that is not in SETTINGS. has_classes: whether each row has one class, which the
        loss of pairs needs.
        """
        tuning = cls(epochs=8, contrast=float(has_classes)) if rows < FEW_ROWS else cls()
        for setting in settings:
            name, _, value = setting.partition("=")
            if name not in SETTINGS:
                raise UsageError(f"fine-tuning has no setting {name!r}: choose one of {', '.join(SETTINGS)}")
            changed: dict[str, Any] = {name: float(value) if name == "learning_rate" else int(value)}
            tuning = replace(tuning, **changed)
        return tuning


class Tuned(NamedTuple):
    """The result of `fine_tune`.

    Attributes
    ----------
    encoder : Encoder or TorchEncoder
        The encoder with the best weights.
    history : tuple of Epoch
        The completed epochs.
    about : dict
        The settings and the chosen epoch, for a model's card.

    """

    encoder: Encoder | TorchEncoder
    history: tuple[Epoch, ...]
    about: dict[str, Any]


class _Rows(NamedTuple):
    """Rows to train on, or held-out rows.

    Attributes
    ----------
    texts : list
        The tokens of each text: an array of numbers, or a `tokenizers.Encoding`.
    targets : float32 [N, columns]
        The target probability of each class, or the number in steps.
    weights : float32 [N]
        The weight of each row.
    labels : int64 [N]
        The most probable class of each row.

    """

    texts: list[Any]
    targets: Tensor
    weights: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.texts)


class _Run:
    """An encoder and its head during training."""

    def __init__(self, encoder: Encoder | TorchEncoder, answers: Answers, tuning: Tuning, device: torch.device) -> None:
        self.tuning, self.device = tuning, device
        self._is_number, self._is_several = answers.steps is not None, answers.labels.ndim > 1
        self.module = tunable(encoder).to(device)
        self.head = nn.Linear(encoder.outputs, answers.columns).to(device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        learned = [one for one in self.module.parameters() if one.requires_grad]
        rates = [
            {"params": learned, "lr": tuning.learning_rate},
            {"params": self.head.parameters(), "lr": tuning.head_rate},
        ]
        self.optimizer = torch.optim.AdamW(rates, weight_decay=tuning.weight_decay)

    def loss(self, rows: _Rows, at: RowNumbers) -> Tensor:
        """Compute the mean loss of the rows with the numbers `at`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            vectors = self.module([rows.texts[row] for row in at]).float()
        where = torch.from_numpy(at)
        targets, weights = rows.targets[where].to(self.device), rows.weights[where].to(self.device)
        loss = (self._of_rows(self._logits(vectors), targets) * weights).mean()
        if self.tuning.contrast and len(at) > 1:
            loss = loss + self.tuning.contrast * _of_pairs(vectors, rows.labels[where].to(self.device))
        return loss

    def _logits(self, vectors: Tensor) -> Tensor:
        # The vectors have the length one; scaling makes their values about one on average.
        logits: Tensor = self.head(vectors * vectors.shape[1] ** 0.5)
        return logits

    def _of_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of each row, [N]."""
        if self._is_number:
            return functional.mse_loss(logits, targets, reduction="none")[:, 0]
        if self._is_several:
            return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
        return functional.cross_entropy(logits, targets, reduction="none")

    def measured(self, rows: _Rows) -> tuple[float, float]:
        """Return the share of held-out rows that are right, and their mean loss.

        For numbers, the share is that of the variance that the model explains. For several labels, it is the share of
        all pairs of a row and a class.
        """
        logits = []
        self.module.eval()
        with torch.inference_mode():
            for first in range(0, len(rows), _SCORED_AT_ONCE):
                vectors = self.module(rows.texts[first : first + _SCORED_AT_ONCE]).float()
                logits.append(self._logits(vectors).cpu())
        self.module.train()
        found = torch.cat(logits)
        loss = float((self._of_rows(found, rows.targets) * rows.weights).mean())
        if self._is_number:
            return 1 - loss / max(float(rows.targets.var(unbiased=False)), 1e-12), loss
        if self._is_several:
            return float(((found >= 0) == (rows.targets >= 0.5)).float().mean()), loss
        return float((found.argmax(dim=1) == rows.labels).float().mean()), loss


def _of_pairs(vectors: Tensor, labels: Tensor) -> Tensor:
    """Compute the supervised contrastive loss of a batch. vectors: [texts, outputs]. labels: [texts]."""
    likeness = vectors @ vectors.T / _TEMPERATURE
    itself = torch.eye(len(labels), dtype=torch.bool, device=vectors.device)
    likeness = likeness.masked_fill(itself, -torch.inf)
    alike = (labels[:, None] == labels[None, :]) & ~itself
    log_shares = torch.log_softmax(likeness, dim=1).masked_fill(itself, 0)
    counts = alike.sum(dim=1)
    losses = -(log_shares * alike).sum(dim=1) / counts.clamp(min=1)
    if not bool((counts > 0).any()):
        return vectors.sum() * 0  # no two texts have the same class: a loss of 0 that has a gradient
    return losses[counts > 0].mean()


_TEMPERATURE = 0.1  # divides the cosines in the loss of pairs


def fine_tune(
    encoder: Encoder | TorchEncoder,
    text: TextBuffers,
    answers: Answers,
    fit: RowNumbers,
    held: RowNumbers,
    tuning: Tuning,
    device: str,
    seed: int,
    tell: Tell,
    stop: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Fine-tune an encoder on labelled rows.

    Parameters
    ----------
    encoder : Encoder or TorchEncoder
        The encoder, for vectors of length one.
    text, answers
        The texts and the answers of all rows.
    fit, held : RowNumbers
        The numbers of the rows to train on, and of the held-out rows, which choose the epoch unless `fit` has few rows.
        `held` may be empty.
    tuning : Tuning
        The settings.
    device : str
        "cpu" or "cuda".
    seed : int
        The seed of every random choice.
    tell : callable
        Called with the reports of the run.
    stop : callable
        Returns whether to stop after this step, with the best weights so far.

    Returns
    -------
    Tuned
        The encoder with the weights of the best epoch; with few rows, those of the last completed epoch. If no epoch
        was completed, its weights are unchanged.

    Raises
    ------
    BroadsheetError
        If the loss is no longer finite.

    """
    cuda = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        run = _Run(encoder, answers, tuning, torch.device(device))
        learned = _rows_of(encoder, text, answers, fit)
        judged = _rows_of(encoder, text, answers, held) if len(held) else None
        return _learned(run, learned, judged, np.random.default_rng(seed), tell, stop)


def _rows_of(encoder: Encoder | TorchEncoder, text: TextBuffers, answers: Answers, rows: RowNumbers) -> _Rows:
    data, offsets = text.rows(rows)
    most_tokens = min(encoder.settings.most_tokens, _MOST_TOKENS)
    texts: list[Any]
    if isinstance(encoder, Encoder):
        tokens = encoder.tokens.of_texts(data, offsets, most_tokens)
        texts = np.split(tokens.ids, tokens.ends[1:-1])
    else:
        prompt = encoder.settings.prompt
        texts = encoder.tokens.encoded([prompt + one for one in strings(data, offsets)], most_tokens)
    row_answers = answers.rows(rows)
    shares = row_answers.shares() if row_answers.steps is None else row_answers.steps[:, None]
    labels = shares.argmax(axis=1)
    targets, weights = (torch.from_numpy(np.asarray(one, np.float32)) for one in (shares, row_answers.weights))
    return _Rows(texts, targets, weights, torch.from_numpy(labels))


def _learned(
    run: _Run, rows: _Rows, held: _Rows | None, rng: np.random.Generator, tell: Tell, stop: Callable[[], bool]
) -> Tuned:
    """Train epoch after epoch, and return the best encoder.

    Parameters
    ----------
    run : _Run
        The encoder and its head.
    rows : _Rows
        The rows to train on.
    held : _Rows or None
        The held-out rows, which choose the epoch unless there are few `rows`. None in the second run on few rows, which
        also trains on the held-out ones.
    rng : Generator
        Draws the order of the rows.
    tell, stop
        See `fine_tune`.

    """
    # Report the cost. The first run on few rows has reported the cost of the second one too.
    tuning, history = run.tuning, list[Epoch]()
    steps = -(-len(rows) // tuning.batch_size)
    if held is not None:
        _tell_costs(run, rows, steps, tell)
    schedule = torch.optim.lr_scheduler.LambdaLR(run.optimizer, _rates(tuning.epochs * steps))
    best, chosen = (-np.inf, -np.inf), None
    are_few = held is None or len(rows) < FEW_ROWS
    before = 0 if held is not None else tuning.epochs  # the second run goes on counting epochs
    run.module.train()
    for number in range(1, tuning.epochs + 1):
        # Train on each batch, and report each step.
        losses = []
        for step, at in enumerate(_batches(rows, tuning.batch_size, rng), start=1):
            loss = run.loss(rows, at)
            run.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(run.module.parameters(), tuning.clip)
            run.optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
            if not np.isfinite(losses[-1]):
                remedy = f"try --learning-rate {tuning.learning_rate / 10:g}"
                raise BroadsheetError(f"fine-tuning diverges in epoch {number}, step {step}: {remedy}")
            tell(Step(before + number, step, steps, float(np.mean(losses))))
            if stop():
                break
        # Leave out an epoch that was interrupted. Measure a complete one, and keep its weights if they are the best.
        if stop() and len(losses) < steps:
            break
        share, loss_of_held = (np.nan, np.nan) if held is None else run.measured(held)
        history.append(Epoch(before + number, float(np.mean(losses)), share))
        tell(history[-1])
        if are_few or (share, -loss_of_held) > best:
            best, chosen = (share, -loss_of_held), (number, run.module.learned())
        if stop():
            break
    # Say which epoch was chosen, and return its weights, or the unchanged ones if no epoch was completed.
    if held is not None and chosen is not None and not are_few and not stop():
        tell(Note(f"the encoder is that of epoch {chosen[0]}, the best on {len(held):,} held-out rows"))
    encoder = run.module.encoder if chosen is None else chosen[1]
    return Tuned(encoder, tuple(history), asdict(tuning) | {"epoch": chosen[0] if chosen else 0})


def _tell_costs(run: _Run, rows: _Rows, steps: int, tell: Tell) -> None:
    """Measure a batch of texts of different lengths, and report the time of the run, and that of vectors alone."""
    times = 2 if len(rows) < FEW_ROWS else 1
    at = np.linspace(0, len(rows) - 1, min(run.tuning.batch_size, len(rows))).astype(np.int64)
    seconds = []
    for _ in range(2):  # in the first one, PyTorch also loads its kernels
        began = time.perf_counter()
        loss = run.loss(rows, at)
        _wait_for(run.device)
        forward = time.perf_counter() - began
        loss.backward()  # type: ignore[no-untyped-call]
        _wait_for(run.device)
        seconds.append(time.perf_counter() - began)
    run.optimizer.zero_grad()
    device = (
        torch.cuda.get_device_name() + ", bf16" if run.device.type == "cuda" else f"{torch.get_num_threads()} cores"
    )
    tell(Cost(device, len(rows), times * run.tuning.epochs, seconds[-1] * steps, None))
    tell(Note(f"  without --fine-tune, vectors for a head take about {max(1, round(forward * steps)):,} s"))


def _wait_for(device: torch.device) -> None:
    """Wait until the device has computed what it was given. A GPU computes while this process goes on."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rates(steps: int) -> Callable[[int], float]:
    """Return a function from a step to its learning rate, as a share of the peak. steps: the number of all steps."""
    rising = max(1, steps // 10)
    return lambda step: min((step + 1) / rising, max(0.0, (steps - step) / max(1, steps - rising)))


def _batches(rows: _Rows, size: int, rng: np.random.Generator) -> Iterator[RowNumbers]:
    """Yield the rows of each batch, in random order. The texts of a batch have similar lengths.

    Rows are sorted by length within random groups of 16 batches each.
    """
    order = rng.permutation(len(rows))
    sizes = np.array([len(one) for one in rows.texts])
    batches = []
    for first in range(0, len(order), 16 * size):
        some = order[first : first + 16 * size]
        some = some[np.argsort(sizes[some], kind="stable")]
        batches += [some[at : at + size] for at in range(0, len(some), size)]
    for number in rng.permutation(len(batches)):
        yield batches[number]
