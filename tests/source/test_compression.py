"""Compressed files compared with Python's own decompressors: whole, in parts, padded, cut off, damaged, misnamed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.block
import lz4.frame
import pytest
import zstandard
from conftest import ROOT, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import found, read_files

from broadsheet.pipeline.errors import InputChanged, SourceError
from broadsheet.pipeline.processes.threads import available_cores, available_memory
from broadsheet.pipeline.source.open.opening import open_at
from broadsheet.pipeline.source.plan.files import FORMAT_OF_SUFFIX, find_files
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.rows.format import InputFile
from broadsheet.pipeline.source.sample import slow_to_read

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
        format=FORMAT_OF_SUFFIX[".txt"],
        compression=compression,
        size=about.st_size,
        modified=str(about.st_mtime_ns),
        location=str(path),
    )


def content(path: Path, compression: str | None, size: int = 1 << 20) -> tuple[bytes, str]:
    """Return what a file holds, and the error that ended the reading."""
    blocks = []
    try:
        with open_at(described(path, compression)) as stream:
            while block := stream.read(size):
                blocks.append(block)
    except SourceError as error:
        return b"".join(blocks), error.message
    return b"".join(blocks), ""


def reference(data: bytes, compression: str) -> tuple[bytes, bool]:
    """Decompress byte by byte, to lose nothing before damage. Return the data, and whether all of it is good."""
    pieces, left = [], data
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
                pieces.append(decoder.decompress(left[used : used + 1]))
                used += 1
        except (zlib.error, zstandard.ZstdError, OSError, lzma.LZMAError, RuntimeError, EOFError):
            return b"".join(pieces), False
        if not decoder.eof:
            return b"".join(pieces), False
        left = left[used:]
        if compression == "gzip":
            left = left.lstrip(b"\0")
        elif compression == "xz":
            zeros = len(left) - len(left.lstrip(b"\0"))
            if zeros % 4:
                return b"".join(pieces), False
            left = left[zeros:]
    return b"".join(pieces), True


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
    if flip is not None and len(data) > 20:  # the first bytes show the compression, so they stay
        place = min(20 + round(flip * len(data)), len(data) - 1)
        data = data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
    path = tmp_path_factory.getbasetemp() / f"f.{compression}"
    path.write_bytes(data)
    expected, good = reference(data, compression)
    data_read, error = content(path, compression, size)
    assert (error == "") == good
    if flip is None:
        assert data_read == expected
    else:  # more of a damaged unit may be read before its checksum, but a wrong checksum may cost the byte before it
        assert data_read.startswith(expected[:-1])
    if not good:
        told = f"{path}: cut off or damaged after {len(data_read):,} decompressed bytes; all before is read ("
        assert error.startswith(told)


def noise(count: int) -> bytes:
    """Return bytes that compress to about a half."""
    return random.Random(count).randbytes(count // 2).hex().encode()


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
    data_read, error = content(path, "gzip")
    assert not data_read
    assert f"{path}: cut off or damaged after 0 decompressed bytes" in error


def resident(what: str) -> int:
    """Return bytes of memory: VmRSS now, VmHWM at the peak."""
    return int(re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


@pytest.mark.slow
@pytest.mark.parametrize("compression", NAMES)
def test_a_bomb_fills_no_memory(tmp_path: Path, compression: str) -> None:
    zeros = bytes(80 << 20)
    path = tmp_path / "f.txt"
    path.write_bytes(lzma.compress(zeros, preset=0) if compression == "xz" else COMPRESS[compression](zeros))
    del zeros
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    with open_at(described(path, compression)) as stream:
        assert sum(iter(lambda: len(stream.read(1 << 22)), 0)) == 80 << 20
    assert resident("VmHWM") - before < 50 << 20


def streamed(data: bytes, window: int, asked: int | None = None) -> bytes:
    """Return a zstd frame with a window of 2**`window` bytes. asked: the window that its header claims instead."""
    wide = zstandard.ZstdCompressionParameters(window_log=window, compression_level=1, enable_ldm=window > 27)
    packer = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    frame = packer.compress(data) + packer.flush()
    return frame[:5] + bytes([((asked or window) - 10) << 3]) + frame[6:]


def test_zstd_frames_with_long_windows_are_read_where_memory_is_enough(tmp_path: Path) -> None:
    """Windows as large as those of `zstd --long=31`: several frames, with skippable frames in between, as in the
    seekable format.
    """
    far = noise(1 << 10) + bytes(140 << 20) + noise(1 << 10)  # repeats data from 140 MiB before
    table = b"\x5e\x2a\x4d\x18" + (4).to_bytes(4, "little") + bytes(4)
    path = tmp_path / "f.txt.zst"
    path.write_bytes(table + streamed(far, 28) + streamed(b"an article\n", 20, 31) + table + streamed(b"end", 20, 30))
    if available_memory() < available_cores() << 32:
        pytest.skip("a core needs 4 GiB here for the longest window")
    data_read, error = content(path, "zstd")
    assert (data_read == far + b"an article\nend", error) == (True, "")


READ = """
import resource, sys
from broadsheet.pipeline.errors import SourceError
from broadsheet.pipeline.source.plan.files import find_files
from broadsheet.pipeline.source.open.opening import open_at
if int(sys.argv[2]):
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), -1))
(file,) = find_files([sys.argv[1]], 70, 1014).found
with open_at(file) as stream:
    try:
        while block := stream.read(1000):
            print(block.decode(), end="")
    except SourceError as error:
        print(error.message)
