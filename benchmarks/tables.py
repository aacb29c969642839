"""Write docs/performance.md, ladder.md and scaling.md from the recorded results: python benchmarks/tables.py"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

PAGE = """# Performance

Every figure comes from a file under `benchmarks/results/`; `python benchmarks/tables.py` makes this page from them.

## One GPU beside what users would pick instead

{gpu_about}.
{articles} AG News articles (mean {mean_bytes:.0f} bytes), repeated and shuffled, the shipped model. Ours go from UTF-8
text to labels, peers from encoded ids; medians of {gpu_repeats} warm passes, all in one run.
`python -m benchmarks.gpu --articles-csv ag_news/test.csv --output benchmarks/results/gpu.json`

| ours | batch | articles/s, text on the GPU | TFLOP/s | of cuBLAS fp16 8192³ | end to end from the host | share |
|---|---|---|---|---|---|---|
{ours_rows}

| peer | batch | articles/s | ours, same precision | labels unlike our fp32 |
|---|---|---|---|---|
{peer_rows}

TFLOP/s count {product_mflop:.0f} MFLOP an article: block 1 is a look-up for us and counts nothing, but takes time.
Labels: of {articles}, how many differ from those of our fp32 kernels; ours: {our_labels}.

The machine's own ceilings in that run: {ceilings}.

### Where a batch's time goes

{first_name}, one batch of {first_batch:,}, medians from events between the kernels:

| step | µs | ns an article | TFLOP/s |
|---|---|---|---|
{kernel_rows}

The copies run beside the kernels of other batches. What each kernel does, and why it looks as it does:
[kernels.md](kernels.md).

## The CPU backend beside PyTorch

{cpu_about}. Articles a second, fp32, medians of {repeats} warm runs that take turns; PyTorch {torch} eager, its input
one-hot and ready, its batch the best of 8, 32 and 128. Articles as long as AG News's.
`python benchmarks/cpu.py --output benchmarks/results/cpu.json`

| threads | Broadsheet | PyTorch | ratio |
|---|---|---|---|
{cpu_rows}

Block 1 as a look-up spares a third of the multiplications; the other convolutions are shifted products on one BLAS
thread an article, so cores are kept busy by articles, not by slices of a small product.

## Memory over large files

Peak resident memory, with a stand-in for the network that answers at once, so that reading and writing run as fast as
they ever do; {memory_about}, chunks of {chunk_rows} rows.
`python benchmarks/memory.py --megabytes 400 --megabytes 4096 --output benchmarks/results/memory.json`

| CSV | rows | client | largest worker | plan | rows a second |
|---|---|---|---|---|---|
{memory_rows}

