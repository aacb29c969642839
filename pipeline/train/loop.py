"""The training loop: AdamW on augmented articles, and a running average of the weights, which becomes the model."""

from __future__ import annotations

import copy
import math
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BroadsheetError, UsageError
from ..model.alphabet import Alphabet
from .checkpoint import Checkpoint
from .graphs import EAGER_CALLS, Replayed, rounded
from .group import ProcessGroup
from .job import Examples, Outcome, TrainingJob
from .network import ARTICLES_IN_CACHE, predict
from .objective import Objective
from .packed import PackedCNN
from .progress import Cost, Epoch, Step, Tell, TrainingStopped
from .recipe import Recipe

_WARMUP_FROM = 0.04  # the rate of the first step, as a share of the peak rate
_AVERAGE_FROM = 0.25  # the average begins after this share of the steps
_AUGMENTED_AT_ONCE = 4096  # articles; this bounds the memory of augmentation
_H200_UNITS = 840_000  # units that an NVIDIA H200 trains on per second: 28,000 articles of AG News
_PERMUTATION, _AUGMENTATION, _DROPOUT = range(3)  # the kinds of random draws


@dataclass(frozen=True)
class DeviceExamples:
    """Encoded articles on the training device. ids: uint8 [N, length]. targets: in the format of the objective."""

    ids: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Saving:
    """Where and when the run writes checkpoints.

    Attributes
    ----------
    path : Path
        The file.
    every : int
        Epochs between two checkpoints; 0 to write one only when the run is stopped.
    job : dict
        The identity of the job.

    """

    path: Path
    every: int
    job: dict[str, Any]


