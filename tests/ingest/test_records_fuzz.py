"""Lines that were changed at random, read by the host and by the kernels compiled for the CPU: the same rows."""

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
