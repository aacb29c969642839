"""Whole jobs over corpora as people have them: compressed, many files, long texts, one large file.

    python -m benchmarks.corpora --articles-csv ag_news/test.csv --folder /tmp/corpora --gpus 1
    python -m benchmarks.corpora --articles-csv ag_news/test.csv --folder /tmp/corpora --where local --scale 0.05

For each corpus: a call of `classify` on a cluster that has done the same before, from files to Parquet, with the share
of the time in which the GPU was busy; beside it the same job with a stand-in for the network, which is the rate of
reader and writer alone; PyArrow, which reads the column of texts in a process for each core; and the engine alone on
such texts. On N GPUs there are N times as many files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.corpora_files import Corpus, table_by_pyarrow, texts_of, write_corpus
from benchmarks.processes import PRELOAD, STAND_IN, Sampler, family, run_job
from benchmarks.record import RESULTS, about, parser, seconds_of, write
from broadsheet.cluster import connect
from broadsheet.pipeline import classify
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model.charcnn import load_model
from broadsheet.pipeline.processes.threads import available_cores
from broadsheet.pipeline.source.limits import CHUNK_ROWS

CORPORA = (
    Corpus("short-parquet", ".parquet", 32, 250_000),
    Corpus("short-jsonl", ".jsonl", 32, 250_000),
    Corpus("short-csv", ".csv", 32, 250_000),
    Corpus("short-jsonl-gz", ".jsonl.gz", 64, 125_000),
    Corpus("short-jsonl-zst", ".jsonl.zst", 64, 125_000),
    Corpus("small-jsonl-gz", ".jsonl.gz", 16_000, 500, small=True),
    Corpus("long-parquet", ".parquet", 64, 31_250, long=True),
    Corpus("long-jsonl", ".jsonl", 64, 31_250, long=True),
    Corpus("long-jsonl-gz", ".jsonl.gz", 64, 31_250, long=True),
    Corpus("long-jsonl-zst", ".jsonl.zst", 64, 31_250, long=True),
    Corpus("long-jsonl-16", ".jsonl", 16, 125_000, long=True),
    Corpus("long-jsonl-4", ".jsonl", 4, 500_000, long=True),
    Corpus("long-jsonl-1", ".jsonl", 1, 2_000_000, long=True),
    Corpus("short-jsonl-4", ".jsonl", 4, 2_000_000),
    Corpus("short-csv-4", ".csv", 4, 2_000_000),
    Corpus("one-jsonl-gz", ".jsonl.gz", 64, 31_250, long=True, one=True),
)
"""On one GPU; on more, as many times as many files."""

_ENGINE_ROWS, _ENGINE_CALLS, _ENGINE_REPEATS = 131_072, 8, 5


def engine_rate(articles_csv: Path, model: str, long: bool) -> dict[str, Any]:
    """The rate of the engine alone on one device, from host memory to labels there, on texts cut as the reader cuts
    them.
    """
    engine = open_engine(load_model(model))
    texts = Texts.of(
        [t[: engine.model.length].encode() for t in texts_of(articles_csv, long, _ENGINE_ROWS).to_pylist()]
    )
    seconds = seconds_of(lambda: [engine.classify(texts) for _ in range(_ENGINE_CALLS)], _ENGINE_REPEATS + 1)[1:]
    engine.close()
    rate = _ENGINE_CALLS * _ENGINE_ROWS / statistics.median(seconds)
    return {"backend": str(engine.backend), "articles_per_second": rate}


def job(inputs: Path, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """A job on a cluster that has done the same before, so that its processes have the memory that they need."""
    with connect(options["where"], workers=options["workers"], protocol=options["protocol"]) as client:
        given = {"model": options["model"], "chunk_size": options["chunk_rows"], "overwrite": True, "client": client}
        given["network"] = options["network"]
        first, second = (classify(str(inputs), out, **given).to_dict() for _ in range(2))
    shutil.rmtree(out)
    return _told(second) | {"first_rows_per_second": first["breakdown"]["rows_per_second"]}


def _told(report: dict[str, Any]) -> dict[str, Any]:
    by_device = report["breakdown"]
    kept = {name: report[name] for name in ("chunks", "seconds", "timings")}
    kept |= {name: by_device[name] for name in ("window", "rows_per_second", "busy", "verdict")}
    return kept | {"rows": report["rows_written"], "shares": [device["shares"] for device in by_device["devices"]]}


def measured(inputs: Path, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """`job` in a process of its own, and the peak memory of that process and of its largest child."""
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        Sampler(family(pool.submit(os.getpid).result(), "client and scheduler")) as sampler,
    ):
        about_job = pool.submit(job, inputs, out, options).result()
    return about_job | {"peak_bytes": {role: max(values) for role, values in sampler.bytes.items()}}


def commanded(inputs: Path, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The same job as a user calls it, from the start of the command to the last file of its commit."""
    began = time.time()
    cluster = ("--cluster", options["where"], "--workers", options["workers"], "--protocol", options["protocol"])
    chunks = ("--chunk-size", options["chunk_rows"]) if options["chunk_rows"] else ()
    report, sampler = run_job(
        inputs, "-o", out, "--quiet", "--model", options["model"], "--network", options["network"], *chunks,
        *(cluster if options["workers"] > 1 else ()), client="client and scheduler",
    )  # fmt: skip
    seconds = (out / "_SUCCESS").stat().st_mtime - began
    shutil.rmtree(out)
    return _told(report) | {
        "seconds": seconds,
        "before_the_call_seconds": seconds - report["seconds"],
        "peak_bytes": {role: max(values) for role, values in sampler.bytes.items()},
    }


