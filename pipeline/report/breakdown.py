"""Finds where a job's time went, and what bounds each of its kernels.

`break_down` gives the moments of each device, what it waited for, and what the job was bound by. `judge` compares a
kernel with the ceilings measured in the same run. Its model is that of Williams, Waterman and Patterson ("Roofline",
2009): a kernel of F operations over Q bytes takes at least max(F / peak, Q / bandwidth).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..telemetry.profile import Ceilings, KernelProfile
from ..telemetry.spans import Place, Span
from .timeline import Timeline, place_order

MOMENTS = (
    "classifier start",
    "memory ready",
    "engine ready",
    "input started",
    "first compute",
    "input finished",
    "compute finished",
    "output gathered",
)
"""The moments of each device, in seconds since the job began. Some are negative if a cluster had the model already."""

BUSY_ENOUGH = 0.8
"""A device with at least this busy share is what the job was bound by."""

CAUSES = ("store", "transfer", "hand-over", "ingest", "reader", "writer", "imbalance")
"""The causes for which a device waits."""

_NAMED = ("queue", "room", "decode")
"""Spans that count by their name instead of their lane: two kinds of waiting, and "decode", which is within "read"."""

_FEW_CHUNKS = 3
_TELLING_SECONDS = 3.0
"""In less time, start and end outweigh the rest, so the verdict names them instead of the size of chunks."""

_NEARLY_FULL = 0.8
"""A chunk with less than this share of the row limit was ended by another limit."""

NEAR = 0.5
"""A kernel that reaches this share of a ceiling is bound by it."""

_SHORT_SECONDS = 20e-6
_LOW_OCCUPANCY = 0.25
_MUCH_WASTE = 0.2
"""The limits beyond which `_latency_reason` gives the time, the occupancy or the waste of a kernel as the reason."""


MUCH_ASKED = 0.25
"""A share of asked texts that is high: a model asks its network about fewer texts like those it was trained on."""


def asks(share: float, second: str) -> str:
    """Return advice on what is faster if this share of the texts is given to `second`, "network" or "encoder"."""
    return f"--network none (n-grams alone, less exact): the {second} is asked about {share:.0%} of the texts"


@dataclass(frozen=True)
class DeviceTimes:
    """The times of one worker's device.

    Attributes
    ----------
    host, device : str
        The host, and the name of the device on it.
    where : str
        The worker, as its spans name it.
    rows, chunks : int
        The number of rows and of chunks that the worker labelled.
    moments : dict of str to float
        The MOMENTS by name, in seconds since the job began.
    shares : dict of str to float
        Shares of the time from the first input to the last output: "compute", when a kernel ran on the device, then
        each of CAUSES, for which it waited. Two workers that share a GPU have the same shares.

    """

    host: str
    device: str
    where: str
    rows: int
    chunks: int
    moments: dict[str, float]
    shares: dict[str, float]

    @property
    def busy(self) -> float:
        return self.shares["compute"]


@dataclass(frozen=True)
class Breakdown:
    """The time of a job, device by device, and what took most of it.

    Attributes
    ----------
    devices : tuple of DeviceTimes
        The times of each device, in order of host and device.
    seconds : float
        The seconds of the whole job.
    window : float
        The seconds from the first input to the last output.
    rows : int
        The number of rows that were labelled.
    bound_by, verdict : str or None
        The cause that took the most time, and a sentence about it; None if no chunk was left to do.
    clock_error : float
        The largest difference between the clocks of two hosts, in seconds.

    """

    devices: tuple[DeviceTimes, ...]
    seconds: float
    window: float
    rows: int
    bound_by: str | None
    verdict: str | None
    clock_error: float

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.window if self.window else 0.0

    @property
    def is_telling(self) -> bool:
        """Whether the work took long enough to say something about speed."""
        return self.window >= _TELLING_SECONDS

    @property
    def is_worth_a_line(self) -> bool:
        """Whether the user has waited long enough to ask for the cause."""
        return self.seconds >= _TELLING_SECONDS and self.verdict is not None

    @property
    def busy(self) -> float:
        """The busy share, as a mean over the devices."""
        return float(np.mean([d.busy for d in self.devices])) if self.devices else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "devices": [
                asdict(d)
                | {"moments": {name: round(at, 6) for name, at in d.moments.items()}}
                | {"shares": {name: round(share, 4) for name, share in d.shares.items()}}
                for d in self.devices
            ],
            "end": round(self.seconds, 6),
            "window": round(self.window, 6),
            "rows_per_second": round(self.rows_per_second, 1),
            "busy": round(self.busy, 4),
            "bound_by": self.bound_by,
            "verdict": self.verdict,
            "clock_error": self.clock_error,
        }


def break_down(
    timeline: Timeline, precision: str, chunk_rows: int = 0, asked: float = 0.0, second: str = "network"
) -> Breakdown:
    """Return the breakdown of a job's spans.

    Parameters
    ----------
    timeline : Timeline
        The spans.
    precision : str
        The precision of the engines. This and the following parameters decide the advice.
    chunk_rows : int
        The limit of rows in a chunk.
    asked : float
        The share of texts that the n-grams gave to the network or encoder; 0 if they do not choose.
    second : str
        The model that was asked, "network" or "encoder".

    """
    # Sort the spans by worker.
    seconds = timeline.ended - timeline.began
    of_place: dict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        of_place[span.where].append(span)
    elsewhere = [s for where, spans in of_place.items() if where not in timeline.places for s in spans]
    if not timeline.places:
        return Breakdown((), seconds, 0.0, 0, None, None, timeline.clock.error)

    # Find the moments of each worker, and the time from the first input to the last output.
    places = sorted(timeline.places.values(), key=place_order)
    moments = {p.where: _moments(timeline, p, of_place[p.where], elsewhere) for p in places}
    begin = min(m["input started"] for m in moments.values())
    end = max(m["output gathered"] for m in moments.values())

    # Attribute that time to causes, for each device.
    of_device: dict[str, list[Span]] = defaultdict(list)
    for place in places:
        of_device[_device_of(place)] += of_place[place.where]
    devices = []
    for place in places:
        chunks = {s.chunk for s in of_place[place.where] if s.lane == "write"}
        shares = _shares(of_device[_device_of(place)], elsewhere, begin + timeline.began, end + timeline.began)
        counts = sum(timeline.rows[chunk] for chunk in chunks), len(chunks)
        devices.append(DeviceTimes(place.host, place.device, place.where, *counts, moments[place.where], shares))

    # Name the cause that took the most time. In a short job that is the start.
    whole = sum(timeline.rows.values()) < _NEARLY_FULL * chunk_rows * sum(device.chunks for device in devices)
    advice = asks(asked, second) if asked > MUCH_ASKED else None
    shared = len(of_device) < len(places)
    bound_by, verdict = _verdict(devices, precision, bool(elsewhere), whole, shared, advice)
    window, rest = end - begin, seconds - (end - begin)
    if rest > window:
        start = f"start and end took {rest:.1f} of {seconds:.1f} s"
        if window < _TELLING_SECONDS:
            bound_by, verdict = "start", f"bound by the start: {start}; label more rows at once, or keep a model loaded"
        else:
            verdict = f"{verdict}. But {start}"
    error = max(timeline.clock.error, *(p.clock.error for p in places))
    rows = sum(timeline.rows.values())
    return Breakdown(tuple(devices), seconds, end - begin, rows, bound_by, verdict, error)


def _device_of(place: Place) -> str:
    """Return the device of a worker. Two workers may share a GPU, which is busy while it computes for either."""
    return f"{place.host} {place.device}" if place.device.startswith("cuda") else place.where


def _moments(timeline: Timeline, place: Place, spans: list[Span], elsewhere: list[Span]) -> dict[str, float]:
    chunks = {s.chunk for s in spans}
    lanes: dict[str, list[Span]] = defaultdict(list)
    for span in [*spans, *(s for s in elsewhere if s.chunk in chunks)]:
        lanes[span.lane].append(span)
    compute = lanes["compute"] or lanes["infer"]
    taken_in = lanes["read"] or lanes["copy-in"] or lanes["infer"]  # rows in memory have no reader
    moments = {
        "classifier start": timeline.moment(place, "started"),
        "memory ready": timeline.moment(place, "memory_ready"),
        "engine ready": timeline.moment(place, "engine_ready"),
        "input started": min(s.start for s in taken_in),
        "first compute": min(s.start for s in compute),
        "input finished": max(s.start if s.lane == "infer" else s.end for s in taken_in),
        "compute finished": max(s.end for s in compute),
        "output gathered": max(s.end for s in lanes["write"]),
    }
    return {name: at - timeline.began for name, at in moments.items()}


def _shares(spans: list[Span], elsewhere: list[Span], begin: float, end: float) -> dict[str, float]:
    """Return what a device did and what it waited for, as shares of the time from `begin` to `end`.

    When no kernel ran, the function looks for the cause from the device back to the files. So a reader that waits for
    others is not the cause.
    """
    # Cut the time wherever a span begins or ends, and find the spans that are active between the cuts.
    by_name: dict[str, list[Span]] = defaultdict(list)
    for span in [*spans, *elsewhere]:
        if not (span.lane == "wait" and span.device):  # omit the waits of an engine for its own device, which computes
            by_name[span.name if span.name in _NAMED else span.lane].append(span)
    by_name["compute"] = by_name["compute"] or by_name["infer"]
    bounds = [moment for some in by_name.values() for one in some for moment in (one.start, one.end)]
    edges = np.unique(np.array([begin, end, *bounds]).clip(begin, end))
    middles, left = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / (end - begin)
    active: dict[str, np.ndarray[Any, Any]] = defaultdict(lambda: np.zeros(len(middles), np.int64))
    active |= {name: _active(some, middles) for name, some in by_name.items()}
    is_own = (middles >= min(s.start for s in spans)) & (middles < max(s.end for s in spans))
    shares = dict.fromkeys(("compute", *CAUSES), 0.0)

    def attribute(name: str, share: np.ndarray[Any, Any]) -> None:
        """Give a cause its share of each moment that has no cause yet."""
        nonlocal left
        shares[name] += float((left * share).sum())
        left = left * (1 - share)

    # Give each moment to the first of these causes that is active in it.
    attribute("compute", active["compute"] > 0)
    attribute("store", active["store"] > 0)
    attribute("transfer", active["copy-in"] + active["copy-out"] > 0)
    # The engine has a chunk and runs no kernel, or it is free and a thread with a chunk has not reached it yet.
    attribute("hand-over", active["infer"] + active["wait"] > 0)
    # A chunk waits for a thread, and the threads write.
    attribute("writer", (active["queue"] > 0) & (active["write"] > 0))
    # Some of the threads that read and do not wait for room are in the ingest. The others wait for bytes of files.
    reading = active["read"] - active["room"]
    attribute("ingest", np.minimum(active["ingest"], reading).clip(0) / reading.clip(1))
    attribute("reader", reading > 0)
    attribute("writer", active["write"] > 0)
    attribute("hand-over", is_own)
    attribute("imbalance", ~is_own)
    return shares


def _active(spans: list[Span], times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return how many of the spans are active at each of the times."""
    starts, ends = (np.sort([getattr(one, name) for one in spans]) for name in ("start", "end"))
    return np.asarray(np.searchsorted(starts, times, "right") - np.searchsorted(ends, times, "right"))