class TrainingRun:
    """A run on the rows `train`, evaluated on the rows `held_out`.

    Every process of a group has all rows, and computes its share of each batch. The stages of a run:

    1. `go_on_from`, only to resume: restores the state of a checkpoint.
    2. `finish`: measures the cost of a step, then trains epoch by epoch. An epoch draws an order of the rows, augments
       them in blocks of some batches, and takes a step for each batch. After an epoch, the run evaluates the averaged
       weights, writes a checkpoint if one is due, and reports the epoch.
    3. `average` then holds the weights of the model, and `history` the figures of the epochs.

    Parameters
    ----------
    network : PackedCNN
        The network, which is trained in place.
    train : DeviceExamples
        The rows to train on.
    held_out : DeviceExamples
        The rows to evaluate on. There may be none.
    alphabet : Alphabet
        The characters that the network reads.
    recipe : Recipe
        The settings of the run.
    objective : Objective
        The loss to minimise.
    seed : int
        The seed of every random choice.
    group : ProcessGroup
        The processes that share the run.
    from_model : bool
        Whether all layers but the last come from another model.
    eager : int
        The number of steps on a GPU that launch kernel by kernel, before the run captures CUDA graphs.

    """

    def __init__(
        self,
        network: PackedCNN,
        train: DeviceExamples,
        held_out: DeviceExamples,
        alphabet: Alphabet,
        recipe: Recipe,
        objective: Objective,
        seed: int,
        group: ProcessGroup,
        from_model: bool = False,
        eager: int = EAGER_CALLS,
    ) -> None:
        self.network, self.recipe, self._objective = network, recipe, objective
        self._train, self._held_out, self._alphabet, self._seed = train, held_out, alphabet, seed
        self._device = train.ids.device
        self._group = group
        self._batch = min(recipe.batch_size, len(train.ids))
        self._steps_per_epoch = len(train.ids) // self._batch
        self._all_steps = self._steps_per_epoch * recipe.epochs
        self.average = copy.deepcopy(network).requires_grad_(False)
        self._cuda = self._device.type == "cuda"
        self._model = group.wrap(network)
        self._at_once = self._batch if self._cuda else ARTICLES_IN_CACHE  # articles of one forward pass
        self._optimizer = _optimizer(network, recipe, from_model)
        # The learning rate of each group of parameters is its share of the rate of the step.
        self._shares = torch.tensor(
            [param_group["share"] for param_group in self._optimizer.param_groups], device=self._device
        )
        self._rates = torch.zeros_like(self._shares)  # on the device, where a replayed graph reads them
        for param_group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            param_group["lr"] = rate
        self._replayed = Replayed(self._train_on, eager) if self._cuda else None
        self._steps = 0
        self._losses = torch.zeros((), device=self._device)  # the sum over the steps of the epoch so far
        self.history: tuple[Epoch, ...] = ()

    def finish(self, tell: Tell, saving: Saving | None, stop: Callable[[], bool], name: str) -> None:
        """Train the remaining epochs, and report them to `tell`. name: the name of the device.

        Raises TrainingStopped, after writing a checkpoint, if `stop` returns true; BroadsheetError if the loss
        diverges.
        """
        if len(self.history) < self.recipe.epochs:
            tell(self._cost(name))
        try:
            self._finish(tell, saving, stop)
        finally:
            if self._replayed:
                self._replayed.release()
                self._replayed = None  # it holds a reference to this run, which is large

    def _finish(self, tell: Tell, saving: Saving | None, stop: Callable[[], bool]) -> None:
        while len(self.history) < self.recipe.epochs:
            number = len(self.history) + 1
            self.network.train()
            if not self._epoch(number, tell, stop):
                self._save(saving, float(self._group.total(self._losses)))
                raise TrainingStopped
            loss = float(self._group.total(self._losses)) / self._steps_per_epoch
            self._losses.zero_()
            if not math.isfinite(loss):
                raise BroadsheetError(f"the loss is {loss} in epoch {number}: try a lower --learning-rate")
            self.history += (Epoch(number, loss, self._held_out_accuracy()),)
            if saving and saving.every and (number % saving.every == 0 or number == self.recipe.epochs):
                self._save(saving, 0.0)
            tell(self.history[-1])

    def _epoch(self, number: int, tell: Tell, stop: Callable[[], bool]) -> bool:
        """Train the remaining steps of an epoch; return False if the run was stopped.

        Random draws depend only on the seed, the process, the epoch and the step. So a checkpoint between two steps
        does not need the state of a random generator.
        """
        steps_done = self._steps - (number - 1) * self._steps_per_epoch
        in_block = max(_AUGMENTED_AT_ONCE // self._batch, 1)
        self._draw(_PERMUTATION, number)
        order = torch.randperm(len(self._train.ids), device=self._device)
        batches = order[: self._steps_per_epoch * self._batch].view(-1, self._batch)
        for first in range(steps_done - steps_done % in_block, self._steps_per_epoch, in_block):
            rows = batches[first : first + in_block, self._group.share(self._batch)]
            self._draw(_AUGMENTATION, number, first, self._group.rank)
            ids, targets, units, stopped = self._block(rows, stop())
            if stopped:
                return False
            for step in range(max(first, steps_done), first + len(rows)):
                if self._group.size == 1 and stop():  # several processes agree on it in `_block`
                    return False
                self._draw(_DROPOUT, number, step, self._group.rank)
                at = step - first
                self._step(ids[at], targets[at], units[at])
                tell(Step(number, step + 1, self._steps_per_epoch))
        return True

    def _block(self, rows: Tensor, stop: bool = False) -> tuple[Tensor, Tensor, list[int], bool]:
        """Augment the articles of some batches.

        Returns the articles and their targets, [batches, articles, …], the number of units of each batch, and whether
        one of the processes is to stop. This is the only place of an epoch where the host waits for the device.
        """
        ids = augment(self._train.ids[rows.flatten()], self._alphabet, self.recipe)
        units = self.network.units(ids).view(len(rows), -1).sum(1)
        *counts, stopped = self._group.maximum(torch.cat([units, units.new_full((1,), stop)])).tolist()
        if self._cuda:
            counts = [rounded(count) for count in counts]
        return ids.view(*rows.shape, -1), self._train.targets[rows], counts, bool(stopped)

    def _step(self, ids: Tensor, targets: Tensor, units: int) -> None:
        torch.mul(self._shares, self._rate(), out=self._rates)
        averaging = self._steps >= _AVERAGE_FROM * self._all_steps
        (self._replayed or self._train_on)(ids, targets, units, averaging)
        self._steps += 1

    def _train_on(self, ids: Tensor, targets: Tensor, units: int, averaging: bool) -> None:
        """Do everything that a step does on the device."""
        self._losses += self._gradients(ids, targets, units)
        if len(self._train.ids) < FEW_ROWS:
            centre_gradients(self.network)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        for settings in self._optimizer.param_groups:  # PyTorch warns if `capturable` is set outside a capture
            settings["capturable"] = self._cuda and torch.cuda.is_current_stream_capturing()
        self._optimizer.step()
        self._average(averaging)

    def _rate(self) -> float:
        """Return the learning rate of this step."""
        return self.recipe.learning_rate * _share_of_peak(self._steps / self._all_steps, self.recipe.warmup)

    def _gradients(self, ids: Tensor, targets: Tensor, units: int) -> Tensor:
        """Compute the gradients for this process's share of a batch; return this share's part of the loss."""
        self._optimizer.zero_grad()
        losses = torch.zeros((), device=self._device)
        for first in range(0, len(ids), self._at_once):
            part = slice(first, first + self._at_once)
            if len(ids) > self._at_once:
                units = int(self.network.units(ids[part]).sum())
            with self._group.apart(self._model, part.stop < len(ids)):
                logits = self._model(ids[part], units)
                loss = self._objective.loss(logits, targets[part]) * (len(logits) / self._batch)
                torch.autograd.backward(loss * self._group.size)  # gradients are averaged over the processes
            losses += loss.detach()
        return losses

    def _average(self, averaging: bool) -> None:
        """Move the average towards the weights. In the first quarter of the steps, it equals them.

        The window of the average, 1 / (1 - decay) steps, is at most a tenth of all steps.
        """
        decay = min(self.recipe.average, 1 - min(10 / self._all_steps, 1.0))
        weight = 1 - decay if averaging else 1.0
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), weight)

    def _draw(self, *what: int) -> None:
        """Seed PyTorch's generator, with 63 bits, for the draws of one kind at one place of the run."""
        torch.manual_seed(int(np.random.SeedSequence((self._seed, *what)).generate_state(1, np.uint64)[0] >> 1))

    def _held_out_accuracy(self) -> float:
        """Return the share of the held-out rows that the averaged network labels right; nan if there are none."""
        count = len(self._held_out.ids)
        if not count:
            return math.nan
        share = self._group.share(count)
        right = torch.zeros((), device=self._device)
        if share.stop > share.start:
            logits = predict(self.average, self._held_out.ids[share])
            right += self._objective.right(logits, self._held_out.targets[share]).sum()
        return float(self._group.total(right)) / count

    def _cost(self, name: str) -> Cost:
        """Estimate the time of the remaining epochs by a trial step, which does not change the weights."""
        # Augment a batch, or as many of its articles as one forward pass takes.
        self.network.train()
        self._draw(_AUGMENTATION, 0)
        rows = torch.arange(self._batch, device=self._device)[self._group.share(self._batch)]
        ids, targets, units, _ = self._block(rows[None])
        count = min(self._at_once, len(rows))
        units_of_part = units[0] if count == len(rows) else int(self.network.units(ids[0, :count]).sum())
        part = ids[0, :count], targets[0, :count], units_of_part
        # Compute gradients until the kernels are loaded and the graph is captured, then measure one time.
        trial = Replayed(self._gradients) if self._cuda else self._gradients
        for _ in range(EAGER_CALLS + 1 if self._cuda else 2):
            trial(*part)
        float(self._losses)  # waits for the device
        began = time.perf_counter()
        trial(*part)
        float(self._losses)
        seconds = (time.perf_counter() - began) * len(rows) / count
        self._optimizer.zero_grad()
        # Extend this to an epoch. Without a GPU, also say how long it would take on one.
        steps, fast = self._steps_per_epoch, None
        if self._device.type == "cpu":
            fast = units[0] * self._batch / len(rows) * steps / _H200_UNITS
        epochs = -(-(self._all_steps - self._steps) // steps)
        return Cost(name, steps * self._batch, epochs, seconds * steps, fast)

    def _save(self, saving: Saving | None, losses: float) -> None:
        """Write a checkpoint, only in the process that has `saving`. losses: the sum of the epoch's losses so far."""
        if saving is None:
            return
        named = dict(self.network.named_parameters())
        state = self._optimizer.state
        # Before the first step, the optimizer has no moments yet: store zeros.
        zeros = {name: torch.zeros_like(p) for name, p in named.items()} if not state else {}
        tensors: dict[str, dict[str, Tensor]] = {
            "weights": {name: p.detach() for name, p in named.items()},
            "average": dict(self.average.named_parameters()),
            "first": zeros or {name: state[p]["exp_avg"] for name, p in named.items()},
            "second": zeros or {name: state[p]["exp_avg_sq"] for name, p in named.items()},
        }
        Checkpoint(saving.job, self._steps, self.history, losses, tensors).save(saving.path)

    def go_on_from(self, checkpoint: Checkpoint | None) -> None:
        """Restore the state of a checkpoint, from which `finish` then goes on.

        Only the first process has the checkpoint. It sends the state to the others.
        """
        state = None if checkpoint is None else (checkpoint.steps, checkpoint.history, checkpoint.losses)
        self._steps, self.history, losses = self._group.of_first(state)
        if checkpoint is not None:
            self._losses.fill_(losses)
            self.network.load_state_dict(checkpoint.tensors["weights"])
            self.average.load_state_dict(checkpoint.tensors["average"])
        for name, parameter in self.network.named_parameters():
            adam_state = self._optimizer.state[parameter] = {
                "step": torch.tensor(float(self._steps), device=self._device)
            }
            for key, part in (("exp_avg", "first"), ("exp_avg_sq", "second")):
                saved = None if checkpoint is None else checkpoint.tensors[part][name].to(self._device)
                adam_state[key] = torch.zeros_like(parameter) if saved is None else saved
        tensors = [p.detach() for p in (*self.network.parameters(), *self.average.parameters())]
        tensors += [state[key] for state in self._optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
        self._group.copy_of_first(tensors)


def _share_of_peak(progress: float, warmup: float) -> float:
    """Return the rate as a share of its peak: along a cosine from _WARMUP_FROM up to 1, then along one down to 0."""
    if progress < warmup:
        return _WARMUP_FROM + (1 - _WARMUP_FROM) * 0.5 * (1 - math.cos(math.pi * progress / warmup))
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def _optimizer(network: PackedCNN, recipe: Recipe, from_model: bool) -> torch.optim.AdamW:
    """Return AdamW without weight decay of biases, and with fc1's smaller rate.

    In a step, fc1's weights decay as much as all others. from_model: whether all layers but the last come from another
    model. These layers learn more slowly, and decay more slowly too.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        slower = recipe.fc1_rate if name == "fc1.weight" else 1.0
        decay = recipe.weight_decay / slower if parameter.ndim > 1 else 0.0
        share = slower * (recipe.init_rate if from_model and not name.startswith("fc3.") else 1.0)
        groups.setdefault((decay, share), []).append(parameter)
    settings = [
        {"params": parameters, "weight_decay": decay, "share": share} for (decay, share), parameters in groups.items()
    ]
    return torch.optim.AdamW(settings, fused=True)


def augment(ids: Tensor, alphabet: Alphabet, recipe: Recipe) -> Tensor:
    """Erase words, replace characters, erase spans, then move each article, uint8 [N, length]. `ids` is not modified.

    Erased characters become unknown characters, whose one-hot columns are zero, like those of padding. The end of a
    text only changes if the text is moved. The draws are from PyTorch's global generator of the device.
    """
    if recipe.dropped_words:
        ids = _drop_words(ids, alphabet, recipe.dropped_words)
    position = torch.arange(ids.shape[1], device=ids.device)
    text_length = ((ids < len(alphabet)) * (position + 1)).amax(1, keepdim=True)
    if recipe.random_characters:
        ids = _replace_characters(ids, alphabet, recipe.random_characters)
    for _ in range(recipe.erased_spans):
        first = (_uniform(ids) * text_length).long()
        end = first + 1 + (_uniform(ids) * recipe.span_length).long()
        erased = (position >= first) & (position < end) & (ids != alphabet.padding)
        ids = torch.where(erased, alphabet.unknown, ids)
    if recipe.shift or recipe.cut:
        move = (_uniform(ids) * (recipe.shift + 1)).long() - (_uniform(ids) * (recipe.cut + 1)).long()
        origin = position - move
        inside = (origin >= 0) & (origin < ids.shape[1])
        ids = torch.where(inside, ids.gather(1, origin.clamp(0, ids.shape[1] - 1)), alphabet.padding)
    return ids


def _uniform(ids: Tensor, columns: int = 1) -> Tensor:
    return torch.rand(len(ids), columns, device=ids.device)


def _drop_words(ids: Tensor, alphabet: Alphabet, share: float) -> Tensor:
    """Erase words. The share of erased words is drawn for each article, between zero and twice `share`."""
    space = alphabet.symbols.find(" ")
    between = ids == (space if space >= 0 else alphabet.unknown)
    word = between.cumsum(1)
    dropped = _uniform(ids, ids.shape[1] + 1) < 2 * share * _uniform(ids)
    erase = dropped.gather(1, word) & (ids < len(alphabet)) & ~between
    return torch.where(erase, alphabet.unknown, ids)


def _replace_characters(ids: Tensor, alphabet: Alphabet, share: float) -> Tensor:
    chosen = (_uniform(ids, ids.shape[1]) < share) & (ids < len(alphabet))
    other = torch.randint(len(alphabet), ids.shape, dtype=ids.dtype, device=ids.device)
    return torch.where(chosen, other, ids)


FEW_ROWS = 20_000
"""A run on fewer rows than this centres its gradients.

With more rows, the learning rate rises so slowly that the network learns without centring.
"""

_CENTRED = ("conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2")


def centre_gradients(network: nn.Module) -> None:
    """Subtract from the gradient of each output's weights its mean over the inputs (gradient centralisation).

    Without this, and with few rows, the network would learn to give every article the same answer:

    - The inputs of these layers are outputs of a ReLU, so none is negative, and at first they differ little between
      articles.
    - Chance patterns of a small batch, such as more rows of one class, then give all weights of an output a gradient of
      the same sign, and AdamW moves each weight by the whole rate.
    - So the mean of the activations grows from block to block, the norm of block 6 divides by it, and the differences
      between articles vanish.

    A gradient without its mean over the inputs cannot move all articles alike. Source: Yong and others, 2020,
    https://arxiv.org/abs/2004.01461.
    """
    for name in _CENTRED:
        gradient = network.get_parameter(f"{name}.weight").grad
        assert gradient is not None
        gradient.sub_(gradient.mean(tuple(range(1, gradient.ndim)), keepdim=True))


def device_of(job: TrainingJob) -> torch.device:
    """Return the device on which a job runs in this process. Raises UsageError if it needs a GPU and there is none."""
    cuda = torch.cuda.is_available()
    if job.device == "cuda" and not cuda:
        raise UsageError("PyTorch finds no CUDA device here: use --device cpu")
    return torch.device("cuda" if cuda and job.device != "cpu" else "cpu")


def _on(device: torch.device, examples: Examples) -> tuple[DeviceExamples, DeviceExamples]:
    """Copy the rows to train on, and the held-out rows, to a device."""
    fit, held = (
        DeviceExamples(*(torch.from_numpy(values[rows]).to(device) for values in (examples.ids, examples.targets)))
        for rows in (examples.fit, examples.held)
    )
    return fit, held


def run(
    job: TrainingJob,
    examples: Examples,
    tell: Tell,
    stop: Callable[[], bool] = lambda: False,
    group: ProcessGroup | None = None,
) -> Outcome:
    """Run a job in this process, which may be one of a group.

    Raises UsageError for a device that does not exist, for a checkpoint that is missing, that is of another job, or
    that would be overwritten, and for a folder that this host does not see; TrainingStopped if the run was stopped;
    BroadsheetError if the loss diverges.

    Parameters
    ----------
    job : TrainingJob
        The settings of the run.
    examples : Examples
        The articles and their targets.
    tell : callable
        Called with the progress of the run.
    stop : callable
        Returns whether the run is to stop.
    group : ProcessGroup, optional
        The processes that share the run; by default this process alone.

    """
    # Choose the device and the precision, and check the options that depend on them.
    device, group, recipe = device_of(job), group or ProcessGroup(), job.recipe
    cuda = device.type == "cuda"
    mixed = job.precision == "bf16" or (job.precision == "auto" and cuda)
    compute = torch.bfloat16 if mixed else torch.float32
    if group.size > len(examples.fit) or group.size > recipe.batch_size:
        articles = min(recipe.batch_size, len(examples.fit))
        raise UsageError(f"{group.size} processes cannot share batches of {articles} articles: ask for fewer GPUs")
    saving = None
    if job.checkpoint and group.rank == 0:
        saving = Saving(job.checkpoint, job.every, job.identity(examples, compute))
        _check_place(job.checkpoint, job.resume)
    with (
        torch.random.fork_rng(devices=[device] if cuda else []),
        torch.backends.cudnn.flags(enabled=True, benchmark=cuda),
    ):
        # Make the network, with the weights of another model if the job begins with one.
        torch.manual_seed(job.seed)
        network = PackedCNN(job.layers, job.frame, compute, recipe.dropout, recipe.input_dropout).to(device)
        for name, parameter in network.named_parameters():
            if name in job.start:
                parameter.data.copy_(torch.from_numpy(job.start[name].astype(np.float32)))
        # Train it, from a checkpoint if the run is resumed.
        from_model = bool(job.start)
        loop = TrainingRun(
            network, *_on(device, examples), job.symbols, recipe, job.objective, job.seed, group, from_model
        )
        if job.resume:
            loop.go_on_from(Checkpoint.load(saving.path, saving.job) if saving else None)
        on = f"{f'{group.size} × ' if group.size > 1 else ''}{_name(device)}, {'bf16' if mixed else 'fp32'}"
        loop.finish(tell, saving, stop, on)
        weights = {name: p.cpu().numpy() for name, p in loop.average.named_parameters()}
    return Outcome(weights, loop.history, on)


def _check_place(path: Path, resume: bool) -> None:
    if not path.parent.is_dir():
        raise UsageError(
            f"{socket.gethostname()} sees no folder {path.parent} for the checkpoint: choose an existing one that all "
            "hosts share, or write none"
        )
    if path.exists() and not resume:
        raise UsageError(f"{path} is of a run that did not end: go on with --resume, or remove it")


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
