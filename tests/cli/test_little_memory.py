"""Commands that load a model with little memory, as on a laptop of 8 GB, where no larger allocation may be
asked for.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

GIB = 1 << 30
COMMAND = Path(sys.executable).with_name("broadsheet")
MODEL = ROOT / "broadsheet_weights" / "ag_news.safetensors"
ROWS = ROOT / "examples" / "articles.csv"
TEXTS = ("--text-column", "title")
LABELLED = (*TEXTS, "--label-column", "category")


def slow(*given: object, needs: str | None = None) -> Any:
    """Mark a case as slow, so that `make test` leaves it out. needs: a package without which the case is skipped."""
    absent = pytest.mark.skipif(needs is not None and find_spec(needs) is None, reason=f"{needs} is not installed")
    return pytest.param(*given, marks=[absent, pytest.mark.slow])


def started(*arguments: object, address_space: int) -> subprocess.Popen[str]:
    """Start the installed command. address_space: the bytes that each of its processes may map."""
    return subprocess.Popen(
        [COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space)),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "gib"),
    [
        (("inspect", MODEL), 2),
        (("classify", ROWS, "--model", MODEL, *TEXTS, "--device", "cpu", "-o", "-", "--format", "jsonl"), 2),
        slow(("classify", ROWS, "--model", MODEL, *TEXTS, "--device", "cpu", "-o", "out", "--dry-run"), 2),
        slow(("classify", ROWS, "--model", MODEL, *TEXTS, "--device", "cpu", "-o", "out", "--workers", 1), 6),
        slow(("evaluate", MODEL, ROWS, *LABELLED), 2),
        slow(("calibrate", MODEL, ROWS, *LABELLED, "-o", "calibrated.safetensors"), 2),
        slow(("calibrate", "--int8", MODEL, ROWS, *TEXTS, "-o", "quantised.safetensors"), 2),
        (("convert", MODEL, "params.bin"), 2),
        slow(("convert", MODEL, "model.onnx"), 2, needs="onnx"),
        slow(("profile", "--model", MODEL, "--device", "cpu", "--batch", 16), 2),
        slow(
            ("train", ROWS, *LABELLED, "--init", MODEL, "--epochs", 1, "--device", "cpu", "-o", "new.safetensors"),
            6,
            needs="torch",
        ),
    ],
    ids=lambda value: " ".join(map(str, value))[:60].replace("/", "_") if isinstance(value, tuple) else None,
)
def test_a_command_that_loads_a_model_needs_little_memory(
    arguments: tuple[object, ...], gib: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The limit is 2 GiB of addresses, or 6 GiB where Dask starts workers or PyTorch trains."""
    monkeypatch.chdir(tmp_path)
    process = started(*arguments, address_space=gib * GIB)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors


@pytest.mark.slow
def test_a_server_needs_little_memory() -> None:
    server = started(
        "serve", "--port", 0, "--log-format", "json", "--device", "cpu", "--model", MODEL, address_space=2 * GIB
    )
    try:
        assert server.stderr is not None
        lines = (json.loads(line) for line in server.stderr)
        url = next(line["url"] for line in lines if line["message"] == "listening")
        assert any(line["message"] == "ready" for line in lines)
        data = json.dumps({"texts": ["Oil prices fell as OPEC raised output."]}).encode()
        request = urllib.request.Request(f"{url}/v1/classify", data, {"content-type": "application/json"})
        assert json.load(urllib.request.urlopen(request, timeout=60))["results"][0]["label"] == "Business"
    finally:
        server.kill()
        server.communicate()
