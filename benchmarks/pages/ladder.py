"""docs/ladder.md: what was measured and predicted of each step."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.markdown import machine, one_cell, table

PAGE = """# The ladder

What each optimization in Broadsheet is worth, measured by turning it off. ("The product" below is Broadsheet as it is
released. "The parent program" is the course project that Broadsheet descends from, which ran this network with MPI and
CUDA and documents 29 measured steps; about a dozen switches take their place here.) Every slower variant runs and gives
the product's labels; the variants are in `benchmarks/ladder/` and are not options of the product.
`python -m benchmarks.pages` makes this page from `benchmarks/results/ladder.json`, which this command wrote:

    python -m benchmarks.ladder --articles-csv ag_news/test.csv

{about}.
AG News text, repeated and shuffled, the shipped model; from text in host memory to labels in host memory, medians of
{repeats} warm passes in one run{wall}. Predictions were written into `benchmarks/ladder/switches.py` before the first
run and have not been changed since. "Labels" is the number of labels that differ from the product's. Where no figure of
the parent program is on record, the cell says so.

![The ladder](ladder.png)

## Cumulative

From everything turned off, one optimization after another is turned on, up to the product. The last rungs read a CSV
file.

{cumulative}

## Alone

The product ({product}) with only this one optimization turned off.

{alone}

## Why these predictions

{reasons}

## What each variant is

- One article a launch: the product's engine with batches of one.
- One-hot shipped: the input is fp32 [N, 70, 1014] in host memory, as in the parent program's input file, and is copied
  from there; a kernel converts it back to character ids. Building it is not timed. 8,192 articles are 2.3 GB.
- Channels-first: a plain transposition after each of the six convolution blocks, and one back before the next block.
- No fusion: the product's convolution and linear kernels without bias, ReLU and pool, then a kernel for each of these,
  in place where possible. Block 1 stays a look-up, unless that is turned off too.
- Dense block 1: one-hot rows of 128 channels (70, and zeros, since the convolution takes whole slabs of 64) are made on
  the GPU and multiplied by our own convolution kernel, 462 MFLOP instead of 253; then the layer norm kernel of block 6.
- simt and sm80: the product's own kernels of those generations, simt in fp32.
- Chunks of 512: the articles in one call of the engine, where the product takes 131,072.
- Pageable memory: the same staging buffers, not page-locked.
- One stream: copies and kernels of all batches run on it, in sequence.
- Reading: a temporary CSV file of {file_rows} articles, planned in advance; one thread that reads a chunk and then
  classifies it, against four threads that read ahead. The factor is the ratio of these two.
"""


def page(result: dict[str, Any]) -> str:
    """The page, from the result of benchmarks.ladder."""
    steps = result["steps"]
    product = next((r.get("articles_per_second") for r in steps if r["kind"] == "product"), None)
    rungs = [r for r in steps if r["kind"] == "cumulative"]
    alone = [r for r in steps if r["kind"] == "alone"]
    from_file = next((r for r in rungs if "CSV" in r["name"] and "articles" in r), {"articles": 0})
    rest = "predicted | articles | batch | labels | the parent program"
    return PAGE.format(
        about=machine(result["about"], "cuda", "cupy", "nvrtc", "python"),
        repeats=result["repeats"],
        wall=f" of {result['wall_seconds']:.0f} s" if "wall_seconds" in result else "",
        cumulative=table(
            f"rung | articles/s | × the rung before | {rest}",
            (_row(r, _step_up(r, before)) for r, before in zip(rungs, [{}, *rungs], strict=False)),
        ),
        product=f"{product:,.0f} articles/s" if product else "not measured",
        alone=table(f"turned off | articles/s | slower | {rest}", (_row(r, _slower(r, product)) for r in alone)),
        reasons=table(
            "step | reason given before measuring",
            (f"{r['name']} | {r['reason']}" for r in (*rungs, *alone) if "reason" in r and "skipped" not in r),
        ),
        file_rows=f"{from_file['articles']:,}",
    )


def _row(record: dict[str, Any], ratio: str) -> str:
    parent = record["parent"] or "not recorded here"
    if "articles_per_second" not in record:
        why = f"skipped: {record['skipped']}" if "skipped" in record else f"failed: {record['error']}"
        return f"{record['name']} | {one_cell(why)} | | | | | | {parent}"
    factor, rate = record.get("predicted_factor"), record.get("predicted_articles_per_second")
    return (
        f"{record['name']} | **{record['articles_per_second']:,.0f}** | {ratio} "
        f"| {f'{rate:,.0f}' if factor is None else f'{factor:g} ×'} | {record['articles']:,} "
        f"| {format(record['batch'], ',') if 'batch' in record else ''} | {record['labels_unlike_product']} | {parent}"
    )


def _step_up(record: dict[str, Any], before: dict[str, Any]) -> str:
    """Nothing for what begins with a file, or runs on more GPUs: that is no step up from the rung before it."""
    if not ("articles_per_second" in record and "articles_per_second" in before and record["name"].startswith("+")):
        return ""
    return f"{record['articles_per_second'] / before['articles_per_second']:.2f}"


def _slower(record: dict[str, Any], product: float | None) -> str:
    whole = record.get("of_articles_per_second", product)
    return f"{whole / record['articles_per_second']:.2f} ×" if whole and "articles_per_second" in record else ""
