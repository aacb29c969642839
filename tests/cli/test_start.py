"""What starts quickly imports little. `broadsheet` exposes `pipeline`, even where a user's file of that name
hides it.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import distributed
import pytest
import typer
from conftest import ROOT, Command, CommandHere
from threadpoolctl import threadpool_info
from typer.testing import CliRunner

import broadsheet as face
from broadsheet import pipeline
from broadsheet.pipeline.cli.commands import application
from broadsheet.pipeline.errors import FLAGS, in_python
from broadsheet.pipeline.labelling.windows import SCORES
from broadsheet.pipeline.options import PANELS, TABLE, EngineKeywords, LabelKeywords, Options
from broadsheet.pipeline.output import sidecars
from broadsheet.pipeline.output.layout import PART_FORMAT_NAMES
from broadsheet.pipeline.output.record import Settings

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
HEAVY |= {"pandas", "pyarrow", "pydantic", "sklearn", "torch"}
SHOW = "import sys; sys.argv = ['broadsheet', *{}]\ntry: main()\nexcept SystemExit: pass\n"


def python(code: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import broadsheet; dir(broadsheet)",
        *(
            f"from broadsheet.__main__ import main; {SHOW.format(arguments)}"
            for arguments in (["--help"], ["--version"], ["classify", "--help"], ["nothing"])
        ),
    ],
)
def test_help_version_and_import_load_no_heavy_package(code: str) -> None:
    run = python(f"{code}\nprint('loaded:', sorted({HEAVY!r} & set(__import__('sys').modules)))")
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "loaded: []"), run.stdout + run.stderr


def test_a_worker_of_the_command_looks_seldom_for_garbage_from_the_beginning() -> None:
    """A worker process imports the command's module before all others."""
    loaded = f"sorted({HEAVY | {'typer'}!r} & set(sys.modules))"
    code = f"import gc, sys, broadsheet.__main__; print(gc.get_threshold()[0], {loaded})"
    run = python(code, cwd=ROOT)
    assert (run.returncode, run.stdout) == (0, "50000 []\n"), run.stderr


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