"""


# 0: all memory of this machine. 2: a process that may use 2 GiB.
@pytest.mark.parametrize("gibibytes", [0, 2])
def test_a_longer_window_is_refused_in_words(tmp_path: Path, gibibytes: int) -> None:
    """A process with little memory gets the message too."""
    path = tmp_path / "f.txt.zst"
    path.write_bytes(zstandard.compress(b"before\n") + streamed(b"an article\n", 20, 31 if gibibytes else 32))
    log = min(31, ((gibibytes << 30 or available_memory()) // (2 * available_cores())).bit_length() - 1)
    command = [sys.executable, "-c", READ, path, str(gibibytes << 30)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told == (
        f"before\n{path}: cut off or damaged after 7 decompressed bytes; all before is read (its zstd frame asks for a "
        f"window of more than {1 << (log - 20):,} MiB: compress it with --long={log} or less, or use fewer cores "
        "(taskset): all of them may take half of the memory)\n"
    )


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


SAMPLES = [b'{"text": "oil prices rose on day %d", "id": %d}\n' % (i % 7, i) for i in range(4000)]


@pytest.mark.parametrize("dictionary_is", ["plain", "compressed"])
@pytest.mark.parametrize("has_id", [True, False])
def test_a_zstd_dictionary_in_the_file_is_used(dictionary_is: str, has_id: bool, tmp_path: Path) -> None:
    """The dictionary is in a skippable frame before the frames that need it, as in .warc.zst. Other skippable frames
    are skipped.
    """
    dictionary = zstandard.train_dictionary(4096, SAMPLES)
    compressor = zstandard.ZstdCompressor(dict_data=dictionary, write_dict_id=has_id)
    held = dictionary.as_bytes() if dictionary_is == "plain" else zstandard.compress(dictionary.as_bytes())
    other = struct.pack("<II", 0x184D2A50, 5) + b"\x37\xa4\x30\xec!"
    frames = b"".join(compressor.compress(b"".join(SAMPLES[i : i + 100])) for i in range(0, len(SAMPLES), 100))
    data = other + struct.pack("<II", 0x184D2A5D, len(held)) + held + frames + zstandard.compress(b"{}\n")
    for name in ("a.jsonl.zst", "b.json.zst"):
        (tmp_path / name).write_bytes(data)
        assert content(tmp_path / name, "zstd") == (b"".join(SAMPLES) + b"{}\n", "")
    listed = find_files([str(tmp_path)], 70, 1014)
    assert ([file.format.name for file in listed.found], listed.problems) == (["jsonl", "jsonl"], ())


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.json.zst", "part-00000.zst"])
def test_a_dictionary_that_is_not_in_the_file_is_named_as_the_cause(name: str, tmp_path: Path) -> None:
    dictionary = zstandard.train_dictionary(4096, SAMPLES)
    compressor = zstandard.ZstdCompressor(dict_data=dictionary)
    (tmp_path / name).write_bytes(compressor.compress(SAMPLES[0]))
    (tmp_path / "good.jsonl").write_bytes(SAMPLES[0])
    listed = find_files([str(tmp_path)], 70, 1014)
    result = read_files(listed.found, Selection(), 10)
    (told,) = [*result.messages, *(why for _, why in listed.problems)]
    assert f"a zstd frame was compressed with dictionary {dictionary.dict_id()}, which is not in the file" in told
    assert "damaged" not in told
    (tmp_path / name).write_bytes(zstandard.compress(SAMPLES[1]) + compressor.compress(SAMPLES[0]))
    read, told = content(tmp_path / name, "zstd")
    assert (read, f"after {len(SAMPLES[1])} decompressed bytes, a zstd frame" in told) == (SAMPLES[1], True)


def test_an_lz4_frame_that_needs_a_dictionary_is_named(tmp_path: Path) -> None:
    frame = bytearray(lz4.frame.compress(SAMPLES[0]))
    frame[4] |= 1
    (tmp_path / "a.lz4").write_bytes(frame)
    assert "an lz4 frame was compressed with a dictionary" in content(tmp_path / "a.lz4", "lz4")[1]


def legacy(blocks: list[bytes]) -> bytes:
    """Return a file as `lz4 -l` writes it: all blocks but the last hold 8 MiB."""
    packed = [lz4.block.compress(block, store_size=False) for block in blocks]
    return b"\x02\x21\x4c\x18" + b"".join(struct.pack("<I", len(block)) + block for block in packed)


@pytest.mark.parametrize("size", [1000, 1 << 22])
def test_legacy_frames_of_lz4_are_read(size: int, tmp_path: Path) -> None:
    chance = random.Random(0)
    full = chance.randbytes(3 << 20) + bytes(5 << 20)
    for blocks in ([b"a" * 100], [full, b"".join(SAMPLES)], [full, chance.randbytes(8 << 20)], [b""]):
        frame, whole = legacy(blocks), b"".join(blocks)
        (tmp_path / "a.lz4").write_bytes(frame)
        assert content(tmp_path / "a.lz4", "lz4", size) == (whole, "")
        (tmp_path / "a.lz4").write_bytes(frame + lz4.frame.compress(b"more") + legacy([b"and more"]))
        assert content(tmp_path / "a.lz4", "lz4", size) == (whole + b"moreand more", "")
        (tmp_path / "a.lz4").write_bytes(frame[:-1])
        assert content(tmp_path / "a.lz4", "lz4", size)[1].startswith(f"{tmp_path}/a.lz4: cut off or damaged after")
    (tmp_path / "b.json.lz4").write_bytes(legacy([b"".join(SAMPLES)]))
    (tmp_path / "a.lz4").unlink()
    listed = find_files([str(tmp_path)], 70, 1014)
    assert len(read_files(listed.found, Selection(), 1000).texts) == len(SAMPLES)


@pytest.mark.parametrize("suffix", ["bz2", "lz4"])
def test_a_format_is_told_though_its_first_block_is_large(suffix: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    lines = b"".join(b'{"text": "%s"}\n' % chance.randbytes(300).hex().encode() for _ in range(9000))
    packed = (
        bz2.compress(lines) if suffix == "bz2" else lz4.frame.compress(lines, block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    )
    (tmp_path / f"a.json.{suffix}").write_bytes(packed)
    assert len(packed) > 1 << 20
    listed = find_files([str(tmp_path)], 70, 1014)
    assert ([file.format.name for file in listed.found], listed.problems) == (["jsonl"], ())
