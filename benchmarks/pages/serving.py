"""docs/serving.md: how to serve, and what a server reaches beside others."""

from __future__ import annotations

import textwrap
from typing import Any

from benchmarks.pages.markdown import machine, table

HEAD = """# Serving

`broadsheet serve` answers requests for labels over HTTP, with the model, the kernels and the bits of a job.

```
pip install '.[serve]'
broadsheet serve                                     # ag-news at http://127.0.0.1:8000, a page to try it, and /docs
broadsheet serve --model ag-news --model mine=mine.safetensors --target-ms 50
```

```
curl -s localhost:8000/v1/classify -H 'content-type: application/json' \\
  -d '{"texts": ["Oil prices fell below $40 as OPEC raised output."], "scores": true}'
```

```python
with broadsheet.Client("http://127.0.0.1:8000") as client:
    client.classify(["Oil prices fell below $40 as OPEC raised output."])  # [{'label': 'Business', 'score': …}]
    client.classify_arrow(table["body"])  # an Arrow column in, a table out: for programs with many texts
```

`AsyncClient` has the same methods to await.

## Requests

`POST /v1/classify` takes JSON: `texts`, a list of strings, and if need be `model` (else the server's first), `top_k`
and `scores`. Each result has what `classify` writes, in the order of the texts: `label`, `score`, with `scores` a
`score_CLASS` for each class, with `top_k` above 1 `top_labels` and `top_scores`, then `n_chars`, `truncated` and
`unknown_chars` ([output.md](output.md)). A text on which the model overflows has a null label, and a `reason`.

An Arrow IPC stream (`content-type: application/vnd.apache.arrow.stream`) of one column `text`, not compressed, is
answered with a stream; options are then in the URL, `/v1/classify?top_k=2&scores=true`.

| place | answer |
|---|---|
| `/` | a page to type a text, and see its label, all classes, and what the model read of it |
| `/v1/models` | the models: classes, how many characters they read, alphabet, what decides the bits of a score |
| `/healthz`, `/readyz` | whether the server is alive; whether an engine is warm, and the state of each |
| `/metrics` | for Prometheus: requests, texts, batches, seconds in queue and engine, refusals, busy share of devices |
| `/docs`, `/openapi.json` | the interface for people and for programs |
| `POST /v1/models/NAME/reload` | loads the model's file again, for whoever shows the admin token |

Errors are JSON, `{"error": "…"}`: 400 for what is not JSON in UTF-8 or no Arrow stream, 401 without the token, 404
for a model that is not there, 413 for too long a body or too many texts, 415 for another content type, 422 for a
field or column that is wrong, 503 with `Retry-After` for a request that is refused.

## Batches and the target

Each device has an engine in a process of its own, and all share one queue. A batch starts as soon as a device is
free, with what is waiting by then; nothing waits for a batch to fill. `--target-ms` (20 on a GPU, 100 on a CPU)
bounds it: how long a batch takes is measured when a model is loaded, by the number of texts and of characters, and
each batch corrects that by a few percent, several slow ones in a row by more. A batch may take 40 % of the target (a
quarter of a second at most), since a request waits for the one before it too.

A request whose answer would come too late, by the same measure, is refused at once, so that those that are accepted
hold the target. Its time begins when the last of it reached the machine, which the kernel tells: where requests come
faster than they can be read, those that have waited long are refused before their bodies are looked at. Once not even
a single text would be taken, the processes that speak HTTP refuse requests of one text by themselves until the next
batch starts. The earliest deadline goes first. Of a request that is larger than a batch, no more goes into one than
an equal share for each request that waits: one of 10,000 texts is computed in many batches, beside the single ones
that come meanwhile, and its deadline is the target and four times what it would need alone. When a client hangs up,
what is still waiting of its request is dropped.

## Operation

The log on stderr has a line for each request and for each thing that happens, as text or with `--log-format json`; a
text is never in it, unless `--log-texts` asks for that. `--no-log-requests` leaves out the requests.

- `--http-processes` (1 on a CPU, on GPUs half the cores, 8 at most) read requests, check them and write the answers,
  all at one address: the kernel deals new connections out to them. They send texts to the main process, which has the
  queue, over sockets, those of many requests together. Any of them shows the metrics of all, and limits count for all.
  One that ends is started again; it costs its own connections only.
- SIGTERM or Ctrl-C: the server takes no new requests, answers those that it has, and exits with code 0, after
  `--drain-s` seconds (30) at the latest; whoever still waits then gets a 503. A second signal ends it at once.
- SIGHUP loads the files of all models again, `POST /v1/models/NAME/reload` that of one (`--admin-token-file`). The
  new model is loaded beside the old one, and takes the requests that come once it is warm; the old one answers those
  that have begun. A file that is no model changes nothing.
- An engine that ends, as after an error of its GPU, is started again, with growing pauses if it keeps ending.
  Requests that it had get a 503; `/readyz` says 503 while no engine is warm, and which are not.
- Several models (`--model`, repeated) share each device: the request with the earliest deadline decides whose turn it
  is.
- Several GPUs share the queue: each has an engine, which takes a batch whenever it is free.

[examples/broadsheet.service](../examples/broadsheet.service) is a unit for systemd, and
[examples/serve.sh](../examples/serve.sh) a script that can be a Slurm job.

## Security

The server listens on 127.0.0.1. To listen elsewhere (`--host`) it wants `--token-file`, a file with a token that
clients show as `Authorization: Bearer TOKEN`, or `--insecure`. Other users of the same machine reach 127.0.0.1 too:
there a token keeps them out. `--tls-certificate` and `--tls-key` make it HTTPS; without them a token can be read on
its way. `/`, `/docs`, `/healthz` and `/readyz` need no token, and have no texts and no labels.

Limits, each an option: bytes of a body (`--max-body-mb`, 32; eight of them at a time), texts in a request
(`--max-texts`, 10,000), texts in the queue (`--max-queue`, 100,000), connections (`--max-connections`, 1,024),
seconds in which the head of a request must come (`--head-s`, 10), then its body (`--body-s`, 60), and after which an
idle connection is closed (`--idle-s`, 60). A single text may have 16 MiB, as in a job.

## On a cluster

`--scheduler-file scheduler.json`, or `--cluster` with what `classify` takes there, puts an engine on each worker of a
Dask cluster, and on those that join later. The server sends a batch to the worker that has the least to do, directly,
without a task of Dask's. Texts of a worker that is lost are computed once more elsewhere. All workers must have one
kind of processor, so that scores have the same bits whichever of them is free. A cluster has one server at a time.
"""

