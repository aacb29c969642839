"""Compressed files against the interpreter's own decompressors: whole, in parts, padded, cut off, damaged, misnamed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import lz4.frame
import numpy as np
import pytest
import zstandard
from conftest import ROOT, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import found, read_files

from broadsheet.pipeline.errors import InputChanged, SourceError
from broadsheet.pipeline.processes.threads import available_cores, available_memory
from broadsheet.pipeline.source.chunk import Selection
from broadsheet.pipeline.source.find.files import FORMATS, find_files
from broadsheet.pipeline.source.formats.base import InputFile
from broadsheet.pipeline.source.open.compression import COMPRESSIONS, Compression
from broadsheet.pipeline.source.open.decompress import Damaged, Decompressed
from broadsheet.pipeline.source.open.opening import open_at
from broadsheet.pipeline.source.open.rapidgzip_reader import start
from broadsheet.pipeline.source.plan.sample import slow_to_read

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lz4": lz4.frame.compress,
}
NAMES = sorted(COMPRESS)


def described(path: Path, compression: str | None) -> InputFile:
    about = path.stat()
    return InputFile(
        path=str(path),
        format=FORMATS[".txt"],
        compression=compression,
        size=about.st_size,
        modified=str(about.st_mtime_ns),
        location=str(path),
    )


def content(path: Path, compression: str | None, size: int = 1 << 20) -> tuple[bytes, str]:
    """What a file holds, and the error after it."""
    found = []
    try:
        with open_at(described(path, compression)) as stream:
            while block := stream.read(size):
                found.append(block)
    except SourceError as error:
        return b"".join(found), error.message
    return b"".join(found), ""


def by_one_core(
    path: Path, compression: Compression, open_raw: Callable[[], BinaryIO] | None = None
) -> tuple[bytes, str]:
    """What a file holds, and why it ends."""
    stream, found = Decompressed(open_raw or (lambda: path.open("rb")), compression), []
    try:
        while block := stream.read(1 << 20):
            found.append(block)
    except (Damaged, OSError) as error:
        return b"".join(found), str(error)
    return b"".join(found), ""


def reference(data: bytes, compression: str) -> tuple[bytes, bool]:
    """Byte by byte, so that nothing before damage is lost; and whether all of it is good."""
    found, left = [], data
    while left:
        if compression == "gzip":
            decoder = zlib.decompressobj(wbits=31)
        elif compression == "zstd":
            decoder = zstandard.ZstdDecompressor().decompressobj()
        else:
            decoder = {"bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor, "lz4": lz4.frame.LZ4FrameDecompressor}[
                compression
            ]()
        used = 0
        try:
            while used < len(left) and not decoder.eof:
                found.append(decoder.decompress(left[used : used + 1]))
                used += 1
        except (zlib.error, zstandard.ZstdError, OSError, lzma.LZMAError, RuntimeError, EOFError):
            return b"".join(found), False
        if not decoder.eof:
            return b"".join(found), False
        left = left[used:]
        if compression == "gzip":
            left = left.lstrip(b"\0")
        elif compression == "xz":
            zeros = len(left) - len(left.lstrip(b"\0"))
            if zeros % 4:
                return b"".join(found), False
            left = left[zeros:]
    return b"".join(found), True


@settings(max_examples=examples(60), deadline=None)
@given(
    compression=st.sampled_from(NAMES),
    parts=st.lists(st.tuples(st.integers(0, 60_000), st.booleans()), min_size=1, max_size=5),
    padding=st.sampled_from([0, 0, 4, 7, 512]),
    garbage=st.sampled_from([b"", b"", b"garbage", b"\x1f\x8b\x08", b"\x1f"]),
    cut=st.one_of(st.none(), st.floats(0, 1)),
    flip=st.one_of(st.none(), st.floats(0, 1)),
    size=st.sampled_from([1000, 1 << 16, 1 << 22]),
    seed=st.integers(0, 1 << 30),
)
def test_what_is_read_is_what_the_reference_reads(
    tmp_path_factory: pytest.TempPathFactory, compression: str, parts: list[tuple[int, bool]], padding: int,
    garbage: bytes, cut: float | None, flip: float | None, size: int, seed: int,
) -> None:  # fmt: skip
    chance = random.Random(seed)
    units = [
        chance.randbytes(count) if noise else b" ".join(b"%d" % chance.randrange(99) for _ in range(count // 3))
        for count, noise in parts
    ]
    data = b"".join(COMPRESS[compression](unit) for unit in units) + b"\0" * padding + garbage
    if cut is not None:
        data = data[: max(8, round(cut * len(data)))]
    if flip is not None and len(data) > 20:  # after the first bytes, by which it is recognised
        place = min(20 + round(flip * len(data)), len(data) - 1)
        data = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    path = tmp_path_factory.getbasetemp() / f"f.{compression}"
    path.write_bytes(data)
    expected, good = reference(data, compression)
    found, error = content(path, compression, size)
    without = replace(COMPRESSIONS[compression], decoder=COMPRESSIONS[compression].exact)  # as where isal is not there
    exact, why = by_one_core(path, without)
    assert (exact, why == "") == (expected, good)
    assert (error == "") == good
    if compression == "gzip" and flip is not None:  # isal takes some tables of codes that zlib refuses
        assert found.startswith(expected)
    else:
        assert found == expected
    if not good:
        assert error == (
            f"{path}: cut off or damaged after {len(found):,} decompressed bytes; all before is read ({why})"
        )


def noise(count: int) -> bytes:
    """Bytes that compress by about a half."""
    return random.Random(count).randbytes(count // 2).hex().encode()


@pytest.mark.slow
@pytest.mark.parametrize("change", ["whole", "cut off", "damaged", "a large frame", "garbage"])
def test_zstd_frames_are_decompressed_by_all_cores_in_order(tmp_path: Path, change: str) -> None:
    size = 600 << 10
    data = noise(16 * size)
    frames = [zstandard.compress(data[at : at + size]) for at in range(0, len(data), size)]
    table = b"\x5e\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"index"  # as the seekable format has it at the end
    packed, readable = b"".join([*frames[:3], table, *frames[3:], table]), data
    if change == "cut off":
        packed = packed[: -len(frames[-1])]
        readable = reference(packed[len(b"".join(frames[:14])) + len(table) :], "zstd")[0]
        readable = data[: 14 * size] + readable
    elif change == "damaged":
        place = len(b"".join(frames[:9])) + len(table)
        packed = packed[: place + 150_000] + b"\0" * 50_000 + packed[place + 200_000 :]
        readable = data[: 9 * size] + reference(packed[place:], "zstd")[0]
    elif change == "a large frame":
        large = zstandard.compress(data * 4)
        packed, readable = b"".join([*frames, large, *frames]), data * 6
    elif change == "garbage":
        packed += b"something else"
    path = tmp_path / "f.txt.zst"
    path.write_bytes(packed)
    found, error = content(path, "zstd")
    assert found == readable
    assert ("cut off or damaged" in error) == (change in ("cut off", "damaged", "garbage"))


@pytest.mark.parametrize("compression", NAMES)
@pytest.mark.parametrize("named", [".gz", ".zst", ""])
def test_a_file_is_read_as_what_it_is_whatever_its_name_says(tmp_path: Path, compression: str, named: str) -> None:
    path = tmp_path / f"f.txt{named}"
    path.write_bytes(COMPRESS[compression](b"an article\nanother\n"))
    read = read_files(found([path]), Selection(), 10)
    assert (read.texts, read.messages) == ([b"an article", b"another"], [])


@pytest.mark.parametrize("text", [b"BZh9 is how bzip2 begins\n", b"an article\n", "ÿþ latin\n".encode("latin-1")])
def test_text_that_is_called_compressed_is_text(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "f.txt.gz"
    path.write_bytes(text)
    (file,) = find_files([str(path)], 70, 1014).found
    with open_at(file) as stream:
        assert stream.read(100) == text


def test_what_is_neither_text_nor_compressed_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    path.write_bytes(b"\1\2\3\4" * 100)
    found, error = content(path, "gzip")
    assert not found
    assert f"{path}: cut off or damaged after 0 decompressed bytes" in error


def by_rapidgzip(path: Path, compression: str, most_memory: int = 1 << 30) -> tuple[bytes, str, bool]:
    """What a file holds, the error after it, and whether rapidgzip read all of it."""
    with path.open("rb") as file:
        reader = start(lambda: path.open("rb"), COMPRESSIONS[compression], file.fileno(), lambda: None, most_memory)
    assert reader is not None
    found, positions = [], [0]
    try:
        while block := reader.read(1 << 20):
            found.append(block)
            positions.append(reader.position())
    except Damaged as error:
        return b"".join(found), str(error), False
    finally:
        reader.close()
    assert positions == sorted(positions)
    if reader.is_by_all_cores:  # pages of the pipe may be read before their position is told
        assert path.stat().st_size // 2 < positions[-1] <= path.stat().st_size
    return b"".join(found), "", reader.is_by_all_cores


GZIP = gzip.compress(noise(4 << 20), 1)
SPOILED: dict[str, bytes] = {
    "padding": GZIP + b"\0" * 1000,
    "a member after padding": GZIP + b"\0" * 1000 + GZIP,
    "garbage": GZIP + b"something else",
    "cut off": GZIP[:-100_000],
    "a wrong checksum": GZIP[:-8] + b"abcd" + GZIP[-4:],
    "damage": GZIP[: len(GZIP) // 2] + b"\xa5" * 100 + GZIP[len(GZIP) // 2 + 100 :],
    "damage in the second member": GZIP + GZIP[: len(GZIP) // 2] + b"\xa5" * 100 + GZIP[len(GZIP) // 2 + 100 :],
}


@pytest.mark.slow
@pytest.mark.parametrize("change", SPOILED)
def test_trouble_in_a_file_that_all_cores_read_is_what_one_core_finds(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f.txt.gz"
    path.write_bytes(SPOILED[change])
    expected, error = content(path, "gzip")
    found, why, _ = by_rapidgzip(path, "gzip")
    assert found == expected
    assert bool(why) == bool(error)
    assert why in error


@pytest.mark.slow
@pytest.mark.parametrize("repeated", [False, True])
def test_of_a_gzip_file_that_is_cut_off_only_the_end_is_read_twice(tmp_path: Path, repeated: bool) -> None:
    """What is read is what zlib reads, also where another decoder has found less; of what repeats itself, from all."""
    rng = np.random.default_rng(5)
    words = [rng.bytes(rng.integers(1, 9)).hex().encode() for _ in range(3000)]
    text = b" ".join([words[i] for i in rng.integers(0, 3000, 1_200_000)])
    data = gzip.compress(text if not repeated else noise(5 << 20) + b"all the same " * 100_000, 1)
    path, read = tmp_path / "f.gz", []

    class Counted(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            read.append(super().readinto(buffer) or 0)
            return read[-1]

    for cut in (3, 8, 9, *rng.integers(10, 4000, 5).tolist()):
        path.write_bytes(data[:-cut])
        read.clear()
        expected = zlib.decompressobj(31).decompress(data[:-cut]), "it ends within a gzip member"
        assert by_one_core(path, COMPRESSIONS["gzip"], lambda: io.BufferedReader(Counted(path, "rb"))) == expected
        assert (sum(read) > 1.5 * len(data)) == repeated


@pytest.mark.parametrize("compression", ["gzip", "bz2"])
def test_rapidgzip_reads_a_sound_file_to_its_end(tmp_path: Path, compression: str) -> None:
    data, path = noise(3 << 20), tmp_path / "f.txt"
    path.write_bytes(COMPRESS[compression](data[: 1 << 20]) + COMPRESS[compression](data[1 << 20 :]))
    assert by_rapidgzip(path, compression) == (data, "", True)


def test_a_process_that_takes_too_much_memory_is_ended_and_one_core_reads_on(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    path.write_bytes(GZIP * 4)
    found, error, by_all = by_rapidgzip(path, "gzip", most_memory=20 << 20)
    assert (found, error, by_all) == (noise(4 << 20) * 4, "", False)


def resident(what: str) -> int:
    """Bytes of memory: VmRSS now, VmHWM at most."""
    return int(re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


@pytest.mark.slow
@pytest.mark.parametrize("compression", NAMES)
def test_a_bomb_fills_no_memory(tmp_path: Path, compression: str) -> None:
    zeros = bytes(80 << 20)
    path = tmp_path / "f.txt"
    path.write_bytes(lzma.compress(zeros, preset=0) if compression == "xz" else COMPRESS[compression](zeros))
    del zeros
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before = resident("VmRSS")
    with open_at(described(path, compression)) as stream:
        assert sum(iter(lambda: len(stream.read(1 << 22)), 0)) == 80 << 20
    assert resident("VmHWM") - before < 50 << 20


def streamed(data: bytes, window: int, asked: int | None = None) -> bytes:
    """A zstd frame with a window of so many bytes, as a power of two. asked: what it says instead."""
    wide = zstandard.ZstdCompressionParameters(window_log=window, compression_level=1, enable_ldm=window > 27)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    frame = packer.compress(data) + packer.flush()
    return frame[:5] + bytes([((asked or window) - 10) << 3]) + frame[6:]


def test_zstd_frames_with_long_windows_are_read_where_memory_is_enough(tmp_path: Path) -> None:
    """Of `zstd --long=31` and less: several, between frames without data, as in the seekable format."""
    far = noise(1 << 10) + bytes(140 << 20) + noise(1 << 10)  # found again 140 MiB further on
    table = b"\x5e\x2a\x4d\x18" + (4).to_bytes(4, "little") + bytes(4)
    path = tmp_path / "f.txt.zst"
    path.write_bytes(table + streamed(far, 28) + streamed(b"an article\n", 20, 31) + table + streamed(b"end", 20, 30))
    if available_memory() < available_cores() << 32:
        pytest.skip("a core needs 4 GiB here for the longest window")
    found, error = content(path, "zstd")
    assert (found == far + b"an article\nend", error) == (True, "")


@pytest.mark.parametrize(
    ("window", "gibibytes", "why"),
    [
        (32, 0, "of 4,096 MiB, more than {most}: compress it without --long"),
        (31, 2, "of 2,048 MiB, more than {most}: compress it with --long={log}, or use fewer cores (taskset): all of "
         "them may take half of the memory"),
    ],
)  # fmt: skip
def test_a_longer_window_is_refused_in_words(tmp_path: Path, window: int, gibibytes: int, why: str) -> None:
    """And as a process with little memory sees it."""
    path = tmp_path / "f.txt.zst"
    frame, memory = streamed(b"an article\n", 20, window), available_memory()
    path.write_bytes(zstandard.compress(b"before\n") + frame)
    code = "from broadsheet.pipeline.source.open.compression import COMPRESSIONS, refusal; "
    code += f"print(refusal(COMPRESSIONS['zstd'], {frame[:18]!r}))"
    if gibibytes:
        memory = gibibytes << 30
        code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({memory}, -1)); {code}"
    log = min(31, (memory // (2 * available_cores())).bit_length() - 1)
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told.strip() == "its zstd frame asks for a window " + why.format(most=f"{1 << (log - 20):,}", log=log)
    if not gibibytes:
        cut = f"{path}: cut off or damaged after 7 decompressed bytes; all before is read ({told.strip()})"
        assert content(path, "zstd") == (b"before\n", cut)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "f.txt.gz"
    path.write_bytes(gzip.compress(noise(32 << 20), 1))
    with open_at(described(path, "gzip")) as stream:
        assert len(stream.read(1000)) == 1000
        os.utime(path)
        with pytest.raises(InputChanged, match="it has changed since the job was planned"):
            all(iter(lambda: stream.read(1 << 20), b""))


def test_a_large_compressed_file_is_remarked_on(tmp_path: Path) -> None:
    for name, size in {"a.txt.zst": 1 << 30, "b.txt.gz": 2 << 30, "c.txt": 2 << 30, "d.txt.gz": 1 << 20}.items():
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)
    files = find_files([str(tmp_path)], 70, 1014).found
    one = f"{tmp_path}/b.txt.gz: gzip, read by one core; several smaller files are read by all"
    assert slow_to_read(files) == f"{one} (the largest of 2 compressed files of 1 GiB and more)"
    assert slow_to_read(files[1:]) == one
    assert slow_to_read(files[2:]) is None
