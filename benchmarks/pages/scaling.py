"""docs/scaling.md: a section for each part of the scale benchmark."""

from __future__ import annotations

from typing import Any

from benchmarks.pages import corpora, object_store
from benchmarks.pages.markdown import machine, table

HEAD = """# Speed and scale

Every figure comes from a file in `benchmarks/results/`: where a section names no other, from `scale.json`, recorded by
`python -m benchmarks.scale`. `python -m benchmarks.pages` makes this page from them. Each part names the machine that
it was run on.
"""

RULE = """## Choosing a chunk size

One scheduler, with the client on the same machine, finished at most {limit:,.0f} to {most:,.0f} chunks a second,
depending on the number of GPUs. With the lowest of these rates, and {rate:,.0f} articles a second for a GPU,

    rows in a chunk  >=  GPUs x {rate:,.0f} / {limit:,.0f}  =  GPUs x {rows:,.0f}

keeps the scheduler ahead of the GPUs; twice that leaves some reserve. The other bound comes from the end of the job:
each GPU should get ten chunks or more, or too many GPUs are idle during the last chunks, so

    rows in a chunk  <=  articles / (10 x GPUs)

Between the two, larger chunks only cost memory: a worker holds a few at a time. A chunk also ends before its records
hold more than 64 MiB, of which a long one counts with what the model reads of it (some 280,000 AG News articles, or
52,000 records of several KB), so sizes beyond that help with short texts only. The default on a GPU, 131,072 rows,
suits up to {default:,.0f} GPUs by this rule. `--chunk-size` sets another.

These rates are of chunks that are tasks of their own. Of a group of small files, a compressed file or a row group of
Parquet, the scheduler sees one task, whatever the number of its chunks.

A row group of Parquet is decoded once, by one worker, which labels its chunks one after the other. So a file gives work
to as many workers as it has row groups, and one that is to be read by several should not have a single large one.
"""


def page(
    result: dict[str, Any],
    corpora_1: dict[str, Any] | None = None,
    corpora_1_of_2: dict[str, Any] | None = None,
    corpora_2: dict[str, Any] | None = None,
    buckets: dict[str, Any] | None = None,
) -> str:
    """The page, with the parts that were measured; those of `result` that were not are named."""
    makers = {"small": _small, "large": _large, "planning": _planning, "scheduler": _scheduler, "memory": _memory}
    parts = [HEAD, *(make(result[name]) for name, make in makers.items() if name in result)]
    parts += [_rule(result["scheduler"], result["large"])] if result.keys() >= {"scheduler", "large"} else []
    by_corpus = corpora_1, corpora_1_of_2, corpora_2
    parts += [corpora.section(*by_corpus)] if any(by_corpus) else []
    parts += [object_store.section(buckets)] if buckets else []
    absent = [name for name in makers if name not in result]
    if absent:
        parts.append(f"## Not measured yet\n\n`python -m benchmarks.scale {' '.join(absent)}`\n")
    return "\n".join(parts)


def _machine(part: dict[str, Any]) -> str:
    return machine(part["about"], "python", "dask", "distributed", "dask-cuda")


def _small(part: dict[str, Any]) -> str:
    seconds = sorted(part["seconds"])
    phases = (f"{name} | {value * 1e3:.2f}" for name, value in part["median_phase_seconds"].items())
    return f"""## A small job from memory

{_machine(part)}.

{part["articles"]:,} AG News articles as a list of strings in the client, a warm cluster of {part["workers"]} workers
({part["backend"]}), chunks of {part["chunk_rows"]:,}; from the call of `classify` to the labels as a list in the
client: **{part["median_seconds"] * 1e3:.1f} ms**, the median of {len(seconds)} ({seconds[0] * 1e3:.1f} to
{seconds[-1] * 1e3:.1f} ms). The aim was 30 ms; the course project that Broadsheet descends from, written with MPI and
CUDA, took 367 ms on 16 older GPUs, and 2.53 s on one H200.

{table("where the time goes | median ms", phases)}

Rows that begin with "of it" are parts of the computing, seen from the client. The four rows after "computing, all of
it" divide the same time by the workers' clocks; the longest chunk is part of the row before it.
"""


