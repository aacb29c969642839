"""docs/performance.md: one GPU and its peers, the CPU and its peer, memory over large files, one text at a time."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.markdown import machine, one_cell, table


def page(
    gpu: dict[str, Any], cpu: dict[str, Any], memory: dict[str, Any], held_cpu: dict[str, Any], held_gpu: dict[str, Any]
) -> str:
    """The page, from the results of benchmarks.gpu, benchmarks.cpu, benchmarks.memory and benchmarks.held."""
    return f"""# Performance

Every figure comes from a file under `benchmarks/results/`; `python -m benchmarks.pages` makes this page from them.

{_gpu(gpu)}
{_cpu(cpu)}
{_memory(memory)}
{_held(held_cpu, held_gpu)}"""


def _gpu(gpu: dict[str, Any]) -> str:
    first, ceilings = gpu["ours"][0], gpu["ceilings"]
    peak, articles = ceilings["product_8192_tflop_per_second"], f"{gpu['articles']:,}"
    size, mflop = f"{gpu['mean_bytes']:.0f}", f"{gpu['product_mflop']:.0f}"
    rates_of_ours = _rates(gpu)
    ours = table(
        "ours | batch | articles/s, text on the GPU | TFLOP/s | of cuBLAS fp16 8192³ "
        "| end to end from the host | share",
        (
            f"{row['name']} | {row['batch']:,} | **{row['articles_per_second']:,.0f}** | {row['tflops']:.0f} "
            f"| {row['tflops'] / peak['fp16']:.0%} | {row['end_to_end_articles_per_second']:,.0f} "
            f"| {row['end_to_end_articles_per_second'] / row['articles_per_second']:.1%}"
            for row in gpu["ours"]
        ),
    )
    peers = table(
        "peer | batch | articles/s | ours, same precision and frame | labels that differ from our fp32",
        (_peer(row, rates_of_ours) for row in gpu["peers"]),
    )
    kernels = table(
        "step | µs | ns an article | TFLOP/s",
        (
            f"{row['kernel']} | {row['seconds'] * 1e6:,.0f} | {row['nanoseconds_an_article']:.1f} "
            f"| {format(row['tflops'], '.0f') if 'tflops' in row and row['kernel'] != 'fc3' else ''}"
            for row in first["kernels_of_a_batch"]
        ),
    )
    rates = "; ".join(
        [
            f"copy {ceilings['device_copy_tb_per_second']:.2f} TB/s",
            *(f"{name} product 8192³ {rate:,.0f} TFLOP/s" for name, rate in peak.items()),
            *(
                f"cuBLAS fp16 at {name}'s shape {rate:,.0f}"
                for name, rate in ceilings["network_shapes_fp16_tflop_per_second"].items()
            ),
            f"host to GPU {ceilings['host_to_device_gb_per_second']:.0f} GB/s",
        ]
    )
    labels = ", ".join(f"{row['kernels']} {row['precision']} {row['labels_unlike_fp32']}" for row in gpu["ours"])
    return f"""## One GPU, beside other frameworks

{machine(gpu["about"], "cupy", "torch")}.
{articles} AG News articles (mean {size} bytes), repeated and shuffled, the shipped model. Ours go from UTF-8
text to labels; the peers, the same network in other frameworks, from encoded characters. Medians of {gpu["repeats"]}
warm passes, all in one run.
`python -m benchmarks.gpu --articles-csv ag_news/test.csv --output benchmarks/results/gpu.json`

{ours}

{peers}

TFLOP/s are computed from {mflop} MFLOP an article: block 1, a look-up in our kernels, takes time but counts as no FLOP.
Labels of {articles} that differ from those of our fp32 kernels, among ours: {labels}.

The machine's own ceilings in that run: {rates}.

### Where a batch's time goes

{first["name"]}, one batch of {first["batch"]:,}, medians from events between the kernels:

{kernels}

