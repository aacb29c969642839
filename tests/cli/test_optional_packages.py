"""The messages of a command if an optional package is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lz4.frame
import pytest
from conftest import ROOT

from broadsheet.pipeline.errors import install

ARTICLES = ROOT / "examples" / "articles.csv"

WITHOUT = """
import sys
missing = sys.argv.pop(1)
class Missing:
    def find_spec(self, name, *of):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from broadsheet.pipeline.cli import main
main()
"""


def without(package: str, *arguments: object) -> tuple[int, str]:
    """Run the command in a process that cannot import `package`. Return its exit code and its output."""
    command = [sys.executable, "-c", WITHOUT, package, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def columns(file: Path | str) -> list[object]:
    return ["classify", file, "--text-column", "title", "--text-column", "text"]


def test_a_bucket_without_obstore(tmp_path: Path) -> None:
    for arguments in (
        [*columns("s3://corpus/a.csv"), "-o", tmp_path / "a"],
        [*columns(ARTICLES), "-o", "s3://corpus/b"],
    ):
        code, said = without("obstore", *arguments)
        assert code == 2, said
        assert f"s3://corpus is in an object store, which needs obstore: {install('object-stores')}" in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_an_lz4_file_without_lz4(tmp_path: Path) -> None:
    file = tmp_path / "articles.csv.lz4"
    file.write_bytes(lz4.frame.compress(ARTICLES.read_bytes()))
    code, said = without("lz4", *columns(file), "-o", tmp_path / "out")
    assert code != 0
    assert f"lz4 is not installed: {install('lz4')}" in said
    assert "Traceback" not in said


def test_the_shipped_model_without_its_weights(tmp_path: Path) -> None:
    code, said = without("broadsheet_weights", *columns(ARTICLES), "-o", tmp_path / "out")
    assert code == 2, said
    assert "the weights of 'ag-news' are in the package broadsheet-weights, which is not installed" in said
    assert "Traceback" not in said
