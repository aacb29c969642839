"""Ceilings: the rates that this GPU reaches with PyTorch, for comparison with those of a kernel.

The data is random, since zeros draw less power, and so run at a higher clock. Each figure is a median of timings by
CUDA events.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.peers.measure import event_seconds

SQUARE = 8192
COPY_BYTES = 4 << 30
HOST_BYTES = 1 << 30

NETWORK_SHAPES = {
    "block 2": (675_840, 256, 1_792),
    "blocks 3 to 6": (221_184, 256, 768),
    "fc1": (8_192, 1_024, 8_704),
}
"""(M, N, K) of the products that the blocks of this network compute."""


def ceilings() -> dict[str, float | dict[str, float]]:
    """Measure all ceilings of the current device, by name, in TB/s, GB/s and TFLOP/s."""
    with _tf32(False):
        square = {
            "fp16": square_product(torch.float16),
            "bf16": square_product(torch.bfloat16),
            "fp32": square_product(torch.float32),
        }
    with _tf32(True):
        square["tf32"] = square_product(torch.float32)
    return {
        "device_copy_tb_per_second": device_copy(),
        "host_to_device_gb_per_second": host_to_device(),
        f"product_{SQUARE}_tflop_per_second": square,
        "network_shapes_fp16_tflop_per_second": {name: product(*shape) for name, shape in NETWORK_SHAPES.items()},
    }


def device_copy() -> float:
    """Measure a copy within device memory, in TB/s. Bytes read and bytes written both count."""
    source = _random_bytes(COPY_BYTES)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _median_seconds(lambda: target.copy_(source)) / 1e12


def host_to_device() -> float:
    """Measure a copy from page-locked host memory, in GB/s."""
    target = _random_bytes(HOST_BYTES)
    source = torch.empty(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
    source.copy_(target)
    return HOST_BYTES / _median_seconds(lambda: target.copy_(source, non_blocking=True)) / 1e9


def square_product(dtype: torch.dtype) -> float:
    """Measure a product of 8192³, in TFLOP/s. Its precision depends on `dtype` and on the setting of TF32."""
    a, b = (torch.randn(SQUARE, SQUARE, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * SQUARE**3 / _median_seconds(lambda: torch.mm(a, b, out=out)) / 1e12


def product(m: int, n: int, k: int) -> float:
    """Measure a product of [m, k] and [k, n] in fp16, in TFLOP/s, with the faster of two layouts of the weights."""
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    by_output = torch.randn(n, k, device="cuda", dtype=torch.float16)
    by_input = by_output.t().contiguous()
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    seconds = min(_median_seconds(lambda w=w: torch.mm(a, w, out=out)) for w in (by_output.t(), by_input))
    return 2 * m * n * k / seconds / 1e12


def _random_bytes(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device="cuda")


def _median_seconds(work: Callable[[], object], calls: int = 10) -> float:
    """Return the seconds of one warm call: the median of ten timings of several calls in a row."""

    def several() -> None:
        for _ in range(calls):
            work()

    several()
    return statistics.median(event_seconds(several)) / calls


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in products within the block."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before