MEASURED = """
## Measured{where}

{machine}.

`python -m benchmarks.serve` starts each server, with the same weights, and {load} sends AG News articles at a constant
rate, whether or not others are answered. "Highest" is the highest rate, of those tried, at which all requests were
answered, none refused, and the 99th percentile was within the target: the median of {rounds} rounds, in which the
servers take turns, {seconds} s a rate. The peers compute with PyTorch ({torch}), each batch in the least of a few
lengths that holds its longest text, with the batch and the wait of a grid that reach the highest rate. "Closed loop" is
what {clients} clients get that ask again as soon as they are answered, "no-op" the same of a handler that computes
nothing{http}.
"""

PLOTTED = "Each point is a rate in a round, hollow where a request was refused; lines go through the medians.\n"

TUNED = """
**The peers' grid**: {tried}. BentoML's second number is its `max_latency_ms`, of the others it is how long a batch
waits to be filled.
"""

OVERLOAD = """
**Overload.** At ten times the highest rate, {rate:,.0f} requests a second for {seconds:,.0f} s (from `load.py` in place
of k6), Broadsheet answered {answered:,.0f} a second, half of them within {p50:,.0f} ms and 99 % within {p99:,.0f} ms,
and refused {refused:,.0f} a second{not_sent}. Its processes had {memory} MB before, after each half, and at the end;
afterwards, at half the highest rate, the 99th percentile was {later:,.0f} ms ({earlier:,.0f} ms before), and {shed} of
{asked} requests were refused.
"""


def page(cpu: dict[str, Any] | None, gpu: dict[str, Any] | None) -> str:
    """The page. The results are of a machine without a GPU, and of one with, where that was measured."""
    return HEAD + "".join(_measured(result) for result in (gpu, cpu) if result)


