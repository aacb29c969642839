"""The large job, Parquet to Parquet, on each number of GPUs: as a command, and on a cluster that runs already."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.articles import ag_news, ag_news_texts
from benchmarks.processes import run_job
from benchmarks.record import seconds_of
from cluster import connect
from pipeline import classify
from pipeline.engine.open import open_engine
from pipeline.model.charcnn import load_model

GROUPS_A_FILE = 8
_OWN_REPEATS = 10


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
    texts = pa.array(ag_news_texts(articles_csv), pa.large_string())
    size = GROUPS_A_FILE * group_rows

    def write(number: int) -> None:
        first, last = number * size, min((number + 1) * size, count)
        order = np.random.default_rng([0, number]).permutation(np.arange(first, last) % len(texts))
        schema = pa.schema([("id", pa.int64()), ("text", pa.large_string())])
        # Without a dictionary: 7,600 texts that repeat would be stored as integers, which no real input is.
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
    chunks = list(ag_news(articles_csv, articles).chunks(chunk_rows))
    seconds = seconds_of(lambda: [engine.classify(chunk) for chunk in chunks], _OWN_REPEATS + 1)[1:]
    rate, backend = articles / statistics.median(seconds), str(engine.backend)
    engine.close()
    return {"backend": backend, "articles": articles, "seconds": seconds, "articles_per_second": rate}


@dataclass(frozen=True)
class Job:
    """From a folder of Parquet files to one of labels, on so many GPUs."""

    inputs: Path
    out: Path
    where: str
    chunk_rows: int
    model: str

    def command(self, workers: int) -> dict[str, Any]:
        """As a user calls it, from the start of the command to the last file of its commit."""
        shutil.rmtree(self.out, ignore_errors=True)
        started = time.time()
        report, sampler = run_job(
            self.inputs, "-o", self.out, "--id-column", "id", "--cluster", self.where, "--workers", workers,
            "--chunk-size", self.chunk_rows, "--model", self.model, "--quiet", client="client and scheduler",
        )  # fmt: skip
        seconds = (self.out / "_SUCCESS").stat().st_mtime - started
        written = sum(file.stat().st_size for file in (self.out / "parts").iterdir())
        shutil.rmtree(self.out)
        return _found(report, seconds) | {
            "before_the_call_seconds": seconds - report["seconds"],
            "output_bytes": written,
            "memory": sampler.to_dict(report["chunks"]),
        }

    def standing(self, workers: int, first: Path) -> dict[str, Any]:
        """The call of `classify` on a cluster that has done a job before, over the file `first`."""
        options = {"model": self.model, "id_column": "id", "chunk_size": self.chunk_rows, "overwrite": True}
        with connect(self.where, workers=workers) as client:
            classify(str(first), self.out, client=client, **options)
            report = classify(str(self.inputs), self.out, client=client, **options)
        shutil.rmtree(self.out)
        return _found(report.to_dict(), report.run.seconds)


def _found(report: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {
        "rows": report["rows_written"],
        "chunks": report["chunks"],
        "seconds": seconds,
        "articles_per_second": report["rows_written"] / seconds,
        "timings": report["timings"],
        "backend": report["backend"],
        "breakdown": report["breakdown"],
    }


def _elsewhere(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """In a process of its own, so that this one holds no memory of a GPU."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def large_part(options: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Parquet to Parquet on each number of GPUs, beside the engine alone on one."""
    began = time.perf_counter()
    inputs = write_articles(options.articles_csv, options.folder, options.count, options.chunk_rows)
    files = sorted(inputs.iterdir())
    result: dict[str, Any] = {
        "articles": options.count,
        "chunk_rows": options.chunk_rows,
        "files": len(files),
        "input_bytes": sum(file.stat().st_size for file in files),
        "input_seconds": time.perf_counter() - began,
        "where": options.where,
        "runs": [],
    }
    print(f"{len(files)} files, {result['input_bytes'] / 1e9:.1f} GB, in {result['input_seconds']:.0f} s", flush=True)
    job = Job(inputs, options.folder / "labels", options.where, options.chunk_rows, options.model)
    # Kernels are compiled, or found, here: once for a machine.
    result["first_job_seconds"] = replace(job, inputs=files[0]).command(1)["seconds"]
    own = result["engine"] = _elsewhere(
        engine_rate, options.articles_csv, options.model, options.own_articles, options.chunk_rows
    )
    print(f"the engine alone: {own['articles_per_second']:,.0f} articles/s", flush=True)
    for number in options.gpus:
        run = {"gpus": number, "standing": _elsewhere(job.standing, number, files[0]), "command": job.command(number)}
        result["runs"].append(run)
        for way in ("standing", "command"):
            found, base = run[way], result["runs"][0][way]
            if found["rows"] != options.count:
                raise RuntimeError(f"{found['rows']:,} rows were written, of {options.count:,}")
            found["share_of_engine"] = found["articles_per_second"] / (number * own["articles_per_second"])
            found["speed_up"] = found["articles_per_second"] / base["articles_per_second"]
            print(f"{number} GPUs, {way}: {found['seconds']:.1f} s, {found['articles_per_second']:,.0f} articles/s, "
                  f"{found['share_of_engine']:.0%} of the engine's own, {found['speed_up']:.2f} x; "
                  f"{found['breakdown']['verdict']}", flush=True)  # fmt: skip
        keep(result)
    return result