def by_pyarrow(inputs: Path, repeats: int = 3) -> dict[str, float]:
    """Rows a second, and the processor seconds that they take."""
    files, cores = sorted(inputs.iterdir()), available_cores()
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), pa.set_cpu_count, (1,)) as pool:
        rounds = []
        for _ in range(1 + repeats):
            began = time.perf_counter()
            told = list(pool.map(_by_pyarrow, files, chunksize=max(1, len(files) // (8 * cores))))
            rows, busy = map(sum, zip(*told, strict=True))
            rounds.append((rows / (time.perf_counter() - began), busy))
    rates, seconds = zip(*rounds[1:], strict=True)
    return {"rows_per_second": statistics.median(rates), "processor_seconds": statistics.median(seconds)}


def _by_pyarrow(file: Path) -> tuple[int, float]:
    began = time.process_time()
    rows = len(table_by_pyarrow(file))
    return rows, time.process_time() - began


def measure(corpus: Corpus, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    corpus = replace(corpus, files=corpus.files * workers).scaled(options.scale)
    if corpus.one:
        corpus = replace(corpus, files=corpus.files // workers)
    inputs = write_corpus(options.articles_csv, options.folder, corpus)
    sizes = [file.stat().st_size for file in inputs.iterdir()]
    given = {"where": options.where, "workers": workers, "model": options.model, "chunk_rows": options.chunk_rows}
    given |= {"protocol": options.protocol, "network": options.network}
    run: dict[str, Any] = {"name": corpus.name, "files": len(sizes), "stored_bytes": sum(sizes), "workers": workers}
    out = options.folder / "labels"
    if options.where == "cuda":
        run["job"] = measured(inputs, out, given)
        if options.command:
            run["command"] = commanded(inputs, out, given)
    stub_rows = options.chunk_rows or CHUNK_ROWS["cuda"]  # it counts as a CPU, whose chunks are small
    os.environ |= {PRELOAD: STAND_IN, "STAND_IN_WORKERS": str(workers)}
    try:
        run["reader"] = measured(inputs, out, given | {"where": "local", "protocol": "auto", "chunk_rows": stub_rows})
    finally:
        del os.environ[PRELOAD]
    run["pyarrow"] = by_pyarrow(inputs)
    if not options.keep:
        shutil.rmtree(inputs)
    return run


def main() -> None:
    command = parser(__doc__, RESULTS / "corpora_1.json", articles=True)
    command.add_argument("--folder", type=Path, required=True, help="for input and output: 25 GB a GPU")
    command.add_argument("--where", default="cuda", choices=("cuda", "local"), help="local: the reader alone")
    command.add_argument("--protocol", default="auto", choices=("auto", "tcp", "ucx"))
    command.add_argument("--gpus", type=int, nargs="+", default=[1])
    command.add_argument("--corpora", nargs="+", default=[c.name for c in CORPORA], choices=[c.name for c in CORPORA])
    command.add_argument("--chunk-rows", type=int, help="default: that of the product")
    command.add_argument("--network", default="all", choices=("all", "uncertain"), help="the engine alone: all")
    command.add_argument("--scale", type=float, default=1.0, help="rows, as a share of the usual number")
    command.add_argument("--command", action="store_true", help="the job as a command too, from its start to its end")
    command.add_argument("--keep", action="store_true", help="leave the inputs for the next run")
    options = command.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"about": about(options), "runs": []}
    if options.where == "cuda":
        for kind in ("short", "long"):
            result.setdefault("engine", {})[kind] = engine_rate(options.articles_csv, options.model, kind == "long")
    for workers in options.gpus:
        for corpus in CORPORA:
            if corpus.name not in options.corpora:
                continue
            run = measure(corpus, workers, options)
            result["runs"].append(run)
            for way in ("job", "command", "reader"):
                if ran := run.get(way):
                    print(workers, corpus.name, way, ran["rows_per_second"], ran["busy"], ran["verdict"], flush=True)
            write(result, options.output)


if __name__ == "__main__":
    main()
