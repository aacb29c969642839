"""The page "Broadsheet" of the Dask dashboard: the job's progress, and what each worker is doing.

A scheduler that imports this module as it starts (`--preload broadsheet.cluster.dashboard`) has the page and the guard.
Dask documents no interface for this, so all code that depends on it is in this file.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta
from html import escape
from typing import Any

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, Div, FixedTicker, NumeralTickFormatter, PlainText
from bokeh.plotting import figure
from distributed import Scheduler
from distributed.dashboard.components import add_periodic_callback
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.scheduler import applications

from ..pipeline.errors import printable
from . import guard  # noqa: F401  # import it before the scheduler's HTTP server starts
from .heartbeat import METRIC, PAGE, TOPIC

_COLORS = {
    "copy-in": "#4c9be8",
    "kernels": "#2a9d5c",  # a GPU computes
    "computing": "#2a9d5c",  # a CPU computes
    "copy-out": "#e8a33d",
    "waiting": "#e4e4e4",
}
_LEGEND = {"copy-in": "copying in", "kernels": "computing", "copy-out": "copying out", "waiting": "waiting"}
_COPIES = ("copy-in", "copy-out")  # only a GPU has these
_SWATCH = (
    '<span style="display:inline-block;width:12px;height:12px;background:{};margin:0 6px 0 18px;'
    'vertical-align:-1px"></span>{}'
)
_REFRESH_MS = 500
_STRIP_SECONDS = 60
_X_RANGE = (-_STRIP_SECONDS, 12)  # seconds from now; the space to the right has each worker's activity and rate
_STYLE = {"sizing_mode": "stretch_width", "tools": "", "min_border_left": 110}  # for both charts
_RATE_SECONDS = 5.0
_MOST_WORKERS = 64  # of these at most, the page shows the activity
_BAR = ("left", "right", "top", "bottom", "color")
_TASKS = ("label-", "write-", "infer-and-write-")  # with these, the names of a job's tasks begin
_UNDONE = ("waiting", "processing", "queued", "no-worker")  # Dask's states of tasks that are in flight
_CARD = (
    '<div style="display:inline-block;margin:0 28px 6px 0"><div style="color:#777;font-size:12px">{}</div>'
    '<div style="font-size:22px;font-weight:600;font-variant-numeric:tabular-nums">{}</div></div>'
)
_CELL = '<td style="background:{};padding:2px 10px">{}</td>'


class _Pace:
    """The number of articles per second over the last few seconds, from a count that only grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, moment: float, count: int) -> None:
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()  # the count is that of another process or job
        elif self._seen and moment <= self._seen[-1][0]:
            return
        self._seen.append((moment, count))
        while len(self._seen) > 2 and self._seen[1][0] < moment - _RATE_SECONDS:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        if len(self._seen) < 2:
            return 0.0
        (since, before), (until, after) = self._seen[0], self._seen[-1]
        return (after - before) / (until - since)


