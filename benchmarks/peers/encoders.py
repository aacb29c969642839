"""Compare an encoder on the CPU with onnxruntime, PyTorch and sentence-transformers, in one run with the same threads.

    python -m benchmarks.peers.encoders --encoder DIR --articles-csv test.csv --output benchmarks/results/encoders.json

It measures from texts to their vectors: on single articles, and on eight joined articles. Each way reads as many tokens
as the encoder does. onnxruntime and PyTorch get texts sorted by length, in batches of the best size, with tokens of
`tokenizers`; sentence-transformers is called as its users do. The figures are medians of warm runs in turns, in
wall-clock seconds and in processor seconds, on which the load of other programs has less effect.
"""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from benchmarks.record import about, parser, write
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.encoder import EncoderEngine, OnCpu
from broadsheet.pipeline.model import encoder_file
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.fasttext import ALPHABET
from broadsheet.pipeline.model.layers import BIAS, WHOLE
from broadsheet.pipeline.processes.threads import available_cores

BATCHES, REPEATS = (1, 4, 16, 32), 7
JOINED = 8
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


class TokenVectors(torch.nn.Sequential):
    """The network as the exporter can trace it: from three tensors [texts, tokens] to [texts, tokens, width]."""

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return self[0](**dict(zip(NAMES, given, strict=True))).last_hidden_state  # type: ignore[no-any-return]


def exported(network: TokenVectors, threads: int) -> Callable[..., Any]:
    """Export the network, and return a function that computes it with onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # spinning threads would slow down the other ways' turns
    file, axes = io.BytesIO(), {name: {0: "texts", 1: "tokens"} for name in (*NAMES, "out")}
    given = (torch.ones(2, 8, dtype=torch.int64),) * len(NAMES)
    torch.onnx.export(network, given, file, input_names=NAMES, output_names=["out"], dynamic_axes=axes, dynamo=False)
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    return lambda *given: session.run(None, {name: one.numpy() for name, one in zip(NAMES, given, strict=True)})[0]


def vectors(forward: Callable[..., Any], tokenizer: Tokenizer, batch: int, texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of N texts, [N, width]: the mean over the tokens, normalised to length 1."""
    ids, out = [one.ids for one in tokenizer.encode_batch(texts)], {}
    order = sorted(range(len(ids)), key=lambda text: len(ids[text]))
    for rows in (order[first : first + batch] for first in range(0, len(order), batch)):
        given = np.zeros((3, len(rows), len(ids[rows[-1]])), np.int64)
        for place, row in enumerate(rows):
            given[0, place, : len(ids[row])], given[1, place, : len(ids[row])] = ids[row], 1
        mask = given[1][:, :, None]
        means = (np.asarray(forward(*map(torch.from_numpy, given))) * mask).sum(1) / mask.sum(1)
        out |= dict(zip(rows, means / np.linalg.norm(means, axis=1, keepdims=True), strict=True))
    return np.stack([out[row] for row in range(len(ids))])


def measured(ways: dict[Any, Callable[[], object]], repeats: int) -> dict[Any, list[float]]:
    """Return for each way the medians of seconds and of CPU seconds. A first run does not count."""
    turns: dict[Any, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, work in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            turns[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: [statistics.median(one) for one in zip(*own[1:], strict=True)] for name, own in turns.items()}


def main() -> None:
    """Load the encoder in each way, and measure all ways in turns."""
    command = parser(__doc__, articles=True)
    command.add_argument("--encoder", type=Path, required=True, help="folder, as sentence-transformers saves it")
    command.add_argument("--texts", type=int, default=512, help="articles")
    options = command.parse_args()
    # Load the encoder in each way.
    threads, read = available_cores(), encoder_file.read(options.encoder, "it").encoder
    torch.set_num_threads(threads)
    read.weights["last"] = np.eye(read.outputs, 2, dtype=np.float32)  # type: ignore[index]
    model = Model(ALPHABET, ("a", "b"), WHOLE, {BIAS: np.zeros(2, np.float32)}, frame="text", encoder=read)
    engine, library = (
        EncoderEngine(model, OnCpu(read, threads)),
        SentenceTransformer(str(options.encoder), device="cpu"),
    )
    tokenizer = Tokenizer.from_file(str(options.encoder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(read.settings.most_tokens)
    network = TokenVectors(library[0].auto_model)
    forwards = {"onnxruntime": exported(network, threads), "PyTorch": network}
    # Measure all ways on short and on long texts.
    short = [" ".join(row[1:]) for row in csv.reader(options.articles_csv.open())][: options.texts]
    rows = []
    with torch.inference_mode():
        for texts in (short, [" ".join(short[i : i + JOINED]) for i in range(0, len(short), JOINED)]):
            ways, batches = {"ours": partial(engine.classify, Texts.of([text.encode() for text in texts]))}, {}
            for name, forward in forwards.items():
                tried = {batch: partial(vectors, forward, tokenizer, batch, texts) for batch in BATCHES}
                batches[name] = min(tried, key=lambda batch: measured({0: tried[batch]}, 1)[0][1])
                ways[name] = tried[batches[name]]
            # Measure in turns, and compare with ours.
            ways["sentence-transformers"] = partial(library.encode, texts)
            tokens = sum(len(one.ids) for one in tokenizer.encode_batch(texts)) / len(texts)
            for name, both in (found := measured(ways, REPEATS)).items():
                row = {"tokens": tokens, "way": name, "batch": batches.get(name), "a_second": len(texts) / both[0]}
                times_ours, of_cpu = np.divide(both, found["ours"]).tolist()
                rows.append({**row, "times_ours": times_ours, "cpu_times_ours": of_cpu})
    write({"about": about(options, encoder=options.encoder.parent.name, threads=threads), "rows": rows}, options.output)


if __name__ == "__main__":
    main()
