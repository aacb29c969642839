"""The pages of benchmarks in docs/ are what `python -m benchmarks.pages` makes from the recorded results."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from benchmarks.pages import performance, scaling, serving
from benchmarks.pages.__main__ import pages
from benchmarks.record import RESULTS, about, parser, write


@pytest.mark.parametrize("name", pages(RESULTS))
def test_a_page_is_made_from_the_recorded_results(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == pages(RESULTS)[name]


def test_the_page_on_serving_has_its_text() -> None:
    """Also as long as nothing is recorded for it."""
    assert (ROOT / "docs" / "serving.md").read_text().startswith(serving.HEAD)


def test_a_page_without_its_results_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ladder.json").write_bytes((RESULTS / "ladder.json").read_bytes())
    assert list(pages(tmp_path)) == ["ladder.md"]


def test_the_page_on_scaling_names_what_was_not_measured() -> None:
    assert "benchmarks.scale small large planning scheduler memory" in scaling.page({})


def test_a_new_record_names_machine_and_commit_on_its_page(tmp_path: Path) -> None:
    options = parser("").parse_args(["--note", "a note", "--commit", "by hand"])
    names = ("gpu", "cpu", "memory", "held_cpu", "held_gpu")
    record = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in names}
    record["cpu"]["about"] = about(options)
    write(record["cpu"], tmp_path / "new" / "cpu.json")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["cpu.json"]
    text = performance.page(**record | {"cpu": json.loads((tmp_path / "new" / "cpu.json").read_text())})
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"commit {head.stdout.strip() or 'by hand'}, " in text
    assert "; a note." in text