def _large(part: dict[str, Any]) -> str:
    rows, shares, head = [], [], "s | articles/s | speed-up | of the engine's"
    for run in part["runs"]:
        cells = [
            f"{found['seconds']:.1f} | {found['articles_per_second']:,.0f} | {found['speed_up']:.2f} "
            f"| {found['share_of_engine']:.0%}"
            for found in (run["standing"], run["command"])
        ]
        rows.append(f"{run['gpus']} | {' | '.join(cells)}")
        shares += [f"- {run['gpus']}, {way}: {_spent(run[way])}" for way in ("standing", "command")]
    return f"""## A large job, Parquet to Parquet

{_machine(part)}.

{part["articles"]:,} AG News articles, repeated and shuffled, in {part["files"]} Parquet files of
{part["input_bytes"] / 1e9:.1f} GB in all, written just before; chunks of {part["chunk_rows"]:,}. "Standing" is a call
of `classify`, from beginning to return, on a cluster that has done a job before; planning and the commit are included.
"Command" is `broadsheet classify --cluster {part["where"]}`, from its start to the last file that it commits; imports
and the start of the cluster and of the engines are included too. The engine alone, on one of these GPUs in the same
run, from host memory to labels in host memory, reaches {part["engine"]["articles_per_second"]:,.0f} articles/s
({part["engine"]["backend"]}). The aims: a speed-up of 3.8 from 1 GPU to 4, and 85 % of the engine's rate.

{table(f"GPUs | standing: {head} | command: {head}", rows)}

{_start_up(part)}
Where the time goes, from the jobs' own reports, by number of GPUs:

{chr(10).join(shares)}
"""


def _start_up(part: dict[str, Any]) -> str:
    """What a command's start, which does not shrink with the GPUs, leaves of the aims; nothing for a single count."""
    runs = sorted(part["runs"], key=lambda run: run["gpus"])
    one, most = runs[0], runs[-1]
    gpus = most["gpus"]
    if gpus == one["gpus"]:
        return ""
    aim = 0.95 * gpus / one["gpus"]
    chunks = [run["command"]["timings"]["classify"] for run in runs]
    starts = [run["command"]["seconds"] - seconds for run, seconds in zip(runs, chunks, strict=True)]
    listed = ", ".join(f"{start:.1f} s on {run['gpus']}" for run, start in zip(runs, starts, strict=True))
    allowed = (chunks[0] - aim * chunks[-1]) / (aim - 1)
    wanted = 0.85 * gpus * part["engine"]["articles_per_second"]
    spare = 1 - wanted * chunks[-1] / part["articles"]
    reach = f"By these figures {gpus} GPUs reach 85 % of the engine's rate from"
    enough = f"{reach} {wanted * starts[-1] / spare / 1e6:,.0f} million articles on." if spare > 0 else ""
    return f"""A command's start (Python's imports, the cluster, CUDA and the engines, the plan) takes {listed}
GPUs. The chunks take {chunks[0]:.1f} s on {one["gpus"]} and {chunks[-1]:.1f} s on {gpus},
{chunks[0] / chunks[-1]:.2f} times less. If every start took {max(allowed, 0):.1f} s, the command's speed-up would be
{aim:.1f}. {enough}
"""


def _spent(run: dict[str, Any]) -> str:
    devices = run["breakdown"]["devices"]
    mean = {name: sum(d["shares"][name] for d in devices) / len(devices) for name in devices[0]["shares"]}
    before = {"before the call": run["before_the_call_seconds"]} if "before_the_call_seconds" in run else {}
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in {**before, **run["timings"]}.items())
    listed = ", ".join(f"{name} {share:.0%}" for name, share in mean.items())
    return f"{spent}. While chunks ran: {listed}. {run['breakdown']['verdict']}."


def _planning(part: dict[str, Any]) -> str:
    rows = []
    for run in part["runs"]:
        seconds, by = run["median_seconds"], {"threads": "threads of the client", "workers": "workers"}[run["by"]]
        speed = f"{part['bytes'] / seconds / 1e9:.2f} | {part['rows'] / seconds / 1e6:.1f}"
        rows.append(f"{run['count']} {by} | {seconds:.2f} | {speed}")
    return f"""## Planning a large CSV

{_machine(part)}.

A large CSV, JSON Lines or text file on this machine's file systems is read once beside the job, to find where its
records begin, so that rows have numbers and a chunk can be read from the middle of a file (of Parquet only the footers
are read). One file of
{part["bytes"] / 1e9:.1f} GB, {part["rows"]:,} AG News articles, in the page cache; medians of
{len(part["runs"][0]["seconds"])} runs; each worker is a process with four threads. The client scans by itself if there
is less than 1 GB to scan, or if fewer than three workers are running then.

{table("by | seconds | GB/s | million articles/s", rows)}
"""


