"""Engines on a GPU for tests: the kernel stacks, their error limits, texts, and readers of their buffers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.open import open_engine, why_no_gpu
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.kernels import memory_plan
from broadsheet.pipeline.model.alphabet import encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import FRAMES
from broadsheet.pipeline.model.quantised import with_scales

if TYPE_CHECKING:
    from broadsheet.pipeline.kernels.batch_arrays import DeviceTexts

_NO_GPU = pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")

LIMITS = {"fp32": 2e-6, "fp16": 3e-3, "bf16": 2e-2, "int8": 0.1}
"""The largest allowed `error` of logits, by precision."""

WHOLE_STACKS = [("simt", "fp32"), ("sm80", "fp16"), ("sm80", "bf16"), ("sm90", "fp16"), ("sm90", "bf16")]
"""Kernel generations and precisions that store a number in one part."""

SPLIT_STACKS = [("sm80", "fp32"), ("sm90", "fp32")]
"""Those that store a number in two parts of fp16."""

INT8_STACKS = [("sm75", "int8"), ("sm80", "int8"), ("sm90", "int8")]
STACKS = WHOLE_STACKS + SPLIT_STACKS + INT8_STACKS
STACKS_AND_FRAMES = [(*stack, frame) for stack in STACKS for frame in FRAMES]
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz      0123456789,.-ABCÄ中\n"))


def needs_gpu(test: Any) -> Any:
    """Mark a test that needs a GPU, in a file where other tests need none."""
    return pytest.mark.gpu(_NO_GPU(test))


def random_texts(seed: int, count: int) -> list[bytes]:
    """Return random texts, more than half of them short, and some longer than the network reads."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(count) < 0.5, rng.integers(0, 300, count), rng.integers(0, 1500, count))
    return ["".join(LETTERS[rng.integers(0, len(LETTERS), n)]).encode() for n in lengths]


def hostile_texts() -> list[bytes]:
    text = "the quick brown fox jumps over it " * 2100
    cuts = [("a" * n + "é中😀" * 3).encode() for n in range(1006, 1016)]
    bad = [
        b"\xff" * 40,
        b"a\xc3",
        b"\xe4\xb8",
        b"\x80\xbf" * 700,
        b"\xf0\x9f\x98\x80\x80x",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
    ]
    sizes = [text[:n].encode() for n in (0, 1, 1013, 1014, 1015, 70_000)]
    return [*sizes, *cuts, *bad, ("é" * 1014).encode(), ("中" * 2000).encode(), b"\x00" * 5, b"ABCxyz"]


def error(found: NDArray[np.floating], true: NDArray[np.float64]) -> float:
    """Return the relative error of an array: the norm of the difference, divided by the norm of the true values."""
    return float(np.linalg.norm(found.astype(np.float64) - true) / np.linalg.norm(true))


def poison(engine: Engine) -> None:
    """Fill every buffer except the weights with NaN or -1, so that a test notices values that no kernel wrote."""
    network = engine.network
    packing = (network._statistics, network._text_end, network._first_unit, network._counts, network._closing)
    for buffer in (*network._activations, *packing):
        buffer.view(np.uint8)[:] = 0xFF
    for slot in network.slots:
        slot.found.device[:] = 0xFF
    engine.small._found.device[:] = 0xFF
    engine.device.synchronize()  # the engine's streams do not wait for this one


def on_gpu(texts: Texts) -> DeviceTexts:
    """Copy texts to the GPU, in the form that kernels take."""
    import cupy as cp

    from broadsheet.pipeline.kernels.batch_arrays import DeviceTexts

    return DeviceTexts(cp.asarray(texts.data), cp.asarray(texts.offsets), cp.asarray([len(texts)], np.int32))


def logits_of(engine: Engine, texts: Texts) -> NDArray[np.float32]:
    """Return the logits of texts that fit one batch, computed by kernels that are launched one by one."""
    engine.classify(texts, spans=[], each_kernel=True)
    slot = engine.network.slots[(engine._batches_begun - 1) % len(engine.network.slots)]
    return slot.batch(slot.top_k).scored.logits[: len(texts)].get()


def opened_for(model: Model, kernels: str, precision: str) -> Engine:
    """Open an engine on the GPU. Skip the test if the GPU does not have these kernels.

    A model without scales for int8 gets them from random texts.
    """
    if precision == "int8" and model.scales is None and model.has_network:
        texts = Texts.of(random_texts(11, 64))
        model = with_scales(model, encode(texts.data, texts.offsets, model.alphabet, model.length).ids)
    try:
        return open_engine(model, "cuda", precision, kernels=kernels)
    except UsageError as unavailable:
        if "do not run on" not in str(unavailable):
            raise
        pytest.skip(str(unavailable))


LENGTHS = (*range(21), *range(1000, 1031))


def texts_of_every_kind(seed: int) -> list[bytes]:
    """Return texts of every length near both ends of the frame, some of unknown characters, and random texts."""
    rng = np.random.default_rng(seed)
    of_length = ["".join(LETTERS[rng.integers(0, len(LETTERS), n)]) for n in LENGTHS]
    unknown = ["\x00" * n for n in (1, 3, 7, 1014)] + [text[:-1] + "中" for text in of_length[1:8]]
    return [text.encode() for text in (*of_length, *unknown)] + random_texts(seed, 60)


def blocks_of(engine: Engine, texts: Texts) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.int32]]:
    """Return what each convolution computes for one batch, and the first unit of each article.

    The values are bits, [units, rows, channels].
    """
    import cupy

    network, found = engine.network, {}
    steps = memory_plan.schedule(network.layers, network.ops.stored)
    written = {after.layer.name: (step.layer.name, step.out) for step, after in pairwise(steps) if step.out.packed}
    last = next(step for step in steps if step.raw is not None)
    written[f"{last.layer.name} norm"] = last.layer.name, last.raw

    def watch(kernel, grid, arguments) -> None:
        if kernel.name in written:
            cupy.cuda.get_current_stream().synchronize()
            name, at = written[kernel.name]
            units = int(network._counts[0])
            values = network._activation(at)[: units * at.rows * at.channels].get()
            bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[values.itemsize]
            found[name] = values.view(bits).reshape(units, at.rows, at.channels)

    poison(engine)
    network.watcher = watch
    try:
        engine.classify(texts)
    finally:
        network.watcher = None
    return found, network._first_unit[: len(texts) + 1].get()
