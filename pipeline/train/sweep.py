"""Several runs over a grid of settings and seeds, as Dask tasks: one at a time on each worker."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from distributed import Client

from ..errors import BroadsheetError, UsageError
from .job import Examples, Job, Outcome
from .objective import OneLabel
from .on_cluster import Answer, Seat, end_parts, seats_of, start, telling, workers_of
from .processes import Lost, Part
from .progress import Cost, Note, Stopped, Tell

_ALIASES = {"rate": "learning_rate"}
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Trial:
    """A run of a sweep. settings: what it differs in, by name. accuracy: on the held-out rows. error: why it failed,
    with nan for loss and accuracy.
    """

    settings: dict[str, str]
    loss: float
    accuracy: float
    seconds: float
    error: str = ""


def jobs_of(job: Job, sweep: Sequence[str]) -> list[tuple[dict[str, str], Job]]:
    """A job for each point of a grid, with its settings. sweep: of `NAME=VALUE,VALUE`, of the recipe or `seed`.

    Raises UsageError for a name that there is not, or a value that is none.
    """
    axes: dict[str, list[str]] = {}
    for axis in sweep:
        name, equals, values = axis.partition("=")
        if not equals or not values:
            raise UsageError(f"{axis!r} is no axis of a sweep: write NAME=VALUE,VALUE, such as rate=0.001,0.0003")
        axes[_ALIASES.get(name, name)] = values.split(",")
    found = []
    for point in product(*axes.values()):
        settings = dict(zip(axes, point, strict=True))
        recipe = job.recipe.with_settings([f"{name}={value}" for name, value in settings.items() if name != "seed"])
        seed = settings.get("seed", str(job.seed))
        if not seed.isdecimal():
            raise UsageError(f"seed is {seed!r}, it must be a number from 0")
        objective = job.objective
        if isinstance(objective, OneLabel):
            objective = replace(objective, label_smoothing=recipe.label_smoothing)
        varied = replace(job, recipe=recipe, objective=objective, seed=int(seed), checkpoint=None, resume=False)
        found.append((settings, varied))
    return found


def run_sweep(
    client: Client,
    jobs: list[tuple[dict[str, str], Job]],
    examples: Examples,
    tell: Tell,
    stop: Callable[[], bool],
) -> tuple[list[Trial], Job, Outcome]:
    """Run each job on a worker of its own, and `tell` of each that ends; the best by held-out rows is kept.

    A run that is lost with its worker is tried on another. Raises UsageError without held-out rows, BroadsheetError
    where no run succeeds or no worker is left, and Stopped.
    """
    if not len(examples.held):
        raise UsageError("a sweep compares runs by held-out rows: hold some out")
    addresses = workers_of(client)
    tell(Note(f"{len(jobs)} runs on {len(addresses)} worker{'s' if len(addresses) > 1 else ''}"))
    trials: dict[int, Trial] = {}
    best: tuple[float, float, Job, Outcome] | None = None
    with telling(client) as (topic, told):
        there = client.scatter(examples, workers=addresses, broadcast=True, hash=False)
        free, waiting = deque(seats_of(addresses)), deque(range(len(jobs)))
        running: dict[Answer, tuple[int, Seat, float]] = {}
        cost_told = False
        try:
            while len(trials) < len(jobs):
                while free and waiting:
                    seat, number = free.popleft(), waiting.popleft()
                    answer = start(client, seat, there, Part(jobs[number][1], rank=0), topic)
                    running[answer] = number, seat, time.monotonic()
                if not running:
                    raise BroadsheetError("all workers of the sweep are lost")
                time.sleep(_POLL_SECONDS)
                if stop():
                    raise Stopped
                while not told.empty():
                    what = told.get()
                    if isinstance(what, Cost) and not cost_told:
                        cost_told = True
                        tell(what)
                for answer in [answer for answer in running if answer.done()]:
                    number, seat, began = running.pop(answer)
                    settings, job = jobs[number]
                    seconds = time.monotonic() - began
                    try:
                        outcome = answer.result()
                    except Lost:
                        waiting.append(number)
                        continue
                    except UsageError:
                        raise
                    except BroadsheetError as error:
                        trials[number] = Trial(settings, float("nan"), float("nan"), seconds, error.message)
                    else:
                        assert outcome is not None
                        last = outcome.history[-1]
                        trials[number] = Trial(settings, last.loss, last.accuracy, seconds)
                        if best is None or (last.accuracy, -last.loss) > best[:2]:
                            best = last.accuracy, -last.loss, job, outcome
                    free.append(seat)
                    tell(Note(f"{len(trials)} of {len(jobs)}: {told_of(trials[number])}"))
        finally:
            client.run(end_parts, topic, on_error="ignore")
    if best is None:
        raise BroadsheetError(f"every run of the sweep failed: {trials[0].error}")
    return [trials[number] for number in range(len(jobs))], best[2], best[3]


def told_of(trial: Trial) -> str:
    """A line."""
    settings = ", ".join(f"{name} {value}" for name, value in trial.settings.items())
    result = trial.error or f"held out {trial.accuracy:.2%}, loss {trial.loss:.4f}"
    return f"{settings}: {result}, {trial.seconds:.0f} s"