def _measured(result: dict[str, Any]) -> str:
    about, stacks = result["about"], result["stacks"]
    text = _filled(
        MEASURED,
        where=" on a GPU" if about["gpus"] else " on two cores",
        machine=machine(about, "python", "numpy", "cuda", "torch"),
        rounds=about["rounds"],
        seconds=" or ".join(f"{seconds:g}" for seconds in dict.fromkeys(row["seconds"] for row in stacks)),
        clients="64" if about["gpus"] else "64, of many texts 4,",
        torch="fp16, `torch.compile`, as CUDA graphs" if about["gpus"] else "fp32, eager",
        load="`load.py`" if about["gpus"] else "k6",
        http=" (ours: in one process; LitServe has four for HTTP)" if about["gpus"] else "",
    )
    shares = " | ".join(f"at {share} %: p50, p99, ms" for share in (10, 50, 80))
    head = f"texts a request | target, ms | server | highest, requests a second | {shares} | closed loop | no-op"
    text += "\n" + table(head, map(_row, stacks)) + "\n"
    text += f"\n![The 99th percentile of latency against rate]({picture(about)})\n\n{PLOTTED}"
    tried = "; ".join(f"{row['stack']}, {row['each']} a request: {_tried(row)}" for row in stacks if row.get("tuned"))
    text += _filled(TUNED, tried=tried) if tried else ""
    if "overload" in result:
        text += _overload(result["overload"])
    if "lone" in result:
        text += f"\n**One client alone** has its answer after {result['lone']['p50_ms']:,.1f} ms (p50).\n"
    if "arrow" in result:
        arrow = result["arrow"]
        rate = f"{arrow['texts_per_second']:,.0f} articles a second"
        text += f"\n**Arrow streams** of {arrow['each']:,} articles, from {arrow['clients']} clients: {rate}.\n"
    return text


def _row(row: dict[str, Any]) -> str:
    below = [f"{_rounded(found['p50_ms'], 10)}, {_rounded(found['p99_ms'], 10)}" for found in row["below"]] or ["–"] * 3
    cells = [row["each"], f"{row['target_ms']:,.0f}", row["stack"], _rounded(row["highest"]), *below]
    return " | ".join(map(str, [*cells, _rounded(row["ceiling"]), _rounded(row["no_op"])]))


def _tried(row: dict[str, Any]) -> str:
    return ", ".join(f"{one['batch']}:{one['wait_ms']:g} {_rounded(one['highest'])}" for one in row["tuned"])


def _rounded(value: float, whole_from: float = 20) -> str:
    return f"{value:,.0f}" if value >= whole_from or not value else f"{value:.1f}"


def picture(about: dict[str, Any]) -> str:
    """The file name of the plot of a result."""
    return "serving_gpu.png" if about["gpus"] else "serving.png"


def _overload(found: dict[str, Any]) -> str:
    halves = found["halves"]
    seconds = sum(half["seconds"] for half in halves)
    not_sent = sum(half["not_sent"] for half in halves) / seconds
    return _filled(
        OVERLOAD,
        rate=found["rate"],
        seconds=seconds,
        answered=sum(half["answered"] for half in halves) / seconds,
        refused=sum(half["refused"] for half in halves) / seconds,
        not_sent=f"; the client could not send {not_sent:,.0f} a second" if not_sent >= 0.5 else "",
        p50=max(half["p50_ms"] for half in halves),
        p99=max(half["p99_ms"] for half in halves),
        shed=found["after"]["refused"],
        asked=found["after"]["refused"] + found["after"]["answered"],
        memory=", ".join(f"{each / 1e6:,.0f}" for each in found["memory_bytes"]),
        earlier=found["before"]["p99_ms"],
        later=found["after"]["p99_ms"],
    )


def _filled(text: str, **values: object) -> str:
    """The values put in, and each paragraph in lines of the width that all pages have."""
    paragraphs = text.format(**values).strip().split("\n\n")
    filled = [textwrap.fill(each, 120, break_long_words=False, break_on_hyphens=False) for each in paragraphs]
    return "\n" + "\n\n".join(filled) + "\n"
