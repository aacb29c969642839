"""What starts quickly imports little; `broadsheet` is the face of `pipeline`, also where a user's file hides that."""

from __future__ import annotations

import ast
import inspect
import os
import platform
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import distributed
import pytest
from conftest import ROOT
from threadpoolctl import threadpool_info

import broadsheet as face
import pipeline
from pipeline.options import Options

HEAVY = {
    "bokeh",
    "cupy",
    "dask",
    "datasets",
    "distributed",
    "duckdb",
    "huggingface_hub",
    "numpy",
    "onnx",
    "onnxruntime",
}
HEAVY |= {"pandas", "pyarrow", "sklearn", "torch"}
SHOW = "import sys; sys.argv = ['broadsheet', *{}]\ntry: main()\nexcept SystemExit: pass\n"


def python(code: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import pipeline, broadsheet; dir(broadsheet)",
        *(
            f"from broadsheet.__main__ import main; {SHOW.format(arguments)}"
            for arguments in (["--help"], ["--version"], ["classify", "--help"], ["nothing"])
        ),
    ],
)
def test_help_version_and_import_load_no_heavy_package(code: str) -> None:
    run = python(f"{code}\nprint('loaded:', sorted({HEAVY!r} & set(__import__('sys').modules)))")
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "loaded: []"), run.stdout + run.stderr


def test_the_version_comes_with_what_a_bug_report_needs() -> None:
    run = python(f"from broadsheet.__main__ import main; {SHOW.format(['--version'])}")
    first, *rest = run.stdout.splitlines()
    assert first == f"broadsheet {pipeline.__version__}"
    said = {line[:12].strip(): line[12:] for line in rest}
    assert platform.python_version() in said["Python"]
    assert f"distributed {distributed.__version__}" in said["packages"]
    assert "report" in said["extras"].split(", ")
    (blas,) = {library["version"] for library in threadpool_info() if "numpy" in library["filepath"]}
    assert blas in said["BLAS"]
    assert "GPU" in said


def test_the_shell_completes_options_without_heavy_packages() -> None:
    """As bash asks for it."""
    code = f"from broadsheet.__main__ import main; {SHOW.format([])}"
    code += f"\nprint('loaded:', sorted({HEAVY!r} & set(sys.modules)))"
    asked = {"_BROADSHEET_COMPLETE": "complete_bash", "COMP_WORDS": "broadsheet classify --text-c", "COMP_CWORD": "2"}
    run = python(code, **asked)
    assert run.stdout.splitlines() == ["--text-column", "loaded: []"], run.stdout + run.stderr


def test_the_face_has_the_names_of_the_package() -> None:
    assert face.__all__ == sorted([*pipeline.__all__, "__version__"])
    assert [name for name in pipeline.__all__ if getattr(face, name) is not getattr(pipeline, name)] == []
    assert face.__version__ == pipeline.__version__
    for_editors = next(
        node
        for node in ast.walk(ast.parse(Path(face.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "pipeline"
    )
    assert [alias.name for alias in for_editors.names] == face.__all__


@pytest.mark.parametrize("hidden", ["pipeline.py", "cluster/__init__.py"])
def test_a_file_that_hides_ours_is_named_in_one_line(hidden: str, tmp_path: Path) -> None:
    file = tmp_path / hidden
    file.parent.mkdir(exist_ok=True)
    file.write_text("raise SystemExit('the file of the user has run')\n")
    script = tmp_path / "script.py"
    script.write_text("import broadsheet\nbroadsheet.classify(['a'])\n")
    for arguments in (["script.py"], ["-m", "broadsheet", "--version"]):
        run = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        lines = run.stderr.strip().splitlines()
        package = file.relative_to(tmp_path).parts[0].removesuffix(".py")
        assert f"{file} hides Broadsheet's own package {package!r}: rename it" in lines[-1]
        assert run.returncode == 1
    assert len(lines) == 1  # of the command


def test_the_command_runs_beside_a_file_that_would_hide_ours(small_model_file: Path, tmp_path: Path) -> None:
    """The folder of a console script is that of the script, and its workers look for modules where it does. And a job
    whose dashboard nobody opens does without Bokeh.
    """
    (tmp_path / "cluster").mkdir()
    for name in ("pipeline.py", "cluster/__init__.py"):
        (tmp_path / name).write_text("raise SystemExit('the file of the user has run')\n")
    (tmp_path / "news.txt").write_text("Stocks fell on Monday\n")
    script = tmp_path / "bin" / "broadsheet"
    script.parent.mkdir()
    script.write_text(
        "import sys\nfrom broadsheet.__main__ import main\nif __name__ == '__main__':\n    try:\n        main()\n"
        "    finally:\n        assert 'distributed' in sys.modules and 'bokeh.models' not in sys.modules\n"
    )
    arguments = ["classify", "news.txt", "-o", "out", "--model", small_model_file, "--quiet", "--workers", "1"]
    run = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_classify_takes_every_option_by_name_as_an_editor_shows_it() -> None:
    takes = inspect.signature(pipeline.classify).parameters
    options = {field.name: field.default for field in fields(Options)}
    assert MISSING not in options.values()
    assert {name: takes[name].default for name in options} == options
    assert {takes[name].kind for name in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert [name for name in takes if name in options] == list(options)
    about = (pipeline.classify.__doc__ or "").partition("Parameters")[2].partition("Returns")[0]
    assert re.findall(r"^    (\w+) : ", about, re.MULTILINE) == list(takes)
