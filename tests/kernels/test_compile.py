"""Every kernel is compiled for every architecture, which needs no GPU; and the cache of compiled kernels."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broadsheet.pipeline.errors import BroadsheetError, UsageError
from broadsheet.pipeline.kernels.catalog import (
    NUMBERS,
    Kernel,
    branch_kernels,
    choose_generation,
    encoder_kernels,
    fasttext_kernels,
    first_block,
    gather_kernel,
    network_kernels,
    record_kernels,
    target,
)
from broadsheet.pipeline.kernels.compile import Cubin, cache_folder, compile_kernel, compiler_name, resources
from broadsheet.pipeline.kernels.storage import STORAGE
from broadsheet.pipeline.kernels.tables import fasttext_shape
from broadsheet.pipeline.kernels.tiles import SHARED_LIMIT
from broadsheet.pipeline.model.fasttext import MOST_CLASSES
from broadsheet.pipeline.model.layers import layer_table
from broadsheet.pipeline.model.ngrams import Kinds

pytest.importorskip("cuda.core")

GENERATIONS = {
    "sm_75": ("simt", "sm75"),
    "sm_80": ("simt", "sm80"),
    "sm_86": ("simt", "sm80"),
    "sm_89": ("simt", "sm80"),
    "sm_90": ("simt", "sm75", "sm80", "sm90"),
    "sm_100": ("simt", "sm80"),
    "sm_120": ("simt", "sm80"),
}
REGISTERS_OF_A_BLOCK = 65_536
NGRAMS = {4: (Kinds(2, (2, 5), 1014), 20), 1000: (Kinds(1, (1, 4), 16_384), 16)}
"""Settings by number of classes: those that training chooses for AG News, and the largest that a kernel supports."""
FIRST_OF_A_GENERATION = ("sm_75", "sm_80", "sm_90")


COLUMNS = (2, 4, 8, 16, 60, 256)
"""The columns of fastText's tables."""

WIDTHS = ((384, 12), (768, 12), (2048, 32))
"""The widths of encoders, and their numbers of heads."""

UNIT_ROWS = 9
"""The number of rows that a thread block of training computes."""


def kernels_for(architecture: str) -> list[tuple[Kernel, str]]:
    """Return the kernels of the published frame, and on the first architecture of a generation also those of the
    largest alphabet and most classes. A kernel that several layers use comes once.
    """
    found = {}
    shapes = [(70, 4, "text"), (70, 4, "dense")]
    if architecture in FIRST_OF_A_GENERATION:
        shapes.append((254, 1000, "text"))
    for generation in GENERATIONS[architecture]:
        for precision in STORAGE[generation]:
            for symbols, classes, frame in shapes:
                layers = layer_table(symbols, 1014, classes)
                branch = [*branch_kernels(*NGRAMS[classes], classes), gather_kernel()]
                for kernel in [*network_kernels(generation, precision, architecture, layers, frame), *branch]:
                    compiled_for = target(generation, architecture)
                    found[kernel.file, kernel.expression, compiled_for] = kernel, compiled_for
    for columns in COLUMNS if architecture in FIRST_OF_A_GENERATION else COLUMNS[::3]:
        for exact in (True, False):
            for kernel in fasttext_kernels(fasttext_shape(columns, exact), MOST_CLASSES):
                found[kernel.file, kernel.expression, architecture] = kernel, architecture
    for kernel in record_kernels():
        found[kernel.file, kernel.expression, architecture] = kernel, architecture
    for generation in GENERATIONS[architecture]:
        if generation in ("sm80", "sm90"):
            for width, heads in WIDTHS:
                for precision in ("fp16", "bf16"):
                    shape = architecture, width, width // heads, 100
                    for kernel in encoder_kernels(generation, precision, *shape, counts_distances=True):
                        compiled_for = target(generation, architecture)
                        found[kernel.file, kernel.expression, compiled_for] = kernel, compiled_for
    if architecture in FIRST_OF_A_GENERATION[1:]:
        for number in NUMBERS:
            for kernel in vars(first_block(layer_table(70, 1014, 4)[0], UNIT_ROWS, number)).values():
                found[kernel.file, kernel.expression, architecture] = kernel, architecture
    return list(found.values())


