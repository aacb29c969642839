"""Data that readers send through shared memory in pieces: it arrives unchanged, whatever its size, and whatever happens
to the processes on either side.
"""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from blocks import SLOT_BYTES, told
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import children_of, wait_until
from numpy.typing import NDArray
from reading import found

from broadsheet.pipeline import close
from broadsheet.pipeline.errors import BroadsheetError
from broadsheet.pipeline.processes.messages import packed, receive, send, unpacked
from broadsheet.pipeline.source.plan.plan import Plan, plan_files
from broadsheet.pipeline.source.read.read import read_range
from broadsheet.pipeline.source.read.readers import ReaderLost, Readers
from broadsheet.pipeline.source.read.ring import Freed, RawBlock, Refused, Ring, Slots
from broadsheet.pipeline.source.read.ring_messages import PIECE_BYTES, OnHost, receive_message, send_message
from broadsheet.pipeline.source.rows.chunk import QUARANTINE_SCHEMA, Chunk, Selection, are_blank

READER = "broadsheet.pipeline.source.read.reader_process"


def never(_: str) -> bool:
    return False


def room(_: int) -> bool:
    return True


# Messages one after another


class Elsewhere(OnHost):
    """A destination that checks the pieces copied to it."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size, self.written = size, 0

    def write(self, at: int, piece: NDArray[np.uint8], slot: int) -> None:
        assert at == self.written
        super().write(at, piece, slot)
        self.written += len(piece)

    def texts(self, offsets: NDArray[np.int64], is_blank: NDArray[np.bool_]) -> pa.LargeBinaryArray:
        texts = super().texts(offsets, is_blank)
        assert self.written == self.size
        assert is_blank.tolist() == are_blank(texts).tolist()
        return texts


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    """Draw chunks with no rows, with rows that have no bytes, or with more bytes than the slots hold."""
    rows = draw(st.sampled_from([0, 1, 7, 5_000]))
    chance = np.random.default_rng(draw(st.integers(0, 99)))
    longest = draw(st.sampled_from([0, 3, 60])) if rows > 7 else draw(st.sampled_from([0, 9, 70_000, 300_000]))

    def texts(first: int = 0) -> pa.LargeBinaryArray:
        lengths = chance.integers(0, longest, first + rows, endpoint=True)
        every = [chance.integers(97, 123, length, np.uint8).tobytes() for length in lengths]
        return pa.array([b" " * len(one) if i % 5 == 0 else one for i, one in enumerate(every)], pa.large_binary())

    kept = {f"kept {i}": texts().cast(pa.large_string()) for i in range(draw(st.integers(0, 2)))}
    table = pa.table({"file": pa.repeat("a.csv", rows), "row": np.arange(rows), **kept})
    prepared = {"twice": texts().cast(pa.large_string())} if draw(st.booleans()) else {}
    ids = chance.integers(0, 70, (rows, 100), np.uint8) if draw(st.booleans()) else None
    first = draw(st.sampled_from([0, 3]))  # if 3, the texts are a slice of a larger array
    return Chunk(texts(first)[first:], table, QUARANTINE_SCHEMA.empty_table(), ids, prepared=prepared)


def same(one: Chunk, other: Chunk) -> bool:
    ids = [None if chunk.ids is None else chunk.ids.tolist() for chunk in (one, other)]
    texts = one.text.equals(other.text) and one.rows.equals(other.rows)
    return texts and ids[0] == ids[1] and {**one.prepared} == {**other.prepared}


Step = tuple[Chunk, bool] | tuple[int, int | None]
"""A chunk, and whether its texts go separately; or a number of blocks, and which of them is refused."""


class Talk:
    """A reader and a worker, each in a thread of this process."""

    def __init__(self, steps: list[Step], slot_bytes: int) -> None:
        self.here, there = socket.socketpair()
        self.ring = Ring(1, slot_bytes)
        self._there = there
        self._slots = Slots(self.ring.descriptor, 0, slot_bytes, lambda: unpacked(receive(there)))
        self._thread = threading.Thread(target=self._run, args=(steps,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join()
        self.ring.close()
        self.here.close()
        self._there.close()

    def _run(self, steps: list[Step]) -> None:
        try:
            self._tell(steps)
        finally:
            self._there.shutdown(socket.SHUT_WR)

    def _tell(self, steps: list[Step]) -> None:
        for number, (what, how) in enumerate(steps):
            if isinstance(what, Chunk):
                send_message(self._there, self._slots, what, what.text if how else None)
                continue
            for turn in range(what):
                if (begin := self._slots.reserve()) is None:
                    break
                self._slots.memory[begin : begin + 2] = bytes([number, turn])
                send_message(self._there, self._slots, self._slots.give(2, turn, 0))
            self._slots.settle()
            left = self._slots.withdraw() if self._slots.is_refused else None
            send_message(self._there, self._slots, left)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(chunks(), st.booleans()) | st.tuples(st.integers(1, 5), st.none() | st.integers(0, 4)), max_size=6
    ),
    st.sampled_from([4 << 10, 64 << 10]),
)
def test_any_mix_of_chunks_and_blocks_arrives_in_order_and_equal(steps: list[Step], slot_bytes: int) -> None:
    talk = Talk(steps, slot_bytes)
    for number, (what, how) in enumerate(steps):
        if isinstance(what, Chunk):
            came = receive_message(talk.here, talk.ring, Elsewhere)
            assert same(came, what)
            assert all(buffer.address % 8 == 0 for buffer in came.text.buffers() if buffer is not None)
            continue
        turn = 0
        while isinstance(block := receive_message(talk.here, talk.ring, Elsewhere), RawBlock):
            if how is None or turn < how:
                assert bytes(talk.ring.block(block.slot, block.size)) == bytes([number, turn])
                send(talk.here, packed(Freed()))
            elif turn == how:
                send(talk.here, packed(Refused()))
            turn += 1
        if how is None or how >= what:
            assert (turn, block) == (what, None)
        else:
            blocks, at = block
            assert (blocks[0], at) == (bytes([number, how]), how)
            assert len(blocks) == turn - how
    talk.close()


# Processes that read files


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    close()  # a worker of another test in this process has readers too
    readers = Readers(1, 1, SLOT_BYTES)
    yield readers
    readers.close()


def pids(parent: int) -> set[int]:
    return {child.pid for child in children_of(parent, READER)}


def texts_of(rows: int) -> list[str | None]:
    words = [" ", "", "Straße", "日本語\n", "x" * 90, '"quoted"', "\u3000"]
    return [None if i % 97 == 13 else words[i % 7] * (1 + i % 5) + words[i % 6] for i in range(rows)]


def written(folder: Path, form: str, rows: int) -> Path:
    """Write a file of rows, some of them bad."""
    table = pa.table({"id": range(rows), "text": texts_of(rows), "of": ["a" * (i % 40) for i in range(rows)]})
    path = folder / f"in.{form}"
    if form == "parquet":
        pq.write_table(table, path, row_group_size=700)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, 700)
    else:
        lines = [
            f'{i},"{(text or "").replace(chr(34), chr(34) * 2)}",{"a" * (i % 40)}\n'
            for i, text in enumerate(texts_of(rows))
        ]
        lines[5:5] = ["one field\n", "9,\xff,b\n"]
        data = ("id,text,of\n" + "".join(lines)).encode("latin-1", "xmlcharrefreplace")
        path = folder / f"in.{form}"
        path.write_bytes(gzip.compress(data, 1) if form.endswith(".gz") else data)
    return path


def upper(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    return pc.utf8_upper(texts)


def plan_of(path: Path, chunk_rows: int, **given: Any) -> Plan:
    return plan_files(found([path]), Selection(**given), chunk_rows)


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "csv.gz"])
@pytest.mark.parametrize("place_texts", [None, Elsewhere])
def test_files_arrive_as_one_process_reads_them(
    readers: Readers, form: str, place_texts: Callable[[int], Elsewhere] | None, tmp_path: Path
) -> None:
    """Chunks may be larger or smaller than the slots, with and without copied columns and prepared texts."""
    before = pids(os.getpid())
    path = written(tmp_path, form, 9_000)
    for more in (
        {"reads": 20},
        {"kept_columns": ("of", "id", "text")},
        {"preparations": (("upper", upper),), "only_prepared": True},
    ):
        for chunk_rows in (170, 4_000):
            plan = plan_of(path, chunk_rows, **more)
            for range_ in plan.ranges:
                given = (range_, plan.selection, chunk_rows, lambda name: name.endswith("1"))
                came, here = [*readers.read_range(*given, [], room, place_texts)], [*read_range(*given)]
                assert told(came) == told(here)
                ours = [item.prepared for item in here if isinstance(item, Chunk)]
                assert [item.prepared for item in came if isinstance(item, Chunk)] == ours
    assert pids(os.getpid()) == before


def nowhere(_: int) -> OnHost:
    raise AssertionError("there are no texts")


def test_encoded_articles_arrive_though_texts_go_elsewhere(readers: Readers, tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    dense = np.zeros((200, 70, 1014), np.float32)
    dense[np.arange(200)[:, None], chance.integers(0, 70, (200, 1014)), np.arange(1014)] = 1
    dense[:, 0, 1000:] = 0
    dense.tofile(tmp_path / "input.bin")
    plan = plan_of(tmp_path / "input.bin", 90, text=())
    given = (plan.ranges[0], plan.selection, 90, never)
    came, here = [*readers.read_range(*given, [], room, nowhere)], [*read_range(*given)]
    assert told(came) == told(here)
    for one, other in zip(came, here, strict=True):
        if isinstance(other, Chunk):
            assert isinstance(one, Chunk)
            assert one.ids is not None
            assert one.ids.tolist() == other.ids.tolist()


class KillsTheReader(OnHost):
    """Kills the reader when the second piece of the texts arrives."""

    def write(self, at: int, piece: NDArray[np.uint8], slot: int) -> None:
        super().write(at, piece, slot)
        if at:
            for pid in pids(os.getpid()):
                os.kill(pid, signal.SIGKILL)


class Fails(OnHost):
    """Fails at the second piece, as a GPU might."""

    def write(self, at: int, piece: NDArray[np.uint8], slot: int) -> None:
        if at:
            raise BroadsheetError("the GPU failed")


@pytest.mark.slow
def test_a_reader_that_is_killed_in_the_middle_of_a_chunk_is_said_to_be_lost(readers: Readers, tmp_path: Path) -> None:
    """No part of the chunk is used, and the next reader of the range gets all of it."""
    plan = plan_of(written(tmp_path, "csv", 20_000), 20_000)
    given = (plan.ranges[0], plan.selection, 20_000, never)
    whole = told([*read_range(*given)])
    with pytest.raises(ReaderLost, match=r"in\.csv: the process that read it was ended by SIGKILL"):
        list(readers.read_range(*given, [], room, KillsTheReader))
    assert told([*readers.read_range(*given, [], room)]) == whole


@pytest.mark.parametrize("leave", ["fails", "no room", "left"])
def test_an_answer_that_is_left_in_the_middle_disturbs_no_other(readers: Readers, leave: str, tmp_path: Path) -> None:
    """The next reader is a new process, with free slots."""
    plan = plan_of(written(tmp_path, "parquet", 30_000), 6_000)
    given = (plan.ranges[0], plan.selection, 6_000, never)
    before, whole = pids(os.getpid()), told([*read_range(*given)])
    taken: list[int] = []

    def take(size: int) -> bool:
        taken.append(size)
        return leave != "no room" or len(taken) < 3

    reading = readers.read_range(*given, [], take, Fails if leave == "fails" else None)
    if leave == "fails":
        with pytest.raises(BroadsheetError, match="the GPU failed"):
            list(reading)
    elif leave == "no room":
        assert len(list(reading)) == 2
    else:
        next(reading)
        reading.close()
    wait_until(lambda: len(pids(os.getpid())) == 1)  # a process that is just starting has no command line yet
    assert pids(os.getpid()) != before
    assert told([*readers.read_range(*given, [], room)]) == whole


WORKER = """
import sys
from reading import found
from broadsheet.pipeline.source.rows.chunk import Selection
from broadsheet.pipeline.source.plan.plan import plan_files
from broadsheet.pipeline.source.read.readers import Readers

