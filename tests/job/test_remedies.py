"""Follows the remedy in each message as it is printed: the remedy works, and labels no more again than it must."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from conftest import CommandHere

from broadsheet.pipeline import OutputError, verify

ROWS = 30
FLAGS = re.compile(r"--[a-z]+(?:-[a-z]+)*(?: latin-1)?")


def lines(name: str) -> bytes:
    """Return lines that are large enough, even compressed, for a file to be read on its own."""
    of_name = Random(name)
    rows = (f'{{"text": "café {row} {of_name.randbytes(2500).hex()}"}}\n' for row in range(ROWS))
    return "".join(rows).encode()


def write(path: Path, data: bytes, moment: int = 1_700_000_000) -> None:
    path.write_bytes(data)
    os.utime(path, (moment, moment))


class Folder:
    """Input with two whole files and room for a damaged one, and a function that runs the job as a command."""

    def __init__(self, top: Path, run: CommandHere, model: Path) -> None:
        self.top, self.out = top / "in", top / "out"
        self.top.mkdir()
        for name in ("a", "b"):
            write(self.top / f"{name}.jsonl", lines(name))
        self._run, self._model = run, model

    def run(self, *flags: str, out: Path | None = None) -> tuple[int, str]:
        """Run the job with further flags. Return its exit code and all that it prints, on one line."""
        job = ("classify", self.top, "-o", out or self.out, "--model", self._model, "--chunk-size", ROWS)
        code, said = self._run(*job, *flags)
        return code, " ".join(said.split())

    def parts(self) -> dict[str, int]:
        """Return when each part of the output was written, by its name."""
        return {path.name: path.stat().st_mtime_ns for path in (self.out / "parts").glob("*.parquet")}


@pytest.fixture
def folder(tmp_path: Path, broadsheet_here: CommandHere, small_model_file: Path) -> Folder:
    return Folder(tmp_path, broadsheet_here, small_model_file)


def damaged_where_it_begins(folder: Folder) -> tuple[str, Callable[[], None]]:
    """Damage the first bytes of a file, so that its format is unknown and no plan has it."""
    path, whole = folder.top / "c.json.gz", gzip.compress(lines("c"))
    write(path, b"\0\0" + whole[2:])
    code, said = folder.run()
    assert code == 3
    return said, lambda: write(path, whole, 1_700_000_001)


def cut_off(folder: Folder) -> tuple[str, Callable[[], None]]:
    path, whole = folder.top / "c.jsonl.gz", gzip.compress(lines("c"))
    write(path, whole[:-20])
    code, said = folder.run()
    assert code == 3
    return said, lambda: write(path, whole, 1_700_000_001)


def read_in_part_and_resumed(folder: Folder) -> tuple[str, Callable[[], None]]:
    """Resume a finished job after one of its files was repaired."""
    _, repair = cut_off(folder)
    repair()
    code, said = folder.run("--resume")
    assert code == 2
    return said, lambda: None


def changed_later(folder: Folder) -> tuple[str, Callable[[], None]]:
    write(folder.top / "c.jsonl", lines("old")[: -len(b"\n")])
    assert folder.run()[0] == 0
    write(folder.top / "c.jsonl", lines("c"), 1_700_000_001)
    code, said = folder.run("--update")
    assert code == 3
    return said, lambda: None


def came_while_it_stood_still(folder: Folder) -> tuple[str, Callable[[], None]]:
    assert folder.run()[0] == 0
    write(folder.top / "c.jsonl", lines("c"))
    code, said = folder.run("--resume")
    assert code == 0
    return said, lambda: None


def with_a_limit(folder: Folder) -> tuple[str, Callable[[], None]]:
    """Limit the rows of a job, which then cannot be updated."""
    path, whole = folder.top / "c.jsonl.gz", gzip.compress(lines("c"))
    write(path, whole[:-20])
    code, said = folder.run("--limit", str(4 * ROWS))
    assert code == 3
    return said, lambda: write(path, whole, 1_700_000_001)


def damaged_output(folder: Folder) -> tuple[str, Callable[[], None]]:
    write(folder.top / "c.jsonl", lines("c"))
    assert folder.run()[0] == 0
    part = max((folder.out / "parts").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-9] + b"x" + part.read_bytes()[-8:])
    with pytest.raises(OutputError) as damage:
        verify(folder.out)
    return damage.value.message, lambda: None


def in_another_encoding(folder: Folder) -> tuple[str, Callable[[], None]]:
    for name in ("a", "b", "c"):
        write(folder.top / f"{name}.jsonl", lines(name).decode().encode("latin-1"))
    code, said = folder.run()
    assert code == 3
    return f"{said} --overwrite", lambda: None  # the table of exit codes asks for this flag


def unfinish(folder: Folder) -> None:
    """Put the job into the state of one that was killed before some chunks of its first file were committed."""
    (folder.out / "_SUCCESS").unlink()
    manifest = folder.out / "_manifest.json"
    manifest.write_text(re.sub(r' "totals": \{.*\n \},', ' "totals": null,', manifest.read_text(), flags=re.DOTALL))
    for entry in (folder.out / "_entries").glob("*-00000[01]-*.json"):
        if "000001" in entry.name or "group" in entry.name:
            entry.unlink()


def unfinished_and_changed(folder: Folder) -> tuple[str, Callable[[], None]]:
    """Change a file of an unfinished job. The remedy labels the rest of the job as well."""
    write(folder.top / "c.jsonl", lines("old"))
    assert folder.run()[0] == 0
    unfinish(folder)
    write(folder.top / "c.jsonl", lines("c"), 1_700_000_001)
    code, said = folder.run("--resume")
    assert code == 2
    return said, lambda: None


def unfinished_and_limited(folder: Folder) -> tuple[str, Callable[[], None]]:
    """Change a file of an unfinished job that has a limit, and so cannot be updated."""
    write(folder.top / "c.jsonl", lines("old"))
    assert folder.run("--limit", str(4 * ROWS))[0] == 0
    unfinish(folder)
    write(folder.top / "c.jsonl", lines("c"), 1_700_000_001)
    code, said = folder.run("--resume", "--limit", str(4 * ROWS))
    assert code == 2
    return said, lambda: None


CASES = {
    damaged_where_it_begins: (r"Once a file is repaired, (--update --changed) labels it", True),
    cut_off: (r"Once a file is repaired, (--update --changed) labels it", True),
    read_in_part_and_resumed: (r"Its job is finished: (--update --changed) labels what has changed", True),
    changed_later: (r"To label it again, give (--update --changed)", True),
    came_while_it_stood_still: (r"1 file is new since this began: (--update) labels it", True),
    with_a_limit: (r"Once a file is repaired, (--overwrite) labels it", False),
    damaged_output: (r"(--resume) repairs this", True),
    in_another_encoding: (r"name it, e\.g\. (--encoding latin-1).*( --overwrite)", False),
    unfinished_and_changed: (r"(--update --changed) labels the rest and what has changed", True),
    unfinished_and_limited: (r"Start again with (--overwrite)", False),
}
"""For each fault: the message's remedy, and whether the remedy leaves the labels of other files as they are."""