@pytest.fixture(scope="module")
def cache() -> Path:
    """A cache that all checkouts of this user share and keep.

    The key of a kernel is its source with all that it includes, the options, and the compiler.
    """
    return cache_folder() / "tests"


@pytest.mark.parametrize(
    "architecture", [pytest.param(name, marks=[] if name == "sm_86" else pytest.mark.slow) for name in GENERATIONS]
)
def test_every_kernel_compiles_clean_and_fits(architecture: str, cache: Path) -> None:
    def check(item: tuple[Kernel, str]) -> list[str]:
        kernel, compiled_for = item
        report = resources(compile_kernel(kernel.file, kernel.expression, compiled_for, cache).log)
        name = f"{kernel.file} {kernel.expression} for {compiled_for}"
        shared = kernel.shared_bytes + report.shared_bytes
        complaints = [f"{name}: {warning}" for warning in report.warnings]
        if report.spill_bytes or report.stack_bytes:
            complaints.append(f"{name}: spills {report.spill_bytes} bytes, {report.stack_bytes} bytes of stack")
        if shared > SHARED_LIMIT[architecture]:
            complaints.append(f"{name}: {shared} bytes of shared memory, a block has {SHARED_LIMIT[architecture]}")
        if not 0 < report.registers * kernel.threads <= REGISTERS_OF_A_BLOCK:
            complaints.append(f"{name}: {report.registers} registers for each of {kernel.threads} threads")
        return complaints

    with ThreadPoolExecutor(2) as pool:
        complaints = [text for found in pool.map(check, kernels_for(architecture)) for text in found]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ("Launch<256, 98304>", "the stages"),
        ("Launch<128, 100352>", "share of a tile"),
        ("Launch<256, 262144>", "shared memory of a block on this architecture"),
    ],
)
def test_a_kernel_launched_otherwise_than_it_is_laid_out_does_not_compile(
    launch: str, message: str, cache: Path
) -> None:
    with pytest.raises(BroadsheetError, match=message):
        compile_kernel("sm80/conv1d.cu", f"conv1d<Half, Half, 3, 1, true, 192, 128, 2, 3, {launch}>", "sm_80", cache)


def test_the_report_of_a_spilling_kernel_is_read(cache: Path, tmp_path: Path) -> None:
    """The check above is worth nothing if it misses a spill."""
    source = """
    __global__ void __launch_bounds__(1024, 2) spilling(float* x) {
        float kept[64];
        #pragma unroll
        for (int i = 0; i < 64; i++) kept[i] = x[i * 1024 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = kept[63 - i] * kept[i];
    }"""
    (tmp_path / "spilling.cu").write_text(source)
    assert resources(compile_kernel("spilling.cu", "spilling", "sm_80", cache, tmp_path).log).spill_bytes > 0


def test_an_error_shows_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "broken.cuh").write_text("#pragma once\n\nint x = ;\n")
    (tmp_path / "broken.cu").write_text('#include "common/broken.cuh"\n__global__ void broken() {}\n')
    with pytest.raises(BroadsheetError, match=r"common/broken\.cuh\(3\): error"):
        compile_kernel("broken.cu", "broken", "sm_80", tmp_path / "cache", tmp_path)


def test_a_change_in_an_included_file_compiles_anew(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "kernel.cu").write_text('#include "common/value.cuh"\n__global__ void kernel(int* x) { *x = VALUE; }\n')
    found = set()
    for value in (1, 2, 1):
        (tmp_path / "common" / "value.cuh").write_text(f"#define VALUE {value}\n")
        found.add(compile_kernel("kernel.cu", "kernel", "sm_80", tmp_path / "cache", tmp_path).code)
    assert len(found) == len(list((tmp_path / "cache").glob("*.kernel"))) == 2


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[[], Cubin]:
    """Compiles a small kernel, or finds it in the cache."""
    (tmp_path / "kernel.cu").write_text("__global__ void kernel(int* x) { *x = 1; }\n")
    return lambda: compile_kernel("kernel.cu", "kernel", "sm_80", tmp_path / "cache", tmp_path)