def _verdict(
    devices: list[DeviceTimes], precision: str, streamed: bool, whole: bool, shared: bool, advice: str | None
) -> tuple[str, str]:
    """Return what a job was bound by, and a sentence about it.

    Parameters
    ----------
    devices : list of DeviceTimes
        The times of the job's devices.
    precision : str
        The precision of the engines.
    streamed : bool
        Whether the client read the input.
    whole : bool
        Whether the end of a row group or the limit of memory ends chunks, rather than the limit of rows.
    shared : bool
        Whether workers share a GPU.
    advice : str, optional
        What would be faster on a busy device.

    """
    # A busy device is the bound itself.
    shares = {name: float(np.mean([d.shares[name] for d in devices])) for name in devices[0].shares}
    gpu = devices[0].device.startswith("cuda")
    kind = "GPU" if gpu else "CPU"
    busy = shares.pop("compute")
    if busy >= BUSY_ENOUGH:
        faster = "more cores"
        if gpu:
            faster = "more GPUs, or the precision fp16" if precision == "fp32" else "more GPUs"
        if advice:
            faster += f", or with {advice}"
        return kind, f"bound by the {kind}, busy {busy:.0%}: go faster with {faster}"

    # Otherwise the bound is the cause that the devices waited for longest.
    cause = max(shares, key=lambda name: shares[name])
    few = max(d.chunks for d in devices) < _FEW_CHUNKS
    larger = "more cores for each worker (chunks are as large as they can be)" if whole else "larger chunks"
    can_share = gpu and not shared  # two workers on a GPU do not wait for each other's Python
    other = "uncompressed JSON Lines or CSV" if gpu else "Parquet in place of another format"
    in_parts = f"more cores for each worker, or {other}"
    change = {
        "store": "again once it answers every request, or with fewer workers and jobs at a time",
        "reader": "uncompressed or several files: the client reads this input alone" if streamed else in_parts,
        "transfer": larger,
        "ingest": "two workers on each GPU" if can_share else "more GPUs",
        "writer": "a faster output disk, or more threads a worker",
        "hand-over": "two workers on each GPU" if whole and can_share else larger,
        "imbalance": "smaller chunks",
    }[cause]
    if few and not streamed and cause != "store":
        change = "smaller chunks: so few cannot overlap"
    return cause, f"bound by the {cause}: {kind} busy {busy:.0%}, {shares[cause]:.0%} waiting for it; try {change}"