def _scheduler(part: dict[str, Any]) -> str:
    rate = part["articles_per_second_a_gpu"]
    sizes = sorted({run["chunk_rows"] for run in part["runs"]})
    lines = []
    for gpus in sorted({run["gpus"] for run in part["runs"]}):
        of_size = {run["chunk_rows"]: run for run in part["runs"] if run["gpus"] == gpus}
        cells = [_cell(of_size[size]) if size in of_size else "" for size in sizes]
        lines.append(f"{gpus:,} | {' | '.join(cells)}")
    fastest = max(part["runs"], key=lambda run: run["chunks_per_second"])
    used = fastest["processor_seconds"].items()
    busy = ", ".join(f"{role} {seconds / fastest['seconds']:.2f}" for role, seconds in used)
    return f"""## How many GPUs one scheduler keeps busy

{_machine(part)}.

Here each GPU is simulated by a thread, in one of at most
{max(run["worker_processes"] for run in part["runs"])} worker processes, whose engine sleeps for as long as a GPU of
{rate:,.0f} articles/s takes for a chunk. No input is read and no output is written; graph, scheduler and client are
Broadsheet's own. Each cell shows the share of the time that the GPUs were busy, and chunks a second, over the whole job
from start to end.

{table(" | ".join(["GPUs", *(f"{size:,} rows" for size in sizes)]), lines)}

Processor cores used in the fastest run, of {part["about"]["cores"]}: {busy} (all workers together). Scheduler and
client can use about one core each: where neither comes near that, the machine or the workers were the limit, and the
scheduler could do more. Short runs, of a few seconds, are dominated by the job's start: their figures are lower bounds.

![GPUs that one scheduler keeps busy](scaling.png)
"""


def _rule(scheduler: dict[str, Any], large: dict[str, Any]) -> str:
    """How large chunks must be, for GPUs as fast as the one that labelled the large job."""
    rate, limit = large["engine"]["articles_per_second"], limit_of(scheduler)
    return RULE.format(
        limit=limit,
        most=scheduler["most_chunks_per_second"],
        rate=rate,
        rows=rate / limit,
        default=131_072 * limit / rate,
    )


def limit_of(part: dict[str, Any]) -> float:
    """Chunks a second that the scheduler reaches with any number of GPUs: the least of their best rates."""
    best: dict[int, float] = {}
    for run in part["runs"]:
        best[run["gpus"]] = max(best.get(run["gpus"], 0.0), run["chunks_per_second"])
    return min(best.values())


def _cell(run: dict[str, Any]) -> str:
    return f"{min(run['busy'], 1):.0%}, {run['chunks_per_second']:,.0f}/s"


def _memory(part: dict[str, Any]) -> str:
    rows = []
    for role in ("scheduler", "client", "worker"):
        found = part["memory"][role]
        last = found["bytes"][-1] - found["bytes"][len(found["bytes"]) * 4 // 5]
        rows.append(
            f"{role} | {found['peak_bytes'] / 1e6:.0f} | {found['growth_bytes'] / 1e6:+.1f} "
            f"| {found['growth_bytes_a_chunk']:+,.0f} | {last / 1e6:+.1f}"
        )
    head = "peak MB | growth from 30 % of the job to 95 %, MB | a chunk, bytes | growth in the last fifth, MB"
    return f"""## Memory over a long job

{_machine(part)}.

{part["chunks"]:,} chunks of {part["chunk_rows"]:,} articles, read from Parquet and written as in any job, on
{part["gpus"]} engines that only sleep, in {part["worker_processes"]} worker processes, in {part["seconds"]:.0f} s.
Resident memory; for workers, that of the largest:

{table(f" | {head}", rows)}

Memory does not grow with the number of rows. It grows with the number of chunks, because Dask keeps the names of each
process's last 100,000 tasks, of which a chunk has three: so the scheduler's memory stops growing after 33,000 chunks,
and a worker's after as many of its own. For the report, the client keeps 24 bytes of each span, and each chunk's row
count. With the default chunks of a GPU, 131,072 rows, a billion articles are 7,630 chunks.
"""
