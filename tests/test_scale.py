"""The scale benchmark: its page, its record, and a short job on engines that sleep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT

from benchmarks import scale, scale_page, scale_stubs


def test_the_page_is_made_from_the_record() -> None:
    result = scale.read(scale.RESULT)
    assert (ROOT / "docs" / "scaling.md").read_text() == scale_page.page(result)


def test_the_page_names_what_was_not_measured() -> None:
    assert "benchmarks.scale small large planning scheduler memory" in scale_page.page({})


def test_a_part_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "scale.json"
    scale.write(path, "memory", {"chunks": 1})
    scale.write(path, "small", {"chunks": 2})
    scale.write(path, "memory", {"chunks": 3})
    assert json.loads(path.read_text()) == {"small": {"chunks": 2}, "memory": {"chunks": 3}}


@pytest.mark.slow
def test_sleeping_engines_are_fed() -> None:
    kept: list[int] = []
    found = scale_stubs.scheduler_part([4], [600_000], 1.0, 2, 2, lambda result: kept.append(len(result["runs"])))
    run = found["runs"][0]
    assert run["chunks"] == 8 == run["wanted_chunks_per_second"]
    assert 0 < run["busy"] <= 1
    assert kept == [1]