@dataclass(frozen=True)
class Judged:
    """A kernel and what bounds it.

    Attributes
    ----------
    kernel : KernelProfile
        The measured figures.
    flop_per_second, bytes_per_second : float
        The operations of the kernel, and its least bytes, divided by its time.
    intensity : float
        FLOP per byte, over the least bytes.
    ceiling_share : float
        The time that the roofline allows divided by the time that the kernel took.
    bound : str
        "compute", "memory" or "latency".
    reason : str
        The figure that decides the bound.

    """

    kernel: KernelProfile
    flop_per_second: float
    bytes_per_second: float
    intensity: float
    ceiling_share: float
    bound: str
    reason: str


def judge(kernel: KernelProfile, ceilings: Ceilings) -> Judged:
    """Return what bounds a kernel when it runs alone.

    The bytes are those that the hardware counted. If it counted none, they are the larger of the least and the modelled
    bytes. A kernel is memory-bound if moving them takes at least half of its time.
    """
    compute = kernel.flop / ceilings.flop_per_second / kernel.seconds
    least = kernel.least_bytes / ceilings.bytes_per_second / kernel.seconds
    moved_bytes = kernel.counted_bytes or max(kernel.least_bytes, kernel.modelled_bytes)
    moved = moved_bytes / ceilings.bytes_per_second / kernel.seconds
    if compute >= NEAR and compute >= least:
        bound, reason = "compute", f"{compute:.0%} of the product ceiling"
    elif moved >= NEAR:
        bound, reason = "memory", _memory_reason(kernel, least, moved, moved_bytes)
    else:
        bound, reason = "latency", _latency_reason(kernel, compute, moved)
    rates = kernel.flop / kernel.seconds, kernel.least_bytes / kernel.seconds
    return Judged(kernel, *rates, kernel.flop / kernel.least_bytes, max(compute, least), bound, reason)


