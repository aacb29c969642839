"""The two jobs on GPUs: a small one from the client's memory, and a large one from Parquet to Parquet."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import cluster.progress
import pipeline.api
import pipeline.graph
from benchmarks.articles import ag_news
from benchmarks.sampling import Sampler
from cluster import connect
from pipeline import classify
from pipeline.engine import open_engine
from pipeline.model import load_model
from pipeline.report.job import JobReport

ROOT = Path(__file__).resolve().parent.parent
GROUPS_A_FILE = 8
_WARM_UP = 5
_OWN_ARTICLES, _OWN_REPEATS = 262_144, 10

_WATCHED = (
    (pipeline.api, "identify", "rows of the list to Arrow"),
    (pipeline.api, "_start_engines", "asking the workers for their engines"),
    (pipeline.api, "open_input", "planning"),
    (pipeline.api, "_timeline", "comparing clocks"),
    (pipeline.api, "_compute", "computing, all of it"),
    (pipeline.graph._Run, "_scatter", "of it: scattering the text"),
    (pipeline.graph._Run, "_map", "of it: submitting the tasks"),
    (pipeline.graph._Run, "next_done", "of it: waiting for results and fetching them"),
    (cluster.progress.DashboardProgress, "start", "of it: telling the dashboard, at the start"),
    (cluster.progress.DashboardProgress, "stop", "of it: telling the dashboard, at the end"),
)


@contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Seconds spent in the client's own steps during the block, by name."""
    seconds: dict[str, float] = {}

    def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began

        return call

    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in _WATCHED]
    try:
        for (owner, attribute, name), (_, _, function) in zip(_WATCHED, before, strict=True):
            setattr(owner, attribute, timed(function, name))
        yield seconds
    finally:
        for owner, attribute, function in before:
            setattr(owner, attribute, function)


def on_the_workers(report: JobReport) -> dict[str, float]:
    """Where the computing's time went by the spans that came home, in seconds."""
    timeline = report.timeline
    began = timeline.ended - report.timings["classify"]
    infer = [s for s in timeline.spans if s.lane == "infer"]
    written = max(s.end for s in timeline.spans if s.lane == "write")
    return {
        "until the first chunk begins": min(s.start for s in infer) - began,
        "from the first chunk's begin to the last one's end": written - min(s.start for s in infer),
        "one chunk on its device, the longest": max(s.seconds for s in infer),
        "from the last chunk's end to its result in the client": timeline.ended - written,
    }


def small_part(
    articles_csv: Path, articles: int, chunk_rows: int, workers: int, where: str, repeats: int, model: str
) -> dict[str, Any]:
    """Articles as a list of strings to labels in the client, on a warm cluster."""
    texts = list(_texts(articles_csv, articles))
    loaded = load_model(model)
    seconds, phases = [], []
    with connect(where, workers=workers) as client:
        for number in range(_WARM_UP + repeats):
            with watched() as steps:
                began = time.perf_counter()
                report = classify(texts, client=client, model=loaded, chunk_size=chunk_rows)
                called = time.perf_counter()
                labels = report.to_arrow()["label"].to_pylist()
                ended = time.perf_counter()
            if len(labels) != articles:
                raise RuntimeError(f"{len(labels)} labels came back, of {articles} articles")
            if number >= _WARM_UP:
                seconds.append(ended - began)
                phases.append(steps | on_the_workers(report) | {"labels as a list": ended - called})
        devices = sorted({place.device for place in report.timeline.places.values()})
    return {
        "articles": articles,
        "text_bytes": sum(len(text.encode()) for text in texts),
        "chunk_rows": chunk_rows,
        "workers": workers,
        "where": where,
        "devices_used_last": devices,
        "backend": report.backend,
        "median_seconds": statistics.median(seconds),
        "seconds": seconds,
        "median_phase_seconds": {name: statistics.median(p.get(name, 0.0) for p in phases) for name in phases[0]},
    }


def _texts(articles_csv: Path, count: int) -> Iterator[str]:
    articles = ag_news(articles_csv, count)
    for first, last in zip(articles.offsets, articles.offsets[1:], strict=False):
        yield articles.data[first:last].tobytes().decode()


