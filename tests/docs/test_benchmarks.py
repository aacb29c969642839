"""Benchmarks without a GPU: the ladder's steps, the scale benchmark, and the check that the peers' networks
are ours.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT

from benchmarks import scale, scale_stubs
from benchmarks.ladder.switches import NOTHING, PRODUCT, SWITCHES, steps
from benchmarks.pages.__main__ import Record, read_results, refreshed
from benchmarks.record import RESULTS
from broadsheet.pipeline.kernels.compile import compile_kernel, resources
from broadsheet.pipeline.model.layers import layer_table


def result(broken: str) -> dict[str, Any]:
    """Return a result that looks measured. The step called `broken` failed."""
    found = []
    for step in steps("sm90"):
        record: dict[str, Any] = {"kind": step.kind, "name": step.name, "setting": asdict(step.setting)}
        record["parent"] = step.parent
        if step.predicted:
            unit = "factor" if step.kind == "alone" else "articles_per_second"
            record |= {f"predicted_{unit}": step.predicted.value, "reason": step.predicted.reason}
        if step.name == broken:
            record["error"] = "Error: a | b"
        elif step.name == "+ three streams":
            record["skipped"] = "there is one GPU here"
        else:
            record |= {"articles": 1000, "batch": 10, "articles_per_second": 5e5, "labels_unlike_product": 0}
        found.append(record)
    about = dict.fromkeys(("driver", "cuda", "cupy", "nvrtc", "python", "commit", "date"), "x")
    return {"about": {"gpu": "NVIDIA H200", "cores": 16, **about}, "repeats": 5, "wall_seconds": 9.0, "steps": found}


def test_everything_off_turned_on_step_by_step_is_the_product() -> None:
    at = NOTHING
    for switch in SWITCHES:
        assert switch.on(at) != at
        assert switch.off(PRODUCT) != PRODUCT
        at = switch.on(at)
    assert at == PRODUCT
    assert all(step.setting.generation != "sm90" for step in steps("sm80"))


def test_page_and_picture_of_a_run_with_a_step_that_failed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.pages import plots

    found = json.loads(json.dumps(result("+ fusion")), object_hook=Record)
    text = refreshed(
        "docs/performance.md",
        (ROOT / "docs" / "performance.md").read_text(),
        read_results(RESULTS) | {"ladder": found},
    )
    ladder = text.partition("\n## The ladder")[2].partition("\n## ")[0]
    assert "failed: Error: a / b" in ladder
    assert "there is one GPU here" in ladder
    rows = [line for line in ladder.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {5}
    plots.ladder(found, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").stat().st_size > 10_000


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_every_kernel_of_every_variant_compiles_clean(architecture: str) -> None:
    pytest.importorskip("cuda.core")
    pytest.importorskip("cupy")
    from benchmarks.ladder.network import needed

    wanted = set()
    for step in steps("sm90" if architecture == "sm_90" else "sm80"):
        wanted |= needed(step.setting, layer_table(70, 1014, 4), "text", architecture)
    for file, expression, target in sorted(wanted):
        report = resources(compile_kernel(file, expression, target).log)
        assert not report.spill_bytes, f"{file} {expression}"
        assert not report.stack_bytes, f"{file} {expression}"
        assert not report.warnings, f"{file} {expression}: {report.warnings}"


# The scale benchmark: its record, and a short job on engines that sleep.


def test_a_part_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    scale.replace_part(path, "memory", {"chunks": 1})
    scale.replace_part(path, "small", {"chunks": 2})
    scale.replace_part(path, "memory", {"chunks": 3})
    assert json.loads(path.read_text()) == {"small": {"chunks": 2}, "memory": {"chunks": 3}}


@pytest.mark.slow
def test_a_job_on_sleeping_engines_tells_its_memory(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(400), "text": ["Stocks fell."] * 400}), tmp_path / "in.parquet")
    result = scale_stubs.memory_part(tmp_path / "in.parquet", 100, 4, 2, 2)
    assert (result["rows"], result["chunks"], result["worker_processes"]) == (400, 4, 2)
    assert all(result["memory"][role]["peak_bytes"] > 0 for role in ("scheduler", "client", "worker"))