def test_an_extra_is_named_only_where_all_that_it_needs_is_there(tmp_path: Path) -> None:
    """An extra that includes another one, such as `sklearn`, counts as installed only together with it."""
    about = tmp_path / "scikit_learn-0.1.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: scikit-learn\nVersion: 0.1\n")
    code = f"from broadsheet.__main__ import main; {SHOW.format(['--version'])}"
    run = python(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    extras = run.stdout.splitlines()[-1][12:].split(", ")
    assert "report" in extras, run.stdout
    assert not {"sklearn", "train", "train-network", "test-all"} & {*extras}


def test_an_argument_that_is_none_is_named_with_the_one_that_was_meant() -> None:
    for call, message in (
        (lambda: face.label(["a"], modle="x"), r"label\(\) has no argument 'modle'; did you mean 'model'\?"),
        (lambda: face.classify("a", "b", tex_column="x"), "classify.+'tex_column'; did you mean 'text_column'"),
        (lambda: face.calibrate("a", "b", label_column="c", encodng="x"), "calibrate.+'encodng'; did you mean"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


def test_the_shell_completes_options_without_heavy_packages() -> None:
    """The test asks for completions as bash does."""
    code = f"from broadsheet.__main__ import main; {SHOW.format([])}"
    code += f"\nprint('loaded:', sorted({HEAVY!r} & set(sys.modules)))"
    asked = {"_BROADSHEET_COMPLETE": "complete_bash", "COMP_WORDS": "broadsheet classify --text-c", "COMP_CWORD": "2"}
    run = python(code, **asked)
    assert run.stdout.splitlines() == ["--text-column", "loaded: []"], run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["duckdb", "sklearn"])
def test_what_is_for_a_tool_is_imported_by_name_and_by_attribute(tool: str) -> None:
    pytest.importorskip("torch" if tool == "sklearn" else tool)
    run = python(f"import broadsheet; one = broadsheet.{tool}; import broadsheet.{tool} as two; print(one is two)")
    assert run.stdout == "True\n", run.stderr


@pytest.mark.slow
def test_the_face_has_the_names_of_the_package() -> None:
    pytest.importorskip("torch")
    others = [name for name in face.__all__ if getattr(face, name) != getattr(pipeline, name)]
    assert (others, face.train) == (["train"], pipeline.train.train)
    assert set(face.__all__) >= {"__version__", "classify", "label", "load"}
    nodes = [n for n in ast.walk(ast.parse(inspect.getsource(pipeline))) if isinstance(n, ast.ImportFrom) and n.level]
    for_type_checkers = {name.name: node.module for node in nodes if node.module for name in node.names}
    assert for_type_checkers == pipeline._MODULES


@pytest.mark.slow
@pytest.mark.parametrize("how", ["console script", "python -m", "import"])
def test_files_of_the_users_that_bear_our_folders_names_change_nothing(
    small_model_file: Path, tmp_path: Path, how: str
) -> None:
    """A `pipeline.py` or a folder `cluster` of the user's changes nothing in the process or in its workers.

    A job whose dashboard nobody opens does not import Bokeh. The command's workers are forks of a process that has
    imported what they need, with the environment in which they start.
    """
    (tmp_path / "cluster").mkdir()
    for name in ("pipeline.py", "cluster/__init__.py"):
        (tmp_path / name).write_text("raise SystemExit('the file of the user has run')\n")
    (tmp_path / "news.txt").write_text("Stocks fell on Monday\n")
    tell = "import json, os, psutil, sys\ndef dask_setup(_):\n    json.dump({told}, open({file!r}, 'w'))\n"
    told = "[psutil.Process(os.getppid()).cmdline(), os.environ['MALLOC_ARENA_MAX'], 'pandas' in sys.modules]"
    (tmp_path / "tell.py").write_text(tell.format(told=told, file=str(tmp_path / "told.json")))
    no_bokeh = "assert 'distributed' in sys.modules and 'bokeh.models' not in sys.modules\n"
    script = tmp_path / ("bin/broadsheet" if how == "console script" else "script.py")
    script.parent.mkdir(exist_ok=True)
    if how == "import":
        options = f"model={str(small_model_file)!r}, workers=1, progress=False"
        call = f"broadsheet.classify('news.txt', 'out', {options})"
        script.write_text(f"import sys\nimport broadsheet\nif __name__ == '__main__':\n    {call}\n    {no_bokeh}")
    else:
        script.write_text(
            "import sys\nfrom broadsheet.__main__ import main\nif __name__ == '__main__':\n    try:\n        main()\n"
            f"    finally:\n        {no_bokeh}"
        )
    arguments = ["classify", "news.txt", "-o", "out", "--model", small_model_file, "--quiet", "--workers", "1"]
    run = subprocess.run(
        [
            sys.executable,
            *{"console script": [script, *arguments], "import": [script]}.get(how, ["-m", "broadsheet", *arguments]),
        ],
        cwd=tmp_path,
        env={
            # The environment of a shell, not of pytest.
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "PYTHONPATH": str(ROOT),
            "DASK_DISTRIBUTED__WORKER__PRELOAD": str(tmp_path / "tell.py"),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert (tmp_path / "out" / "_SUCCESS").is_file()
    parent, arenas, has_pandas = json.loads((tmp_path / "told.json").read_text())
    assert ("forkserver" in " ".join(parent), arenas, has_pandas) == (how != "import", "1", False)


WITHOUT_EXTRAS = """
import sys
from importlib.machinery import PathFinder
class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("bokeh", "duckdb", "pandas") else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Others
"""
"""Code for a process that finds none of their packages."""


@pytest.mark.slow
def test_a_damaged_module_of_the_readers_keeps_no_job_from_starting(
    broadsheet: Command, small_model_file: Path, tmp_path: Path
) -> None:
    """The process whose forks are workers imports the module, and would end, and then Dask would wait for ever. An
    example is bytecode that a full disk has cut off.
    """
    (tmp_path / "news.txt").write_text("Stocks fell on Monday\n")
    bytecode = tmp_path / "bytecode"
    arguments = ["classify", tmp_path / "news.txt", "-o", tmp_path / "out", "--model", small_model_file, "--overwrite"]
    env = {"PYTHONPYCACHEPREFIX": str(bytecode)}
    assert broadsheet(*arguments, "--workers", 1, env=env).returncode == 0
    (module,) = bytecode.rglob("reader_process.*.pyc")
    module.write_bytes(module.read_bytes()[:1000])
    run = broadsheet(*arguments, "--workers", 1, env=env)
    assert (run.returncode, "forkserver" in run.stderr) == (0, False), run.stderr


@pytest.mark.slow
def test_a_job_does_without_the_packages_of_extras(broadsheet: Command, small_model_file: Path, tmp_path: Path) -> None:
    """No job needs Bokeh, DuckDB or pandas unless you ask for what they do. The message then names the extra."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
    (tmp_path / "news.txt").write_text("Stocks fell on Monday\nRain in Paris\n")
    out, env = tmp_path / "out", {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    run = broadsheet("classify", tmp_path / "news.txt", "-o", out, "--model", small_model_file, env=env)
    assert run.returncode == 0, run.stderr
    assert broadsheet("select", out, "-o", tmp_path / "all", "--where", "score > 0", env=env).returncode == 0
    for arguments in (("select", out, "-o", tmp_path / "best", "--top", "50%"), ("inspect", out, "--per", "label")):
        run = broadsheet(*arguments, env=env)
        assert (run.returncode, "pip install 'duckdb>=" in run.stderr) == (2, True), run.stderr


def test_classify_takes_every_option_by_name_as_an_editor_shows_it() -> None:
    takes = inspect.signature(pipeline.classify).parameters
    options = {field.name: field.default for field in fields(Options)}
    assert MISSING not in options.values()
    assert {name: takes[name].default for name in options} == options
    assert {takes[name].kind for name in options} == {inspect.Parameter.KEYWORD_ONLY}
    assert [name for name in takes if name in options] == list(options)
    about = (pipeline.classify.__doc__ or "").partition("Parameters")[2].partition("Returns")[0]
    assert re.findall(r"^(\w+) : ", about, re.MULTILINE) == list(takes)


def commands() -> dict[str, Any]:
    return typer.main.get_command(application()).commands  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_option_is_one_entry_of_the_table() -> None:
    """The rest follows from the entry: keywords, flags and their help, the name in messages, and the record's
    content.
    """
    for name, option in TABLE.items():
        flag = f"--{name.replace('_', '-')}"
        assert getattr(Options(), name) == option.default
        for function in (pipeline.classify, pipeline.dry_run):
            assert inspect.signature(function).parameters[name].default == option.default
            assert re.search(rf"^{name} : \w", inspect.getdoc(function) or "", re.MULTILINE)
        (param,) = (one for one in commands()["classify"].params if flag in one.opts)
        assert param.help == option.line != ""
        assert param.is_flag == FLAGS[flag[2:]] == (option.default is False)
        expected = f"{name}=True" if param.is_flag else f"{name}="
        assert in_python(f"see {flag}") == f"see {expected}"
    for function, keywords in ((pipeline.label, LabelKeywords), (face.duckdb.register, EngineKeywords)):
        assert set(inspect.signature(function).parameters) >= set(keywords.__annotations__)
    called = {
        "text_column": "text_columns",
        "label_column": "truth_column",
        "id_column": "kept_columns",
        "keep": "kept_columns",
    }
    called |= dict.fromkeys(("overlap", "window_score"), "windows")
    recorded = {called.get(name, name) for name, option in TABLE.items() if option.recorded}
    # The models imply two of these, and one belongs to `select`.
    assert recorded == set(Settings.__struct_fields__) - {"models", "multi_label", "chosen"}


def test_choices_are_those_of_the_rooms_that_use_them() -> None:
    assert set(TABLE["format"].choices) == {*PART_FORMAT_NAMES, *sidecars.SIDECAR_FORMATS}
    assert TABLE["window_score"].choices == SCORES


TERMINAL = {"COLUMNS": "80", "TERM": "dumb"}


def test_the_help_shows_what_a_first_month_needs_and_says_how_to_see_the_rest() -> None:
    app = application()
    short, whole = (CliRunner().invoke(app, ["classify", how], env=TERMINAL).output for how in ("--help", "--help-all"))
    seldom = {"--kernels", "--nsys", "--profile", "--hash", "--truth", "--allow-mixed", "--window-score", "--escape"}
    often = {"--model", "--text-column", "--keep", "--format", "--where", "--resume", "--delimiter", "--workers"}
    flags = [set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", told.partition("Arguments")[2])) for told in (short, whole)]
    assert (seldom & flags[0], often - flags[0], (seldom | often) - flags[1]) == (set(), set(), set())
    assert f"--help-all shows {len(flags[1] - flags[0] - {'--no-tls'})} more options." in " ".join(short.split())
    assert "more options" not in whole
    first = CliRunner().invoke(app, ["--help"], env=TERMINAL).output
    groups = [line.strip("╭╮─ ") for line in first.splitlines() if line.startswith("╭")]
    assert groups == ["Options", "Label", "Train", "Operate"]


def test_names_of_earlier_versions_work_and_are_told_once(
    broadsheet_here: CommandHere, small_model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("text,kind\n" + "".join(f"some words {i},class {i % 4}\n" for i in range(20)))
    classify = ("classify", "in.csv", "--model", small_model_file, "-o", "out")
    for arguments, told_of in (
        ((*classify, "--truth-column=kind"), "--truth-column is called --label-column now"),
        (("select", "out", "-o", "a.csv", "--column", "label"), "--column is called --keep now"),
        (("select", "out", "-o", "b.csv", "--input"), "--input is called --keep-all now"),
        (("quantise", small_model_file, "in.csv", "-o", "m.safetensors"), "quantise is called calibrate --int8 now"),
        (("export", ROOT / "broadsheet_weights/ag_news.safetensors", "m.bin"), "export is called convert now"),
    ):
        code, told = broadsheet_here(*arguments)
        assert (code, told.count(f"broadsheet: {told_of}\n")) == (0, 1), told
    assert Path("a.csv").read_text().splitlines()[0] == '"label"'
    assert "kind" in Path("b.csv").read_text().splitlines()[0]
    with pytest.warns(FutureWarning, match="truth_column= is called label_column= now"):
        report = face.classify("in.csv", model=str(small_model_file), truth_column="kind")
    assert report.confusion is not None
    with pytest.warns(FutureWarning, match="columns= is called keep= now"):
        face.select("out", "c.csv", columns=["label"])
    assert Path("c.csv").read_text() == Path("a.csv").read_text()


@pytest.mark.parametrize("name", ["", *commands()])
def test_the_help_is_readable_at_80_columns(name: str) -> None:
    asked = [name, "--help-all"] if name else ["--help"]
    told = CliRunner().invoke(application(), asked, env=TERMINAL)
    assert told.exit_code == 0
    lines = told.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert "<bool>" not in told.output
    command = commands()[name] if name else typer.main.get_command(application())
    for param in command.params:
        for flag in (*param.opts, *param.secondary_opts):
            assert flag[:1] != "-" or any(re.match(rf"│[ *]+.*(?<![\w-]){flag}(?![\w-])", line) for line in lines), flag
    if name == "classify":
        panels = [line.strip("╭╮─ ") for line in lines if line.startswith("╭")]
        assert panels == ["Arguments", "Options", *PANELS]