def write_articles(articles_csv: Path, folder: Path, count: int, group_rows: int) -> Path:
    """A folder of Parquet files with `count` articles, repeated and shuffled, in row groups of `group_rows`; one that
    is there already is taken.
    """
    stamp, made = folder / "articles.json", {"count": count, "group_rows": group_rows}
    inputs = folder / "articles"
    if stamp.exists() and json.loads(stamp.read_text()) == made:
        return inputs
    stamp.unlink(missing_ok=True)
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir(parents=True)
    with open(articles_csv, newline="", encoding="utf-8") as rows:
        texts = pa.array([f"{title} {text}".strip() for _, title, text in csv.reader(rows)], pa.large_string())
    size = GROUPS_A_FILE * group_rows

    def write(number: int) -> None:
        first, last = number * size, min((number + 1) * size, count)
        order = np.random.default_rng([0, number]).permutation(np.arange(first, last) % len(texts))
        schema = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
        # Without a dictionary: 7,600 texts that repeat would be stored as numbers, which no real input is.
        with pq.ParquetWriter(inputs / f"articles-{number:05d}.parquet", schema, use_dictionary=False) as writer:
            for at in range(first, last, group_rows):
                stop = min(at + group_rows, last)
                columns = [pa.array(np.arange(at, stop)), texts.take(pa.array(order[at - first : stop - first]))]
                writer.write_table(pa.table(columns, schema), row_group_size=group_rows)

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(write, range(-(-count // size))))
    stamp.write_text(json.dumps(made))
    return inputs


def engine_rate(articles_csv: Path, model: str, articles: int, chunk_rows: int) -> dict[str, Any]:
    """The engine alone, from Arrow buffers in host memory to labels there, on one GPU."""
    engine = open_engine(load_model(model))
    whole = ag_news(articles_csv, articles)
    chunks = [whole.part(i, min(i + chunk_rows, articles)) for i in range(0, articles, chunk_rows)]
    found = []
    for _ in range(_OWN_REPEATS + 1):
        began = time.perf_counter()
        for chunk in chunks:
            engine.classify(chunk)
        found.append(time.perf_counter() - began)
    rate, backend = articles / statistics.median(found[1:]), str(engine.backend)
    engine.close()
    return {"backend": backend, "articles": articles, "seconds": found[1:], "articles_per_second": rate}


def one_job(inputs: Path, out: Path, workers: int, where: str, chunk_rows: int, model: str) -> dict[str, Any]:
    """The command, from its start to its end, as a user would call it; its folder is removed then."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "pipeline", "classify", str(inputs), "-o", str(out), "--cluster", where]
    command += ["--workers", str(workers), "--chunk-size", str(chunk_rows), "--id-column", "id", "--model", model]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    began, started = time.perf_counter(), time.time()
    process = subprocess.Popen(
        [*command, "--json", "--quiet"], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    client = psutil.Process(process.pid)
    with Sampler(lambda: {"client and scheduler": [client], "worker": _children(client)}) as sampler:
        answer, _ = process.communicate()
    whole = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"the job on {workers} workers ended with exit code {process.returncode}")
    report = json.loads(answer)
    seconds = (out / "_SUCCESS").stat().st_mtime - started
    written = sum(file.stat().st_size for file in (out / "parts").iterdir())
    shutil.rmtree(out)
    return {
        "gpus": workers,
        "rows": report["rows_written"],
        "chunks": report["chunks"],
        "seconds": seconds,
        "articles_per_second": report["rows_written"] / seconds,
        "whole_command_seconds": whole,
        "before_the_call_seconds": seconds - report["seconds"],
        "timings": report["timings"],
        "output_bytes": written,
        "backend": report["backend"],
        "breakdown": report["breakdown"],
        "memory": sampler.to_dict(report["chunks"]),
    }


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def large_part(
    articles_csv: Path,
    folder: Path,
    count: int,
    gpus: list[int],
    chunk_rows: int,
    where: str,
    model: str,
    own_articles: int,
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Parquet to Parquet on each number of GPUs, beside the engine alone on one."""
    began = time.perf_counter()
    inputs = write_articles(articles_csv, folder, count, chunk_rows)
    files = sorted(inputs.iterdir())
    result: dict[str, Any] = {
        "articles": count,
        "chunk_rows": chunk_rows,
        "files": len(files),
        "input_bytes": sum(file.stat().st_size for file in files),
        "input_seconds": time.perf_counter() - began,
        "where": where,
        "runs": [],
    }
    print(f"{len(files)} files, {result['input_bytes'] / 1e9:.1f} GB, in {result['input_seconds']:.0f} s", flush=True)
    run = partial(one_job, out=folder / "labels", where=where, chunk_rows=chunk_rows, model=model)
    first = run(files[0], workers=1)  # kernels are compiled, or found, here: once for a machine
    result["first_job_seconds"] = first["whole_command_seconds"]
    # A process of its own, so that this one holds no memory of a GPU.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        own = pool.submit(engine_rate, articles_csv, model, own_articles, min(chunk_rows, own_articles)).result()
    result["engine"] = own
    print(f"the engine alone: {own['articles_per_second']:,.0f} articles/s", flush=True)
    for number in gpus:
        found = run(inputs, workers=number)
        if found["rows"] != count:
            raise RuntimeError(f"{found['rows']:,} rows were written, of {count:,}")
        ideal = number * own["articles_per_second"]
        found["share_of_engine"] = found["articles_per_second"] / ideal
        found["window_share_of_engine"] = found["breakdown"]["rows_per_second"] / ideal
        base = (result["runs"] or [found])[0]
        found["speed_up"] = found["articles_per_second"] / base["articles_per_second"]
        found["window_speed_up"] = found["breakdown"]["rows_per_second"] / base["breakdown"]["rows_per_second"]
        result["runs"].append(found)
        keep(result)
        print(f"{number} GPUs: {found['seconds']:.1f} s, {found['articles_per_second']:,.0f} articles/s, "
              f"{found['share_of_engine']:.0%} of the engine's own, {found['speed_up']:.2f} x; while chunks ran "
              f"{found['window_share_of_engine']:.0%}, {found['window_speed_up']:.2f} x; "
              f"{found['breakdown']['verdict']}", flush=True)  # fmt: skip
    return result