class _Page:
    """The page in one browser.

    Workers send their figures with their heartbeats, and the client sends those of the job. From top to bottom:

    - `_cards`: the job's progress, as numbers
    - `_chart`: the articles per second of all workers, from `_seen` (time, rate)
    - `_gantt`: a row for each worker, with the activities of the last minute (`_bars`) and of this moment (`_now`).
      `_until` has the time to which each worker's figures are drawn.
    - `_legend`: the colors of the activities
    - `_scores`: the rows of each label, by score
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._bars: list[tuple[float, float, float, float, str]] = []
        self._paces: dict[str, _Pace] = {}
        self._seen: deque[tuple[float, float]] = deque(maxlen=_STRIP_SECONDS * 1000 // _REFRESH_MS)
        self._until: dict[str, float] = {}
        self._names: list[str] = []
        self._cards = Div(text="", sizing_mode="stretch_width")
        self._rates = ColumnDataSource({"time": [], "rate": []})
        self._strip = ColumnDataSource({name: [] for name in _BAR})
        self._now = ColumnDataSource({name: [] for name in ("x", "y", "text")})
        chart = figure(title="articles a second", height=200, x_range=_X_RANGE, **_STYLE)
        chart.xaxis.visible = False
        chart.line("time", "rate", source=self._rates, line_width=2, color="#2a9d5c")
        chart.varea("time", y1=0, y2="rate", source=self._rates, fill_color="#2a9d5c", fill_alpha=0.15)
        chart.yaxis.formatter = NumeralTickFormatter(format="0,0")
        chart.y_range.start = 0
        self._chart = chart
        self._gantt = self._new_strip()
        self._legend = Div(text="")
        self._scores = Div(text="", sizing_mode="stretch_width")
        parts = (self._cards, chart, self._gantt, self._legend, self._scores)
        self.root = column(*parts, sizing_mode="stretch_width", margin=(10, 20, 10, 20))

    def _new_strip(self) -> Any:
        title = f"what each worker is doing, over the last {_STRIP_SECONDS} s"
        strip = figure(title=title, height=120, x_range=self._chart.x_range, y_range=(1, 0), **_STYLE)
        strip.quad("left", "right", "top", "bottom", source=self._strip, fill_color="color", line_color=None)
        strip.text("x", "y", "text", source=self._now, text_baseline="middle", text_font_size="12px")
        strip.grid.visible = False
        strip.xaxis.ticker = FixedTicker(ticks=list(range(-_STRIP_SECONDS, 1, 10)))
        strip.xaxis.axis_label = "seconds ago"
        return strip

    def update(self) -> None:
        now = time.time()
        workers = sorted(
            (ws for ws in self._scheduler.workers.values() if METRIC in ws.metrics),
            key=lambda ws: (ws.host, str(ws.name).zfill(8)),
        )
        for ws in workers:
            self._paces.setdefault(ws.address, _Pace()).add(ws.metrics[METRIC]["until"], ws.metrics[METRIC]["rows"])
        job = self._scheduler.task_metadata.get(TOPIC)
        total = sum(self._paces[ws.address].rate for ws in workers)
        self._cards.text = self._cards_of(job, total, now)
        self._scores.text = _scores_of(job) if job and job["kept"] else ""
        self._legend.text = _legend(on_gpu=bool(job) and job["backend"].startswith("cuda"))
        self._seen.append((now, total))
        self._rates.data = {"time": [t - now for t, _ in self._seen], "rate": [rate for _, rate in self._seen]}
        self._update_strip(workers[:_MOST_WORKERS], now)

    def _cards_of(self, job: dict[str, Any] | None, rate: float, now: float) -> str:
        if not job:
            return "<h2>Broadsheet</h2><p>No job yet.</p>"
        ours = [group for group in self._scheduler.task_groups.values() if group.name.startswith(_TASKS)]
        undone = sum(group.states[state] for group in ours for state in _UNDONE)
        ended = job["ended"]
        seconds = job["seconds_left"]
        cards = [
            ("articles a second", "–" if ended else f"{rate:,.0f}"),
            ("articles done", f"{job['rows']:,}" + (f" of {job['rows_known']:,}" if job["rows_known"] else "")),
            ("of the input", f"{job['share']:.0%}" if job["share"] else "?"),
            ("chunks done", f"{job['chunks']:,}"),
            ("tasks in flight", f"{undone:,}"),
            ("quarantined rows", f"{job['rows_quarantined']:,}"),
            ("time left", "ended" if ended else "?" if seconds is None else str(timedelta(seconds=round(seconds)))),
        ]
        told = f"{job['model']} on {job['backend']}" + (f" → {job['output']}" if job["output"] else "")
        where = escape(printable(told))
        body = "".join(_CARD.format(name, value) for name, value in cards)
        return f'<h2 style="margin:0">Broadsheet</h2><p style="color:#555;margin:2px 0 12px">{where}</p>{body}'

    def _update_strip(self, workers: list[Any], now: float) -> None:
        for number, ws in enumerate(workers):
            since, until, seconds = (ws.metrics[METRIC][name] for name in ("since", "until", "seconds"))
            if until == self._until.get(ws.address):
                continue
            self._until[ws.address] = until
            top = number + 0.1
            for name, color in _COLORS.items():
                bottom = top + 0.8 * seconds.get(name, 0.0) / max(until - since, 1e-9)
                if bottom > top:
                    self._bars.append((since, until, top, bottom, color))
                    top = bottom
        self._bars = [bar for bar in self._bars if bar[1] > now - _STRIP_SECONDS]
        moved = [(since - now, until - now, *rest) for since, until, *rest in self._bars]
        self._strip.data = {name: [bar[i] for bar in moved] for i, name in enumerate(_BAR)}
        self._name_rows(workers)

    def _name_rows(self, workers: list[Any]) -> None:
        hosts = {ws.host for ws in workers}
        names = [f"{ws.host} {ws.name}" if len(hosts) > 1 else f"worker {ws.name}" for ws in workers]
        strip = self._gantt
        strip.height = 110 + 26 * max(len(workers), 1)
        strip.y_range.start = max(len(workers), 1)
        if names != self._names:
            self._names = names
            strip.yaxis.ticker = FixedTicker(ticks=[i + 0.5 for i in range(len(workers))])
            strip.yaxis.major_label_overrides = {
                i + 0.5: PlainText(text=printable(name)) for i, name in enumerate(names)
            }
        seconds = [ws.metrics[METRIC]["seconds"] for ws in workers]
        doing = [max(by_name, key=by_name.get, default="") for by_name in seconds]
        rates = [self._paces[ws.address].rate for ws in workers]
        self._now.data = {
            "x": [0.4] * len(workers),
            "y": [i + 0.5 for i in range(len(workers))],
            "text": [f"{name}, {rate:,.0f}/s" for name, rate in zip(doing, rates, strict=True)],
        }


def _legend(on_gpu: bool) -> str:
    shown = [name for name in _LEGEND if on_gpu or name not in _COPIES]
    return "".join(_SWATCH.format(_COLORS[name], _LEGEND[name]) for name in shown)


def _scores_of(job: dict[str, Any]) -> str:
    """Return a table of the rows of each label, and of the share of them that reaches each score. Darker means more."""
    heads = ["label", "rows", *(f"≥ {score}" for score in job["thresholds"])]
    lines = [f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"]
    for label, rows, of_each in job["kept"]:
        shares = [(f"{n / rows:.0%}", f"rgba(42,157,92,{0.5 * n / rows:.2f})") for n in of_each]
        cells = [(escape(printable(label)), "none"), (f"{rows:,}", "none"), *shares]
        lines.append(f"<tr>{''.join(_CELL.format(color, text) for text, color in cells)}</tr>")
    return f'<h3 style="margin:8px 0">Scores so far</h3><table style="text-align:right">{"".join(lines)}</table>'


def _page(scheduler: Scheduler, extra: dict[str, Any], doc: Any) -> None:
    page = _Page(scheduler)
    page.update()
    add_periodic_callback(doc, page, _REFRESH_MS)
    doc.add_root(page.root)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME
    doc.title = "Broadsheet"


applications[PAGE] = _page
applications["/individual-broadsheet"] = _page  # with this name the page is in the menu "More..." and in JupyterLab