def _memory_reason(kernel: KernelProfile, least: float, moved: float, moved_bytes: int) -> str:
    if least >= NEAR:
        return f"{least:.0%} of the copy ceiling, by its least bytes"
    if moved > 1:
        return f"{moved_bytes / kernel.least_bytes:.0f}× the least bytes, part cached"
    return f"{moved:.0%} of the copy ceiling, {moved_bytes / kernel.least_bytes:.0f}× the least"


def _latency_reason(kernel: KernelProfile, compute: float, moved: float) -> str:
    if kernel.seconds < _SHORT_SECONDS:
        return f"{kernel.seconds * 1e6:.0f} µs: hardly longer than a launch"
    if kernel.waves is not None and kernel.waves < 1:
        return f"{kernel.waves:.1f} waves do not fill the device"
    if kernel.tail_waste is not None and kernel.tail_waste > _MUCH_WASTE:
        return f"{kernel.tail_waste:.0%} lost in the last wave"
    if kernel.tile_waste is not None and kernel.tile_waste > _MUCH_WASTE:
        return f"{kernel.tile_waste:.0%} of each tile thrown away"
    if kernel.occupancy is not None and kernel.occupancy < _LOW_OCCUPANCY:
        return f"occupancy {kernel.occupancy:.0%}: too few warps to hide waits"
    return f"{compute:.0%} of product, {moved:.0%} of copy ceiling"
