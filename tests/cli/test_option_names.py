"""Messages name options as flags in the command, and as keywords in Python."""

from __future__ import annotations

import ast
import inspect
import logging
import re
from pathlib import Path

import pytest
from conftest import ROOT, CommandHere

from broadsheet import pipeline
from broadsheet.cluster import connect
from broadsheet.pipeline import BroadsheetError, OutputError, UsageError, classify
from broadsheet.pipeline.errors import FLAGS, in_python
from broadsheet.pipeline.evaluation.evaluate import evaluate_labels
from broadsheet.pipeline.options import TABLE
from broadsheet.pipeline.options.training import TRAIN
from broadsheet.pipeline.report.job import Progress

ERRORS = {"BroadsheetError", "UsageError", "ModelError", "SourceError", "InputChanged", "InputUnavailable"}
ERRORS |= {"OutputError", "OutputUnavailable"}
OTHER_PROGRAMS = {
    *("allocations", "clock-control", "constraint", "cpu-bind", "cpuctxsw", "csv", "dashboard-address"),
    *(
        "death-timeout",
        "export",
        "gpus-per-node",
        "host",
        "int8",
        "interface",
        "job-name",
        "kernel-name",
        "kernel-name-base",
    ),
    *(
        "long",
        "mem",
        "metrics",
        "nanny",
        "no-dashboard",
        "no-kill",
        "nodes",
        "nsys",
        "nthreads",
        "ntasks-per-node",
        "nworkers",
    ),
    *("open-mode", "output", "page", "parsable", "preload", "qos", "requeue", "sample", "signal", "time", "trace"),
}
"""Flags of Slurm, Dask, Nsight and zstd, and of commands that have no function in Python."""


def sources() -> list[Path]:
    """Return the source files, without those that print for the command."""
    found = [file for name in ("pipeline", "cluster") for file in (ROOT / name).rglob("*.py")]
    printing = {ROOT / "pipeline" / "report" / "terminal.py"}
    return [file for file in found if file.parent != ROOT / "pipeline" / "cli" and file not in printing]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("continue with --resume", "continue with resume=True"),
        ("--resume and --overwrite exclude each other", "resume=True and overwrite=True exclude each other"),
        ("(--strict stops here)", "(strict=True stops here)"),
        ("no column 'text' (--text-column names another)", "no column 'text' (text_column= names another)"),
        ("use --precision bf16 or --precision fp32.", 'use precision="bf16" or precision="fp32".'),
        ("use --device cpu, or fix that", 'use device="cpu", or fix that'),
        ("name it, e.g. --encoding latin-1", 'name it, e.g. encoding="latin-1"'),
        ("separated by ';': --delimiter ';'", "separated by ';': delimiter=';'"),
        (r"are text: --quote none, --escape '\'", r"""are text: quote="none", escape='\\'"""),
        ("add --top-k 3, --abstain 0.5. Or --columns 'a,b'", "add top_k=3, abstain=0.5. Or columns='a,b'"),
        ("use --cluster local", 'use cluster.connect("local")'),
        ("--protocol tcp with --tls, or UCX", 'protocol="tcp" with tls=True, or UCX'),
        ("/data/--resume/a.csv: a --resume.csv, x--strict", "/data/--resume/a.csv: a --resume.csv, x--strict"),
        ("--cpu-bind=none", "--cpu-bind=none"),
    ],
)
def test_flags_become_keywords_and_nothing_else_changes(message: str, expected: str) -> None:
    assert in_python(message) == expected
    assert in_python(expected) == expected


@pytest.mark.slow
def test_every_flag_in_a_message_is_known() -> None:
    """The test reads every string except docstrings and the help of options. Python could not translate an unknown
    flag, and would show it to its users.
    """
    options = [*TABLE.values(), *TRAIN.values()]
    texts = {text for option in options for text in (option.help, option.more)}
    strange = {}
    for file in sources():
        tree = ast.parse(file.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in texts
            if is_text and id(node) not in docstrings:
                flags = set(re.findall(r"(?<!\w)--([a-z][a-z0-9-]+)", node.value))
                if flags - FLAGS.keys() - OTHER_PROGRAMS - {"cluster", "stdin-format"}:
                    strange[f"{file}:{node.lineno}"] = flags
    assert strange == {}


def test_known_flags_are_keywords_of_public_functions() -> None:
    functions = (pipeline.select, classify, pipeline.verify, pipeline.calibrate, evaluate_labels, connect)
    found = {name: p.default for function in functions for name, p in inspect.signature(function).parameters.items()}
    found["learning_rate"] = 0.001  # an option of `train.Recipe`
    found |= dict.fromkeys(
        ("balanced", "fine_tune", "keep_network", "keep_teacher", "multi_label"), False
    )  # an option of `train.train`
    found["classes"] = None  # an option of `model.params_file.from_params`
    found["encoder"] = None  # an option of `train.train`
    for flag, is_switch in FLAGS.items():
        default = found[flag.replace("-", "_")]
        assert (default is False or flag == "tls") == is_switch, flag


def test_an_error_in_another_keeps_the_flags_it_was_written_with() -> None:
    """`str` gives Python's words, so an error made from another's `str` would show them in the command."""
    wrong = []
    for file in sources():
        for handler in (n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ExceptHandler)):
            named = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} if handler.type else set()
            if not named or not named <= ERRORS or handler.name is None:
                continue
            for node in ast.walk(handler):
                said = node.value if isinstance(node, ast.FormattedValue) else None
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and node.args:
                    said = node.args[0]
                if isinstance(said, ast.Name) and said.id == handler.name:
                    wrong.append(f"{file}:{node.lineno}")
    assert wrong == []


def test_python_is_told_keywords_and_the_command_flags(
    small_model_file: Path, tmp_path: Path, broadsheet_here: CommandHere, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    (out / "_entries").mkdir(parents=True)
    (out / "kept.txt").write_text("mine")
    (tmp_path / "in.csv").write_text("headline\nStocks fell\n")
    classified = (tmp_path / "in.csv", "--model", small_model_file, "-o")
    with pytest.raises(UsageError, match=r"or give resume=True, update=True or overwrite=True$") as found:
        classify(tmp_path / "in.csv", out, model=small_model_file)
    code, said = broadsheet_here("classify", *classified, out)
    assert (code, said) == (2, f"broadsheet: {found.value.message}\n")
    assert said.endswith("or give --resume, --update or --overwrite\n")
    with pytest.raises(UsageError, match=r"no column 'text' \(text_column= names another\)"):
        classify(tmp_path / "in.csv", model=small_model_file)
    assert "--text-column names another" in broadsheet_here("classify", *classified, tmp_path / "new")[1]
    with caplog.at_level(logging.WARNING, "pipeline"):
        Progress().warn("a chunk waits; stop it and continue with --resume")
    assert caplog.messages == ["a chunk waits; stop it and continue with resume=True"]


@pytest.mark.slow
def test_an_error_that_comes_from_a_worker_speaks_python_too(client, small_model, tmp_path: Path) -> None:
    with pytest.raises(BroadsheetError, match=r"memory: row 1: the text is null \(strict=True stops here\)$"):
        classify(["a", None], model=small_model, client=client, strict=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "_manifest.json").write_text('{"format": "broadsheet-output", "version": 3')
    with pytest.raises(OutputError, match=r"Start again with overwrite=True$"):
        classify(["a"], tmp_path / "out", model=small_model, client=client, resume=True)
