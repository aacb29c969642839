"""docs/ladder.md from the measured ladder; benchmarks/tables.py calls it."""

from __future__ import annotations

from typing import Any

PAGE = """# The ladder

What each thing that the product does is worth, measured by really turning it off: the parent program's 29 measured
steps told again as a dozen switches. Every slow variant runs and gives the product's labels; they live in
`benchmarks/ladder/` and are no options of the product. `python benchmarks/tables.py` makes this page from
`benchmarks/results/ladder.json`, which this command wrote:

    python -m benchmarks.ladder --articles-csv ag_news/test.csv --commit {commit}

(The package is called with `-m`: a file `benchmarks/ladder.py` beside it would have the same name.)

{about}.
AG News text, repeated and shuffled, the shipped model; from text in host memory to labels there, medians of {repeats}
warm passes in one run{wall}. Predictions were written into `benchmarks/ladder/switches.py` before the first
run and are not changed since. "Labels" counts how many differ from the product's. Where no figure of the parent program
is on record, the cell says so.

![The ladder]({plot})

## Cumulative

From everything off, one thing turned on after the other, up to the product. The last rungs begin with a CSV file.

| rung | articles/s | × the rung before | predicted | articles | batch | labels | the parent program |
|---|---|---|---|---|---|---|---|
{cumulative}

## Alone

The product ({product}) with only this one thing turned off.

| turned off | articles/s | slower | predicted | articles | batch | labels | the parent program |
|---|---|---|---|---|---|---|---|
{alone}

## Why these predictions

| step | reason given before measuring |
|---|---|
{reasons}

## What each variant is

- One article a launch: the product's engine with batches of one.
- One-hot shipped: fp32 [N, 70, 1014] lies in host memory, as the parent program's input file does, and is copied from
  there; a kernel reads it back into ids. Building it is not timed. 8,192 articles are 2.3 GB.
- Channels-first: a plain transposition behind each of the six convolution blocks, and one back ahead of the next.
- No fusion: the product's convolution and linear kernels without bias, ReLU and pool, then a kernel for each of these,
  in place where it can be. Block 1 stays the look-up, unless that is turned off too.
- Dense block 1: one-hot rows of 128 channels (70 and zeros: the products take whole slabs of 64) are made on the GPU
  and multiplied by our own convolution, 462 MFLOP in place of 253; then the layer norm kernel that block 6 has.
- simt and sm80: the product's own other kernels, simt in fp32.
- Chunks of 512: so many articles a call of the engine, where the product takes 131,072.
- Pageable memory: the same staging buffers, not page-locked.
- One stream: copies and kernels of all batches on it, in sequence.
- Reading: a temporary CSV file of {file_rows} articles, planned ahead; one thread that reads a chunk and then
  classifies it, against four threads that read ahead. Its factor is taken from these two.
"""


def page(result: dict[str, Any], plot: str = "ladder.png") -> str:
    about, steps = result["about"], result["steps"]
    product = next((r.get("articles_per_second") for r in steps if r["kind"] == "product"), None)
    rungs = [r for r in steps if r["kind"] == "cumulative"]
    alone = [r for r in steps if r["kind"] == "alone"]
    wall = f" of {result['wall_seconds']:.0f} s" if "wall_seconds" in result else ""
    from_file = next((r for r in rungs if "CSV" in r["name"] and "articles" in r), {"articles": 0})
    reasons = [f"| {r['name']} | {r['reason']} |" for r in (*rungs, *alone) if "reason" in r and "skipped" not in r]
    return PAGE.format(
        commit=about["commit"],
        about=f"{about['gpu']}, driver {about['driver']}, CUDA {about['cuda']}, CuPy {about['cupy']}, NVRTC "
        f"{about['nvrtc']}, Python {about['python']}, {about['cores']} cores, commit {about['commit']}, "
        f"{about['date']}",
        repeats=result["repeats"],
        wall=wall,
        plot=plot,
        cumulative="\n".join(_rung(r, before) for r, before in zip(rungs, [None, *rungs], strict=False)),
        product=f"{product:,.0f} articles/s" if product else "not measured",
        alone="\n".join(_alone(r, product) for r in alone),
        reasons="\n".join(reasons),
        file_rows=f"{from_file['articles']:,}",
    )


def _rung(record: dict[str, Any], before: dict[str, Any] | None) -> str:
    if "articles_per_second" not in record:
        return _not_measured(record)
    rate = record["articles_per_second"]
    # What begins with a file, or runs on more GPUs, is no step up from the rung above it.
    comparable = before and "articles_per_second" in before and record["name"].startswith("+")
    ratio = f"{rate / before['articles_per_second']:.2f}" if before and comparable else ""
    predicted = f"{record['predicted_articles_per_second']:,.0f}"
    return f"| {record['name']} | **{rate:,.0f}** | {ratio} | {predicted} {_rest(record)}"


def _alone(record: dict[str, Any], product: float | None) -> str:
    if "articles_per_second" not in record:
        return _not_measured(record)
    rate = record["articles_per_second"]
    whole = record.get("of_articles_per_second", product)
    factor = f"{whole / rate:.2f} ×" if whole else ""
    return f"| {record['name']} | **{rate:,.0f}** | {factor} | {record['predicted_factor']:g} × {_rest(record)}"


def _rest(record: dict[str, Any]) -> str:
    batch = f"{record['batch']:,}" if "batch" in record else ""
    parent = record["parent"] or "not recorded here"
    return f"| {record['articles']:,} | {batch} | {record['labels_unlike_product']} | {parent} |"


def _not_measured(record: dict[str, Any]) -> str:
    why = f"skipped: {record['skipped']}" if "skipped" in record else f"failed: {record['error']}"
    why = " ".join(why.replace("|", "/").split())
    return f"| {record['name']} | {why} | | | | | | {record['parent'] or 'not recorded here'} |"
