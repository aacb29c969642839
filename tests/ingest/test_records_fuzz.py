"""Randomly changed lines, read by the host and by the kernels compiled for the CPU, give the same rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from records_on_cpu import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is here")


@pytest.mark.slow
def test_both_ways_read_the_same_of_lines_that_were_changed_at_random(tmp_path: Path) -> None:
    numbers = ["--jsonl-lines", "3000", "--csv-records", "2000", "--seed", "5", "--processes", "2"]
    where = ["--device", "cpu", "--output", str(tmp_path / "fuzz.json"), "--keep", str(tmp_path / "kept")]
    command = [sys.executable, "-m", "benchmarks.fuzz_records", *numbers, *where]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "fuzz.json").read_text())
    read = result["read"]
    assert result["trials_done"] == result["trials"]
    assert read["by_device"] > read["records"] / 3
    assert read["alone"] > 1000
    assert read["refused_blocks"]
    assert not (tmp_path / "kept").exists()


MANY_LABELS = """
import sys
from pathlib import Path
from benchmarks.fuzz_records.reading import Blocks, BothWays, find_files, plan_files, read_by_host
from benchmarks.fuzz_records.trials import Look
from broadsheet.pipeline.source.rows.chunk import Selection

line = '{"%s": "a text", "label": "%s"}'
lines = [line % ("text", f"label {i:02}") for i in range(16) for _ in range(2)]
lines += [line % ("text", "x")] + [line % ("te\\\\u0078t", "x")] * 2  # the device leaves the last two to the host
path = Path(sys.argv[1])
path.write_text("\\n".join([*lines, ""]))
look = Look(Selection(truth="label", classes=("a",)), 1 << 20, 5000)
plan = plan_files(find_files([str(path)], 70, 1014).found, look.selection, 5000)
both = BothWays("cpu")
one, _ = read_by_host(plan.ranges[0], plan.selection, 5000, lambda _: False)
other, _ = both.by_device(plan.ranges[0], plan.selection, look, Blocks())
both.close()
counts = lambda chunk: {label: len(rows) for label, rows in chunk.unknown_labels.items()}
assert counts(one) == counts(other) == {f"label {i:02}": 2 for i in range(16)} | {"x": 3}
"""


@pytest.mark.slow
def test_unknown_labels_are_counted_the_same_where_there_are_more_than_are_listed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MANY_LABELS, str(tmp_path / "a.jsonl")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