if __name__ == "__main__":
    readers = Readers(1, 1, 64 << 10)
    plan = plan_files(found([sys.argv[1]]), Selection(), 6_000)
    def wait(size):
        print("begun", flush=True)
        sys.stdin.read()
    list(readers.read_range(plan.ranges[0], plan.selection, 6_000, lambda name: False, [], wait))
"""


def test_a_reader_that_waits_for_a_slot_ends_with_its_worker(tmp_path: Path) -> None:
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, written(tmp_path, "parquet", 30_000)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path},
    ) as worker:  # fmt: skip
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"begun\n"
        (reader,) = pids(worker.pid)
        wait_until(lambda: psutil.Process(reader).status() == psutil.STATUS_SLEEPING)
        worker.kill()
    wait_until(lambda: not psutil.pid_exists(reader))


def test_slots_take_no_more_memory_than_what_passed_through_them(tmp_path: Path) -> None:
    def resident(readers: Readers) -> int:
        return os.fstat(readers.ring.descriptor).st_blocks * 512

    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    small.write_text("text\n" + "a\n" * 50)
    large.write_text("text\n" + ("x" * 999 + "\n") * (3 * PIECE_BYTES // 1000))
    readers = Readers(2, 2)
    try:
        for path, most in ((small, 64 << 10), (large, 2 * PIECE_BYTES + (64 << 10))):
            plan = plan_of(path, 100_000)
            for range_ in plan.ranges:
                list(readers.read_range(range_, plan.selection, 100_000, never, [], room))
            assert resident(readers) <= most
        assert resident(readers) >= PIECE_BYTES
    finally:
        readers.close()