The copies overlap with the kernels of other batches. [kernels.md](kernels.md) explains what each kernel does, and why.
"""


def _rates(gpu: dict[str, Any]) -> dict[tuple[str, str], float]:
    """Articles a second of ours by frame and precision; of records before there were two frames, of the dense one."""
    newest = {("dense", row["precision"]): row["articles_per_second"] for row in reversed(gpu["ours"])}
    found = (row for row in gpu.get("both_frames", ()) if row["texts"] == "these")
    return newest | {(row["frame"], row["precision"]): row["end_to_end_articles_per_second"] for row in found}


def _peer(row: dict[str, Any], rates: dict[tuple[str, str], float]) -> str:
    if "error" in row:
        return f"{row['name']} | {row['batch']:,} | failed: {one_cell(row['error'])} | | "
    precision = next((name for name in ("fp32", "int8") if name in row["kind"]), "fp16")
    rate, ours = row["articles_per_second"], rates[row.get("frame", "dense"), precision]
    return f"{row['name']} | {row['batch']:,} | {rate:,.0f} | {ours / rate:.2f} × | {row['labels_unlike_fp32']}"


def _cpu(cpu: dict[str, Any]) -> str:
    rows = (
        f"{run['text']} | {run['threads']} | {run['articles_per_second']['text']:.0f} "
        f"| {run['articles_per_second']['dense']:.0f} | {run['articles_per_second']['pytorch']:.0f} "
        f"| {run['text_to_dense']:.2f} | {run['text_to_pytorch']:.2f}"
        for run in cpu["runs"]
    )
    return f"""## The CPU backend beside PyTorch

{machine(cpu["about"], "python", "numpy", "torch")}.
Articles a second, fp32, medians of {cpu["runs"][0]["repeats"]} warm runs of each in turn. PyTorch runs in eager mode on
prepared one-hot input, with the best batch size of 8, 32 and 128. Articles are as long as AG News's, then of the full
length.
`python -m benchmarks.cpu --output benchmarks/results/cpu.json`

{table("articles | threads | text frame | dense frame | PyTorch | text to dense | text to PyTorch", rows)}

Computing block 1 by look-ups saves a third of the multiplications; in the text frame, rows that the text does not reach
are not computed. The other convolutions are matrix products with a single BLAS thread each, so the cores work on
different articles, not on parts of one small product. In the dense frame a product has one article's rows. In the text
frame, where these are few, the rows of several articles share products of a fixed size, in places where BLAS treats
every row alike.
"""


def _memory(memory: dict[str, Any]) -> str:
    first, largest = memory["runs"][0], memory["runs"][-1]
    growth = (largest["peak_bytes"]["worker"] - first["peak_bytes"]["worker"]) / 1e6
    rows = (
        f"{run['input_bytes'] / 1e9:.1f} GB | {run['rows']:,} | {run['peak_bytes']['client'] / 1e6:.0f} MB "
        f"| {run['peak_bytes']['worker'] / 1e6:.0f} MB | {run['timings']['plan']:.1f} s "
        f"| {run['rows'] / run['timings']['classify']:,.0f}"
        for run in memory["runs"]
    )
    return f"""## Memory over large files

Peak resident memory, with a stand-in for the network that returns at once, so that reading and writing run as fast as
they can; {machine(memory["about"])}, chunks of {first["chunk_rows"]} rows.
`python -m benchmarks.memory --megabytes 400 --megabytes 4096 --output benchmarks/results/memory.json`

{table("CSV | rows | client | largest worker | plan | rows a second", rows)}

The client's memory grows by what it keeps of each chunk: its place in the file and its timings. The worker's grew by
{growth:.0f} MB over {largest["rows"] / largest["chunk_rows"]:,.0f} chunks; [scaling.md](scaling.md) shows, for a longer
job, where this growth ends.
"""


def _held(*results: dict[str, Any]) -> str:
    names = ("call_seconds", "engine_seconds", "beyond_engine_seconds", "classify_again_seconds")
    rows = table(
        "on | a call | the engine alone | beyond it | `classify` of a list | its first call",
        (
            " | ".join(
                (
                    f"{result['backend'].partition(',')[0]}; {machine(result['about'])}",
                    *(f"{1e3 * result[name]:,.2f} ms" for name in names),
                    f"{result['classify_first_seconds']:.1f} s",
                )
            )
            for result in results
        ),
    )
    return f"""## One text at a time

A held classifier, `broadsheet.load("ag-news")`, called with one text of 96 characters; and `classify` of a list with
that text, in a process that keeps its worker and model from the first call on. Medians of warm calls, the call and the
engine alone in turns. `python -m benchmarks.held --output benchmarks/results/held_cpu.json`

{rows}
"""
