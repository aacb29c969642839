"""The scale benchmark: its record, and a short job on engines that sleep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scale, scale_stubs


def test_a_part_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    scale.replace_part(path, "memory", {"chunks": 1})
    scale.replace_part(path, "small", {"chunks": 2})
    scale.replace_part(path, "memory", {"chunks": 3})
    assert json.loads(path.read_text()) == {"small": {"chunks": 2}, "memory": {"chunks": 3}}


@pytest.mark.slow
def test_sleeping_engines_are_fed() -> None:
    kept: list[int] = []
    found = scale_stubs.scheduler_part([4], [600_000], 1.0, 2, 2, lambda result: kept.append(len(result["runs"])))
    run = found["runs"][0]
    assert run["chunks"] == 8 == run["wanted_chunks_per_second"]
    assert 0 < run["busy"] <= 1
    assert kept == [1]
