"""Data flows one way: each part of the project imports only what the design lets it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import ROOT

MAY_IMPORT = {
    "pipeline/errors.py": set(),
    "pipeline/threads.py": set(),
    "pipeline/telemetry": {"nvtx", "pipeline.telemetry"},
    "pipeline/model": {"numpy", "safetensors", "pipeline.model"},
    "pipeline/engine": {
        "numpy", "threadpoolctl", "cupy", "pipeline.engine", "pipeline.kernels", "pipeline.model", "pipeline.profiling",
        "pipeline.telemetry", "pipeline.threads",
    },
    "pipeline/kernels": {"numpy", "cupy", "cupyx", "cuda", "pipeline.kernels", "pipeline.model"},
    "pipeline/profiling": {
        "numpy", "cupy", "pipeline.engine", "pipeline.kernels", "pipeline.model", "pipeline.profiling",
        "pipeline.telemetry",
    },
    "pipeline/source": {
        "dask", "numpy", "pyarrow", "fsspec", "pipeline.source", "pipeline.telemetry", "pipeline.threads",
    },
    "pipeline/accuracy.py": {"numpy", "pipeline.source"},
    "pipeline/output": {"numpy", "pyarrow", "pipeline.engine.base", "pipeline.output", "pipeline.source"},
    "pipeline/tasks.py": {
        "numpy", "pyarrow", "pipeline.accuracy", "pipeline.engine", "pipeline.output", "pipeline.profiling",
        "pipeline.source", "pipeline.telemetry",
    },
    "pipeline/report": {
        "numpy", "pyarrow", "pandas", "jinja2", "matplotlib", "rich", "pipeline.accuracy", "pipeline.output",
        "pipeline.profiling", "pipeline.report", "pipeline.source", "pipeline.tasks", "pipeline.telemetry",
    },
    "pipeline/train": {
        "numpy", "pyarrow", "torch", "safetensors", "matplotlib", "pipeline.model", "pipeline.source",
        "pipeline.train",
    },
    "pipeline/evaluate.py": {"numpy", "pipeline.accuracy", "pipeline.engine", "pipeline.model", "pipeline.source"},
    "pipeline/graph.py": {"dask", "distributed", "pipeline.source", "pipeline.tasks"},
    "pipeline/options.py": {"pipeline.model", "pipeline.report", "pipeline.source"},
}  # fmt: skip


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports when it is run, standard library left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "pipeline" else {node.module}
    import sys

    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


@pytest.mark.parametrize("place", sorted(MAY_IMPORT))
def test_a_part_imports_only_what_it_may(place: str) -> None:
    path = ROOT / place
    allowed = MAY_IMPORT[place] | {"pipeline.errors"}
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for name in imports_of(file):
            assert any(name == a or name.startswith(f"{a}.") for a in allowed), f"{file.name} imports {name}"


def test_only_the_api_and_the_command_reach_for_the_cluster_and_only_lazily() -> None:
    for file in sorted((ROOT / "pipeline").rglob("*.py")):
        text = file.read_text()
        top = [n for n in ast.parse(text).body if isinstance(n, ast.ImportFrom | ast.Import)]
        assert not any((getattr(n, "module", None) or "").partition(".")[0] == "cluster" for n in top), file
        if "from cluster" in text or "import cluster" in text:
            assert file.name == "api.py" or file.parent.name == "cli", file


def test_torch_stays_out_of_the_package_but_for_training() -> None:
    for file in sorted((ROOT / "pipeline").rglob("*.py")) + sorted((ROOT / "cluster").rglob("*.py")):
        if "train" not in file.stem and "train" not in file.parent.name:
            assert not any(name.partition(".")[0] == "torch" for name in imports_of(file)), file