@pytest.mark.parametrize("fault", CASES, ids=lambda fault: fault.__name__)
def test_what_a_message_says_helps(fault: Callable, folder: Folder) -> None:
    said, repair = fault(folder)
    remedy, keeps = CASES[fault]
    found = re.search(remedy, said)
    assert found, said
    flags = [word for flag in FLAGS.findall(" ".join(found.groups())) for word in flag.split()]
    before = folder.parts()
    repair()
    code, said = folder.run(*flags)
    assert code == 0, said
    totals = verify(folder.out, input=True)
    assert (totals.rows_read, totals.rows_written) == (3 * ROWS, 3 * ROWS)
    assert (totals.problems, totals.unread) == ((), ())
    kept = {name for name, written in folder.parts().items() if before.get(name) == written}
    assert (len(kept) >= 2) == keeps


@pytest.mark.slow
def test_max_unread_says_how_many_files_without_labels_are_an_error(folder: Folder) -> None:
    """The job finishes in any case, and names the files."""
    for name in ("c", "d"):
        write(folder.top / f"{name}.json.gz", b"\0\0" + gzip.compress(lines(name))[2:])
    for number, (flags, expected) in enumerate(
        (((), 3), (("1",), 3), (("2",), 0), (("49.9%",), 3), (("50%",), 0), (("100%",), 0))
    ):
        limit = [word for flag in flags for word in ("--max-unread", flag)]
        out = folder.top.parent / f"out-{number}"
        for quiet in ([], ["--quiet"]) if number < 3 else ([],):
            code, said = folder.run(*limit, *quiet, *(["--overwrite"] if quiet else []), out=out)
            assert code == expected, said
            assert "c.json.gz: cut off or damaged" in said
            assert ("2 of 4 files were not read, or read with a problem: more than --max-unread" in said) == (code == 3)
        assert len(verify(out).unread) == 2
    code, said = folder.run("--max-unread", "2", out=Path("-"))
    assert code == 0, said
    code, said = folder.run("--max-unread", "1", out=Path("-"))
    assert code == 3, said
    assert folder.run("--max-unread", "half") == (
        2,
        "broadsheet: max_unread is 'half', it must be a number of files, or a share such as 10%",
    )
