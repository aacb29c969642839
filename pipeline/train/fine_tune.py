"""Fine-tuning: an encoder's weights learn labels, together with a linear head. A head for good is fitted afterwards.

The head's loss is the cross-entropy of labels, or the squared error of numbers, as in Devlin et al., "BERT" (2019).
Few rows say little that way, so a second loss pulls texts of one class together and pushes others apart, all pairs of a
batch at once: Khosla et al., "Supervised Contrastive Learning" (2020). SetFit (Tunstall et al., 2022) learns from pairs
as well.

Held-out rows choose the epoch whose weights are kept. Of few rows, so few are held out that chance would choose: the
last epoch is kept, and the held-out rows only say how good it is.
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
"""Fewer rows than this are learned with pairs, and in the end the held-out rows are learned too."""

SETTINGS = ("epochs", "batch_size", "learning_rate")
_SCORED_AT_ONCE = 64
_MOST_TOKENS = 128
"""Of a text while the encoder learns: a longer one says little more, and takes as much longer."""


@dataclass(frozen=True)
class Tuning:
    """How an encoder is fine-tuned.

    Attributes
    ----------
    epochs : int
        Passes over the rows.
    batch_size : int
        Rows of a step.
    learning_rate : float
        The highest rate of the encoder's weights, by AdamW; it rises in the first tenth and falls to nothing.
    contrast : float
        How much the loss of pairs counts, beside that of the head.
    head_rate : float
        The rate of the head, which begins with nothing.
    weight_decay : float
        Decay of all weights, multiplied by the rate.
    clip : float
        Maximum norm of the gradient.

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
        """For so many rows, with `NAME=VALUE` settings of a recipe changed. Raises UsageError for another name."""
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
        The epochs that were completed.
    about : dict
        What a model's card says of it.

    """

    encoder: Encoder | TorchEncoder
    history: tuple[Epoch, ...]
    about: dict[str, Any]


class _Rows(NamedTuple):
    """Rows that are learned, or held out.

    Attributes
    ----------
    texts : list
        The tokens of each text: numbers, or a `tokenizers.Encoding`.
    targets : float32 [N, columns]
        How much each class is right, or the number in steps.
    weights : float32 [N]
        How much each row counts.
    labels : int64 [N]
        The most probable class of each.

    """

    texts: list[Any]
    targets: Tensor
    weights: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.texts)


class _Run:
    """An encoder and its head while they learn."""

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
        """Of some rows, their mean."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            vectors = self.module([rows.texts[row] for row in at]).float()
        where = torch.from_numpy(at)
        targets, weights = rows.targets[where].to(self.device), rows.weights[where].to(self.device)
        loss = (self._of_rows(self._logits(vectors), targets) * weights).mean()
        if self.tuning.contrast and len(at) > 1:
            loss = loss + self.tuning.contrast * _of_pairs(vectors, rows.labels[where].to(self.device))
        return loss

    def _logits(self, vectors: Tensor) -> Tensor:
        logits: Tensor = self.head(vectors * vectors.shape[1] ** 0.5)  # vectors are of length one
        return logits

    def _of_rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self._is_number:
            return functional.mse_loss(logits, targets, reduction="none")[:, 0]
        if self._is_several:
            return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
        return functional.cross_entropy(logits, targets, reduction="none")

    def measured(self, rows: _Rows) -> tuple[float, float]:
        """Of held-out rows: the share right (of numbers, the share of their variance), and the loss."""
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
    """Supervised contrastive loss of a batch, [texts, outputs], whose texts have `labels`, [texts]."""
    likeness = vectors @ vectors.T / _TEMPERATURE
    itself = torch.eye(len(labels), dtype=torch.bool, device=vectors.device)
    likeness = likeness.masked_fill(itself, -torch.inf)
    alike = (labels[:, None] == labels[None, :]) & ~itself
    shares = torch.log_softmax(likeness, dim=1).masked_fill(itself, 0)
    counts = alike.sum(dim=1)
    of_texts = -(shares * alike).sum(dim=1) / counts.clamp(min=1)
    return of_texts[counts > 0].mean() if bool((counts > 0).any()) else vectors.sum() * 0


_TEMPERATURE = 0.1


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
        All rows.
    fit, held : RowNumbers
        The rows that are learned, and those that choose the epoch, if `fit` are not few. `held` may be empty.
    tuning : Tuning
        How.
    device : str
        "cpu" or "cuda".
    seed : int
        Of every random choice.
    tell : callable
        Called with what the run reports.
    stop : callable
        Whether to stop after this step, with the best weights so far.

    Returns
    -------
    Tuned
        The encoder with the weights after the best epoch, of few rows after the last, or those that it had, where none
        was completed.

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
    most = min(encoder.settings.most_tokens, _MOST_TOKENS)
    texts: list[Any]
    if isinstance(encoder, Encoder):
        tokens = encoder.tokens.of_texts(data, offsets, most)
        texts = np.split(tokens.ids, tokens.ends[1:-1])
    else:
        prompt = encoder.settings.prompt
        texts = encoder.tokens.encoded([prompt + one for one in strings(data, offsets)], most)
    own = answers.rows(rows)
    shares = own.shares() if own.steps is None else own.steps[:, None]
    labels = shares.argmax(axis=1)
    targets, weights = (torch.from_numpy(np.asarray(one, np.float32)) for one in (shares, own.weights))
    return _Rows(texts, targets, weights, torch.from_numpy(labels))