def test_a_damaged_file_of_the_cache_is_compiled_anew(compiled: Callable[[], Cubin], tmp_path: Path) -> None:
    code = compiled().code
    (file,) = (tmp_path / "cache").glob("*.kernel")
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:-9] + b"x" + whole[-8:], b"\n\n"):
        file.write_bytes(damaged)
        assert compiled().code == code
        assert file.read_bytes().endswith(code)
    forged = b'{"symbol": "kernel", "log": ""}\nnot what was compiled'
    file.write_bytes(hashlib.sha256(forged).hexdigest().encode() + b"\n" + forged)
    file.chmod(0o666)  # another user may now have written the file
    assert compiled().code == code
    inode = file.stat().st_ino
    assert compiled().code == code
    assert file.stat().st_ino == inode
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


# A folder that its group may write to, and one that everybody may write to.
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_cache_that_others_may_write_to_is_not_used(mode: int, compiled: Callable[[], Cubin], tmp_path: Path) -> None:
    code = compiled().code
    (file,) = (tmp_path / "cache").glob("*.kernel")
    file.unlink()
    (tmp_path / "cache").chmod(mode)
    with pytest.warns(RuntimeWarning, match="other users"):
        assert compiled().code == code
    assert list((tmp_path / "cache").glob("*.kernel")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_cache_of_another_user_is_not_used(compiled: Callable[[], Cubin], tmp_path: Path) -> None:
    compiled()
    os.chown(tmp_path / "cache", 12345, 12345)
    with pytest.warns(RuntimeWarning, match="another user's"):
        compiled()


def test_the_compiler_is_named_with_its_patch() -> None:
    """Two patches of one release may compile to different code."""
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    assert re.fullmatch(rf"NVRTC {major}\.{minor}\.\d+", compiler_name())


@pytest.mark.slow
def test_processes_that_start_at_once_compile_once(tmp_path: Path) -> None:
    script = (
        "from broadsheet.pipeline.kernels.catalog import closing_units_kernel, count_kernel, gather_kernel\n"
        "from broadsheet.pipeline.kernels.compile import cache_folder, compile_all\n"
        "kernels = [closing_units_kernel(), count_kernel(), gather_kernel()]\n"
        "compile_all([(kernel.file, kernel.expression) for kernel in kernels], 'sm_80')\n"
        "print(sorted(file.stat().st_ino for file in cache_folder().glob('*.kernel')))"
    )
    environment = {**os.environ, "BROADSHEET_CACHE_DIR": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    # A second compilation would replace the file, and the processes would see different files.
    assert len({process.communicate(timeout=240)[0] for process in started}) == 1
    assert len(list(tmp_path.glob("*.kernel"))) == 3
    assert all(process.returncode == 0 for process in started)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="set BROADSHEET_CACHE_DIR"):
        compile_kernel("common/encode.cu", "encode<8>", "sm_80", tmp_path / "file" / "cache")


def test_kernels_are_chosen_by_compute_capability() -> None:
    assert choose_generation("auto", "auto", (9, 0)) == ("sm90", "fp16")
    assert choose_generation("auto", "auto", (8, 6)) == ("sm80", "fp16")
    assert choose_generation("auto", "bf16", (10, 0)) == ("sm80", "bf16")
    assert choose_generation("auto", "auto", (7, 5)) == ("simt", "fp32")
    assert choose_generation("auto", "fp32", (9, 0)) == ("sm90", "fp32")
    assert choose_generation("auto", "fp32", (12, 0)) == ("sm80", "fp32")
    assert choose_generation("auto", "fp32", (7, 5)) == ("simt", "fp32")
    assert choose_generation("simt", "auto", (9, 0)) == ("simt", "fp32")
    assert choose_generation("sm80", "auto", (9, 0)) == ("sm80", "fp16")
    assert choose_generation("auto", "int8", (9, 0)) == ("sm90", "int8")
    assert choose_generation("auto", "int8", (12, 0)) == ("sm80", "int8")
    assert choose_generation("auto", "int8", (7, 5)) == ("sm75", "int8")
    for kernels, precision, capability in (
        ("sm90", "auto", (8, 0)),
        ("sm90", "auto", (10, 0)),
        ("simt", "fp16", (9, 0)),
        ("auto", "fp16", (7, 5)),
        ("auto", "int8", (7, 0)),
        ("simt", "int8", (9, 0)),
        ("sm75", "int8", (10, 0)),
        ("sm75", "auto", (7, 5)),  # int8 is never chosen automatically
    ):
        with pytest.raises(UsageError):
            choose_generation(kernels, precision, capability)
