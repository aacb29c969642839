"""Measure whole jobs over typical corpora: compressed files, many files, long texts, one large file.

    python -m benchmarks.corpora --articles-csv ag_news/test.csv --folder /tmp/corpora --gpus 1
    python -m benchmarks.corpora --articles-csv ag_news/test.csv --folder /tmp/corpora --before ../older --scale 0.1

For each corpus, it measures:

- a call of `classify`, from files to Parquet, on a cluster that has run the same job before, with the share of the time
  in which the GPU was busy
- the same job with an older checkout, with `--before`
- PyArrow, which reads the column of texts with one process for each core

It also measures the engine alone on short and on long texts. On N GPUs, a corpus has N times as many files.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.corpora_files import Corpus, table_by_pyarrow, texts_of, write_corpus
from benchmarks.processes import Sampler, family
from benchmarks.record import RESULTS, ROOT, about, parser, seconds_of, write
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.processes.threads import available_cores

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
"""The corpora for one GPU. On N GPUs, they have N times as many files."""

_ENGINE_ROWS, _ENGINE_CALLS, _ENGINE_REPEATS = 131_072, 8, 5


def engine_rate(articles_csv: Path, model: str, long: bool) -> dict[str, Any]:
    """Measure the engine alone on one device, from texts in host memory to labels there.

    The texts are cut to the length that the model reads, as a job's reader cuts them.
    """
    engine = open_engine(load_model(model))
    texts = Texts.of(
        [t[: engine.model.length].encode() for t in texts_of(articles_csv, long, _ENGINE_ROWS).to_pylist()]
    )
    seconds = seconds_of(lambda: [engine.classify(texts) for _ in range(_ENGINE_CALLS)], _ENGINE_REPEATS + 1)[1:]
    engine.close()
    rate = _ENGINE_CALLS * _ENGINE_ROWS / statistics.median(seconds)
    return {"backend": str(engine.backend), "articles_per_second": rate}


def job(root: Path, inputs: Path, out: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Run a job with the checkout in `root`. Returns its report, with the peak resident memory of each role."""
    command = [sys.executable, str(ROOT / "benchmarks" / "corpora_job.py"), str(inputs), str(out), json.dumps(options)]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    with Sampler(family(process.pid, "client and scheduler")) as sampler:
        answer, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    peaks = {role: max(values) for role, values in sampler.bytes.items()}
    return json.loads(answer.splitlines()[-1]) | {"peak_bytes": peaks}


def by_pyarrow(inputs: Path, repeats: int = 2) -> dict[str, float]:
    """Measure PyArrow: rows per second, and the processor seconds of a round."""
    files, cores = sorted(inputs.iterdir()), available_cores()
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"), pa.set_cpu_count, (1,)) as pool:
        rounds = []
        for _ in range(1 + repeats):
            began = time.perf_counter()
            counts = list(pool.map(_by_pyarrow, files, chunksize=max(1, len(files) // (8 * cores))))
            rows, busy = map(sum, zip(*counts, strict=True))
            rounds.append((rows / (time.perf_counter() - began), busy))
    rates, seconds = zip(*rounds[1:], strict=True)
    return {"rows_per_second": statistics.median(rates), "processor_seconds": statistics.median(seconds)}


def _by_pyarrow(file: Path) -> tuple[int, float]:
    began = time.process_time()
    rows = len(table_by_pyarrow(file))
    return rows, time.process_time() - began


def measure(corpus: Corpus, gpus: int, options: argparse.Namespace) -> dict[str, Any]:
    """Write a corpus, and measure the jobs and PyArrow on it."""
    # Write the files.
    corpus = replace(corpus, files=corpus.files * gpus).scaled(options.scale)
    if corpus.one:
        corpus = replace(corpus, files=corpus.files // gpus)
    inputs = write_corpus(options.articles_csv, options.folder, corpus)
    sizes = [file.stat().st_size for file in inputs.iterdir()]
    # Run the job, with the older checkout too, and PyArrow.
    given = {"where": "cuda", "workers": gpus * options.workers_per_gpu, "model": options.model}
    given |= {"chunk_rows": options.chunk_rows, "protocol": options.protocol, "network": options.network}
    run: dict[str, Any] = {"name": corpus.name, "files": len(sizes), "stored_bytes": sum(sizes), "gpus": gpus}
    run["workers_per_gpu"] = options.workers_per_gpu
    run["job"] = job(ROOT, inputs, options.folder / "labels", given)
    if options.before:
        run["before"] = job(options.before, inputs, options.folder / "labels", given | {"workers": gpus})
        run["same_labels"] = run["job"]["labels"] == run["before"]["labels"]
    run["pyarrow"] = by_pyarrow(inputs)
    if not options.keep:
        shutil.rmtree(inputs)
    return run


def main() -> None:
    """Measure each corpus on each number of GPUs, and write the results after each one."""
    command = parser(__doc__, RESULTS / "corpora_1.json", articles=True)
    command.add_argument("--folder", type=Path, required=True, help="for input and output: 25 GB a GPU")
    command.add_argument("--before", type=Path, help="the checkout of an older Broadsheet, with a worker for each GPU")
    command.add_argument("--protocol", default="auto", choices=("auto", "tcp", "ucx"))
    command.add_argument("--gpus", type=int, nargs="+", default=[1])
    command.add_argument("--workers-per-gpu", type=int, default=2, choices=(1, 2))
    command.add_argument("--corpora", nargs="+", default=[c.name for c in CORPORA], choices=[c.name for c in CORPORA])
    command.add_argument("--chunk-rows", type=int, help="default: that of the product")
    command.add_argument("--network", default="uncertain", choices=("all", "uncertain"))
    command.add_argument("--scale", type=float, default=1.0, help="rows, as a share of the usual number")
    command.add_argument("--keep", action="store_true", help="leave the inputs for the next run")
    options = command.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"about": about(options), "runs": []}
    # Go on with the results of an earlier call on the same machine.
    if options.output.exists():
        result["runs"] = json.loads(options.output.read_text())["runs"]
    # Measure the corpora.
    by_name = {corpus.name: corpus for corpus in CORPORA}
    for gpus in options.gpus:
        for corpus in (by_name[name] for name in options.corpora):
            run = measure(corpus, gpus, options)
            result["runs"].append(run)
            for way in ("job", "before"):
                if ran := run.get(way):
                    print(gpus, corpus.name, way, ran["rows_per_second"], ran["busy"], ran["verdict"], flush=True)
            print(gpus, corpus.name, "pyarrow", run["pyarrow"]["rows_per_second"], run.get("same_labels"), flush=True)
            write(result, options.output)
    # Measure the engine alone.
    for kind in ("short", "long"):
        result.setdefault("engine", {})[kind] = engine_rate(options.articles_csv, options.model, kind == "long")
    write(result, options.output)


if __name__ == "__main__":
    main()