The client grows by what it keeps of each chunk: its place in the file and its timings. The worker grew too, by
{memory_growth:.0f} MB over {memory_chunks:,.0f} chunks; [scaling.md](scaling.md) follows a longer job to where that
ends.
"""


def load(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return value


def gpu_fields(gpu: dict[str, Any]) -> dict[str, Any]:
    about, ceilings = gpu["about"], gpu["ceilings"]
    peak = ceilings["product_8192_tflop_per_second"]
    best = {row["precision"]: row for row in reversed(gpu["ours"])}  # the newest kernels of each precision
    ours = [
        f"| {row['name']} | {row['batch']:,} | **{row['articles_per_second']:,.0f}** | {row['tflops']:.0f} "
        f"| {row['tflops'] / peak['fp16']:.0%} | {row['end_to_end_articles_per_second']:,.0f} "
        f"| {row['end_to_end_articles_per_second'] / row['articles_per_second']:.1%} |"
        for row in gpu["ours"]
    ]
    peers = []
    for row in gpu["peers"]:
        if "error" in row:
            peers.append(f"| {row['name']} | {row['batch']:,} | failed: {row['error']} | | |")
            continue
        precision = "fp32" if "fp32" in row["kind"] else "fp16"
        ratio = best[precision]["articles_per_second"] / row["articles_per_second"]
        peers.append(
            f"| {row['name']} | {row['batch']:,} | {row['articles_per_second']:,.0f} | {ratio:.2f} × "
            f"| {row['labels_unlike_fp32']} |"
        )
    shapes = ceilings["network_shapes_fp16_tflop_per_second"]
    parts = [f"copy {ceilings['device_copy_tb_per_second']:.2f} TB/s"]
    parts += [f"{name} product 8192³ {rate:,.0f} TFLOP/s" for name, rate in peak.items()]
    parts += [f"cuBLAS fp16 at {name}'s shape {rate:,.0f}" for name, rate in shapes.items()]
    parts += [f"host to GPU {ceilings['host_to_device_gb_per_second']:.0f} GB/s"]
    first = gpu["ours"][0]
    kernels = [
        f"| {row['kernel']} | {row['seconds'] * 1e6:,.0f} | {row['nanoseconds_an_article']:.1f} "
        f"| {row['tflops']:.0f} |" if "tflops" in row and row["kernel"] != "fc3" else
        f"| {row['kernel']} | {row['seconds'] * 1e6:,.0f} | {row['nanoseconds_an_article']:.1f} | |"
        for row in first["kernels_of_a_batch"]
    ]  # fmt: skip
    return {
        "gpu_about": f"{about['gpu']}, driver {about['driver']}, CuPy {about['cupy']}, PyTorch {about['torch']}, "
        f"commit {about['commit']}, {about['date']}",
        "articles": f"{gpu['articles']:,}",
        "mean_bytes": gpu["mean_bytes"],
        "gpu_repeats": gpu["repeats"],
        "product_mflop": gpu["product_mflop"],
        "ours_rows": "\n".join(ours),
        "peer_rows": "\n".join(peers),
        "our_labels": ", ".join(
            f"{row['kernels']} {row['precision']} {row['labels_unlike_fp32']}" for row in gpu["ours"]
        ),
        "ceilings": "; ".join(parts),
        "first_name": first["name"],
        "first_batch": first["batch"],
        "kernel_rows": "\n".join(kernels),
    }


def main() -> None:
    cpu, memory = load("cpu.json"), load("memory.json")
    about = cpu["about"]
    cpu_rows = [
        f"| {run['threads']} | {run['articles_per_second']['broadsheet']:.0f} "
        f"| {run['articles_per_second']['pytorch']:.0f} | {run['ratio']:.2f} |"
        for run in cpu["runs"]
    ]
    largest = memory["runs"][-1]
    memory_rows = [
        f"| {run['input_bytes'] / 1e9:.1f} GB | {run['rows']:,} | {run['peak_bytes']['client'] / 1e6:.0f} MB "
        f"| {run['peak_bytes']['worker'] / 1e6:.0f} MB | {run['timings']['plan']:.1f} s "
        f"| {run['rows'] / run['timings']['classify']:,.0f} |"
        for run in memory["runs"]
    ]
    page = PAGE.format(
        **gpu_fields(load("gpu.json")),
        cpu_about=f"{about['processor']}, {about['cores']} cores, Python {about['python']}, NumPy {about['numpy']}",
        repeats=cpu["runs"][0]["repeats"],
        torch=about["torch"],
        cpu_rows="\n".join(cpu_rows),
        memory_about=f"{memory['about']['cores']} cores",
        chunk_rows=memory["runs"][0]["chunk_rows"],
        memory_rows="\n".join(memory_rows),
        memory_growth=(largest["peak_bytes"]["worker"] - memory["runs"][0]["peak_bytes"]["worker"]) / 1e6,
        memory_chunks=largest["rows"] / largest["chunk_rows"],
    )
    (ROOT / "docs" / "performance.md").write_text(page)
    sys.path.insert(0, str(ROOT))  # run as a file, this knows its own folder only
    if (RESULTS / "ladder.json").exists():
        from benchmarks.ladder.page import page as ladder_page

        (ROOT / "docs" / "ladder.md").write_text(ladder_page(load("ladder.json")))
    if (RESULTS / "scale.json").exists():
        from benchmarks.scale_page import page as scale_page

        (ROOT / "docs" / "scaling.md").write_text(scale_page(load("scale.json")))


if __name__ == "__main__":
    main()
