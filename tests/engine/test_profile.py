"""`broadsheet profile`: each kernel's time, work and verdict, compared with ceilings measured in the same run."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, Command

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.kernels.storage import STORAGE
from broadsheet.pipeline.kernels.work import kernels_of
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.report.breakdown import judge
from broadsheet.pipeline.telemetry.profile import Ceilings, KernelProfile

NAMES = ["encode", "conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2", "fc3", "head"]


def test_the_work_of_the_published_network(model: Model) -> None:
    """The figures can be worked out by hand from the layer table."""
    text = b"x" * 236
    works = {w.name: w for w in kernels_of(model, Texts.of([text]), STORAGE["simt"]["fp32"])}
    assert list(works) == NAMES
    assert works["conv1"].flop == 1008 * 256 * (7 + 7)  # seven table rows, and the norm
    assert works["conv2"].flop == 2 * 330 * 256 * 256 * 7
    assert works["conv2"].least_bytes == 4 * (336 * 256 + 256 * 256 * 7 + 256 + 110 * 256)
    assert works["conv6"].flop == 2 * 102 * 256 * 256 * 3 + 7 * 102 * 256
    assert works["fc1"].least_bytes == 4 * (8704 + 8704 * 1024 + 1024 + 1024)
    assert sum(w.flop for w in works.values()) == pytest.approx(492e6, rel=0.01)
    many = {w.name: w for w in kernels_of(model, Texts.of([text] * 1000), STORAGE["sm80"]["fp16"])}
    assert many["conv2"].flop == 1000 * works["conv2"].flop
    assert many["fc1"].least_bytes < 1000 * works["fc1"].least_bytes / 2  # weights are read once a batch
    eight = {w.name: w for w in kernels_of(model, Texts.of([text]), STORAGE["sm80"]["int8"])}
    assert eight["conv2"].least_bytes == works["conv2"].least_bytes // 4
    assert eight["fc1"].least_bytes == works["fc1"].least_bytes // 2
    texts = Texts.of([text, b"", b"x" * 2000])
    of_text = {w.name: w for w in kernels_of(replace(model, frame="text"), texts, STORAGE["simt"]["fp32"])}
    assert of_text["conv2"].flop == 2 * 256 * 256 * 7 * (81 + 0 + 330)  # 236 characters reach 79 rows, and 27 windows
    assert of_text["conv3"].flop == 2 * 256 * 256 * 3 * (27 + 0 + 108)
    assert of_text["fc1"].flop == 3 * works["fc1"].flop


@pytest.mark.slow
def test_the_command_measures_every_kernel(
    broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path
) -> None:
    arguments = ["profile", "--model", small_model_file, "--device", "cpu"]
    shown = ["--batch", 16, "--plot", "roofline.png"]
    run = broadsheet_in_process(*arguments, *shown, env={"COLUMNS": "80"}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    for name in NAMES:
        assert sum(line.split()[:1] == [name] for line in lines) == 2, name  # a row in both tables
    assert any(line.startswith("ceilings: ") and "FLOP/s" in line for line in lines)
    assert max(map(len, lines)) <= 80
    height, width, _ = pytest.importorskip("matplotlib.image").imread(tmp_path / "roofline.png").shape
    assert (width, height) > (1000, 400)

    run = broadsheet_in_process(*arguments, "--batch", 32, "--json")
    profile = json.loads(run.stdout)
    assert [k["name"] for k in profile["kernels"]] == NAMES
    stream = sum(k["stream_seconds"] for k in profile["kernels"])
    assert 0.3 < stream / profile["seconds"] < 2  # the kernels make up the run
    ceilings = profile["ceilings"]
    for kernel in profile["kernels"]:
        assert kernel["modelled_bytes"] >= kernel["least_bytes"] > 0
        # Other programs may have slowed one of the two measurements.
        assert kernel["flop"] / kernel["seconds"] < 4 * ceilings["flop_per_second"], kernel
        assert kernel["least_bytes"] / kernel["seconds"] < 4 * ceilings["bytes_per_second"], kernel


GPU = Ceilings(flop_per_second=750e12, bytes_per_second=4e12, how="on a GPU")


def kernel(seconds: float, flop: float, least: float, moved: float = 0, **facts: float) -> KernelProfile:
    return KernelProfile("k", "product", seconds, seconds, int(flop), int(least), int(moved or least), **facts)


@pytest.mark.parametrize(
    ("measured", "bound", "reason"),
    [
        (kernel(1e-3, 600e9, 0.1e9), "compute", "80% of the product ceiling"),
        (kernel(1e-3, 1e9, 3.6e9), "memory", "90% of the copy ceiling, by its least bytes"),
        (kernel(1e-3, 1e9, 0.4e9, 3.2e9), "memory", "80% of the copy ceiling, 8× the least"),
        (kernel(1e-3, 1e9, 0.4e9, 8e9), "memory", "20× the least bytes, part cached"),
        (kernel(1e-3, 1e9, 0.4e9, 8e9, counted_bytes=int(0.5e9)), "latency", "0% of product, 12% of copy ceiling"),
        (kernel(6e-6, 1e6, 1e6), "latency", "6 µs: hardly longer than a launch"),
        (kernel(1e-3, 100e9, 0.4e9, waves=0.4), "latency", "0.4 waves do not fill the device"),
        (kernel(1e-3, 100e9, 0.4e9, waves=1.1, tail_waste=0.45), "latency", "45% lost in the last wave"),
        (kernel(1e-3, 100e9, 0.4e9, tile_waste=0.3), "latency", "30% of each tile thrown away"),
        (kernel(1e-3, 100e9, 0.4e9, occupancy=0.12), "latency", "occupancy 12%: too few warps to hide waits"),
    ],
)
def test_what_bounds_a_kernel_and_why(measured: KernelProfile, bound: str, reason: str) -> None:
    judged = judge(measured, GPU)
    assert (judged.bound, judged.reason) == (bound, reason)


NSYS = """#!/bin/sh
echo "$@" > "$NSYS_ASKED"
while [ "$1" = profile ] || [ "${1#-}" != "$1" ]; do shift; done
exec "$@"
"""


@pytest.mark.slow
def test_workers_start_under_nsys(broadsheet_in_process: Command, small_model_file: Path, tmp_path: Path) -> None:
    """The test uses a stand-in for nsys that records its arguments, and then runs the command given to it."""
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(NSYS)
    program.chmod(0o755)
    for name in ("one.csv", "two.csv"):  # more than 64 KiB together: two groups, one for each worker
        (tmp_path / name).write_text("text\n" + f"{'x' * 2000}\n" * 20)
    arguments = ["classify", "one.csv", "two.csv", "-o", "out", "--model", small_model_file, "--json"]
    arguments += ["--chunk-size", 5, "--workers", 2, "--nsys", "profiles"]
    path = f"{program.parent}:{Path(shutil.which('sh')).parent}"
    run = broadsheet_in_process(*arguments, env={"PATH": path, "NSYS_ASKED": str(tmp_path / "asked")}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert len(json.loads(run.stdout)["workers"]) == 2
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --output=")
    assert f"{tmp_path}/profiles/%h-%p " in asked
    documented = (ROOT / "docs" / "explain.md").read_text()
    assert "nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --output=" in documented
    assert subprocess.run(["pgrep", "-f", str(program)], check=False, capture_output=True).stdout == b""
    run = broadsheet_in_process(*arguments, "--overwrite", env={"PATH": str(tmp_path)}, cwd=tmp_path)
    assert (run.returncode, "there is no nsys on the PATH" in run.stderr) == (2, True)
