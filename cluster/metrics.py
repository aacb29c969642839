"""Adds Broadsheet's figures to what Dask's servers answer at `/metrics`, in Prometheus's format.

A worker reports its own figures. The scheduler reports those of all workers, which arrive with their heartbeats, and
the progress of the job. If prometheus-client is not installed, Dask answers nothing there, and this module does
nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from distributed import Scheduler

from ..pipeline.labelling.engines import ENGINES
from ..pipeline.telemetry.activity import COUNTS, HELP
from .heartbeat import METRIC, TOPIC

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_WORKER, _SCHEDULER = "broadsheet_worker", "broadsheet_scheduler"
_JOB = {
    "rows": "Rows that the last job has done",
    "rows_known": "Rows of the last job in all; 0 where that is not known",
    "rows_quarantined": "Rows of the last job that are in quarantine",
    "chunks": "Chunks that the last job has done",
}
_registered: dict[str, _Collector] = {}


class _Collector:
    """Computes the figures at each request of Prometheus's registry.

    The registry takes a name only once. So a later server of this process replaces `collect` of the same collector.
    """

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect


def tell_worker() -> None:
    """Make this process's workers report their figures from now on."""
    _register(_WORKER, _of_worker)


def tell_scheduler(scheduler: Scheduler) -> None:
    """Make this scheduler report the figures of its workers and of the job from now on."""
    _register(_SCHEDULER, lambda: _of_scheduler(scheduler))


def _register(name: str, collect: Callable[[], Iterable[Metric]]) -> None:
    if importlib.util.find_spec("prometheus_client") is None:
        return
    from prometheus_client import REGISTRY

    if name in _registered:
        _registered[name].collect = collect
    else:
        _registered[name] = _Collector(collect)
        REGISTRY.register(_registered[name])


def _of_worker() -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    yield from _figures(_WORKER, [((), {"counts": COUNTS.counts, "busy": COUNTS.seconds})], ())
    yield GaugeMetricFamily(f"{_WORKER}_engines", "Models in memory", value=len(ENGINES.engines))


def _of_scheduler(scheduler: Scheduler) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    told = [((ws.address,), ws.metrics[METRIC]) for ws in scheduler.workers.values() if METRIC in ws.metrics]
    yield from _figures(_SCHEDULER, told, ("worker",))
    job = scheduler.task_metadata.get(TOPIC)
    if job is not None:
        for name, help_ in _JOB.items():
            yield GaugeMetricFamily(f"{_SCHEDULER}_job_{name}", help_, value=job[name])
        yield GaugeMetricFamily(f"{_SCHEDULER}_job_running", "Whether a job is running", value=not job["ended"])


def _figures(
    prefix: str, told: Iterable[tuple[tuple[str, ...], Mapping[str, Any]]], labels: tuple[str, ...]
) -> Iterator[Metric]:
    """Yield the figures of several processes. `told` has the values of `labels` and the counts of each process."""
    from prometheus_client.core import CounterMetricFamily

    families = {name: CounterMetricFamily(f"{prefix}_{name}", help_, labels=labels) for name, help_ in HELP.items()}
    about = "Seconds by activity; kernels: the GPU is busy, computing: the CPU is"
    seconds = CounterMetricFamily(f"{prefix}_activity_seconds", about, labels=(*labels, "activity"))
    for values, figures in told:
        for name, family in families.items():
            family.add_metric(values, figures["counts"][name])
        for activity, spent in figures["busy"].items():
            seconds.add_metric((*values, activity), spent)
    yield from families.values()
    yield seconds
