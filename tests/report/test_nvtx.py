"""Steps are NVTX ranges: heard by a tool that listens to every process of a job, as nsys does."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT, Command


def test_a_tool_hears_every_step_of_every_worker(broadsheet: Command, small_model_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the listener with")
    listener = tmp_path / "listener.so"
    source = ROOT / "tests" / "helpers" / "nvtx_listener.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", listener, source], check=True)
    for name in ("one.csv", "two.csv"):  # more than 64 KiB together: two groups, one for each worker
        (tmp_path / name).write_text("text\n" + "".join(f"{i} {'words ' * 350}\n" for i in range(20)))
    arguments = ["classify", "one.csv", "two.csv", "-o", "out", "--model", small_model_file]
    arguments += ["--workers", 2, "--chunk-size", 5]
    env = {"NVTX_INJECTION64_PATH": str(listener), "NVTX_HEARD": str(tmp_path / "heard")}
    run = broadsheet(*arguments, "--quiet", env=env, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    ranges = [line.split(" ") for line in (tmp_path / "heard").read_text().splitlines()]
    assert {domain for _, domain, _, _ in ranges} == {"broadsheet"}
    workers = {pid for pid, _, name, _ in ranges if name == "infer"}
    assert len(workers) == 2
    chunks = Counter((pid, name, int(payload)) for pid, _, name, payload in ranges)
    for worker in workers:
        for step in ("read", "infer", "write"):
            assert [chunks[worker, step, number] for number in range(4)] == [1] * 4, step