def _learned(
    run: _Run, rows: _Rows, held: _Rows | None, rng: np.random.Generator, tell: Tell, stop: Callable[[], bool]
) -> Tuned:
    """Learn, epoch after epoch.

    Parameters
    ----------
    run : _Run
        The encoder and its head.
    rows : _Rows
        Those that are learned.
    held : _Rows, optional
        Those that choose the epoch, if `rows` are not few.
    rng : Generator
        Which puts the rows in order.
    tell, stop
        As of `fine_tune`.

    """
    tuning, history = run.tuning, list[Epoch]()
    steps = -(-len(rows) // tuning.batch_size)
    if held is not None:  # the second time, few rows cost what the first time has told
        _tell_costs(run, rows, steps, tell)
    schedule = torch.optim.lr_scheduler.LambdaLR(run.optimizer, _rates(tuning.epochs * steps))
    best, kept = (-np.inf, -np.inf), None
    are_few = held is None or len(rows) < FEW_ROWS
    before = 0 if held is not None else tuning.epochs  # without held-out rows it is the second time
    run.module.train()
    for number in range(1, tuning.epochs + 1):
        losses = []
        for done, at in enumerate(_batches(rows, tuning.batch_size, rng), start=1):
            loss = run.loss(rows, at)
            run.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(run.module.parameters(), tuning.clip)
            run.optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
            if not np.isfinite(losses[-1]):
                remedy = f"try --learning-rate {tuning.learning_rate / 10:g}"
                raise BroadsheetError(f"fine-tuning diverges in epoch {number}, step {done}: {remedy}")
            tell(Step(before + number, done, steps, float(np.mean(losses))))
            if stop():
                break
        if stop() and len(losses) < steps:
            break
        share, loss_of_held = (np.nan, np.nan) if held is None else run.measured(held)
        history.append(Epoch(before + number, float(np.mean(losses)), share))
        tell(history[-1])
        if are_few or (share, -loss_of_held) > best:
            best, kept = (share, -loss_of_held), (number, run.module.learned())
        if stop():
            break
    if held is not None and kept is not None and not are_few and not stop():
        tell(Note(f"the encoder is that of epoch {kept[0]}, the best on {len(held):,} held-out rows"))
    encoder = run.module.encoder if kept is None else kept[1]
    return Tuned(encoder, tuple(history), asdict(tuning) | {"epoch": kept[0] if kept else 0})


def _tell_costs(run: _Run, rows: _Rows, steps: int, tell: Tell) -> None:
    """Report what the run costs, and a head alone, by a batch of the usual length that is computed for that."""
    times = 2 if len(rows) < FEW_ROWS else 1
    at = np.linspace(0, len(rows) - 1, min(run.tuning.batch_size, len(rows))).astype(np.int64)
    seconds = []
    for _ in range(2):  # the first one also loads what PyTorch needs
        began = time.perf_counter()
        loss = run.loss(rows, at)
        forward = time.perf_counter() - began
        loss.backward()  # type: ignore[no-untyped-call]
        if run.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    run.optimizer.zero_grad()
    device = (
        torch.cuda.get_device_name() + ", bf16" if run.device.type == "cuda" else f"{torch.get_num_threads()} cores"
    )
    tell(Cost(device, len(rows), times * run.tuning.epochs, seconds[-1] * steps, None))
    tell(Note(f"  without --fine-tune, vectors for a head take about {max(1, round(forward * steps)):,} s"))


def _rates(steps: int) -> Callable[[int], float]:
    """The learning rate of each step, as a share of the highest."""
    rising = max(1, steps // 10)
    return lambda step: min((step + 1) / rising, max(0.0, (steps - step) / max(1, steps - rising)))


def _batches(rows: _Rows, size: int, rng: np.random.Generator) -> Iterator[RowNumbers]:
    """The rows in random order. Batches of an epoch have texts of similar length, among 16 batches' worth each."""
    order = rng.permutation(len(rows))
    sizes = np.array([len(one) for one in rows.texts])
    batches = []
    for first in range(0, len(order), 16 * size):
        some = order[first : first + 16 * size]
        some = some[np.argsort(sizes[some], kind="stable")]
        batches += [some[at : at + size] for at in range(0, len(some), size)]
    for number in rng.permutation(len(batches)):
        yield batches[number]
