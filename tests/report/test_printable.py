"""Names and texts from any source: a terminal, a log and a page show them, and never obey them."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, CommandHere
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from broadsheet.pipeline.errors import printable, printable_lines
from broadsheet.pipeline.model.charcnn import Model

PURPLE, CLIPBOARD, LINK = "\x1b[35m", "\x1b]52;c;aGk=\x07", "\x1b]8;;http://x\x1b\\"
NOT_UTF8 = "\udcff"  # a byte of a path
CLASSES = ("[/b]", f"[red]x{CLIPBOARD}", "\u202e$x^$\r\n", f"<script>alert(1)</script>\x9b{PURPLE}")
TEXT, TRUTH = f"text[/b]{PURPLE}\u2066", f"$truth^[red]{LINK}"
RICH_CODES = re.compile(r"\x1b\[(?!35m)[\d;]*m|\r?\x1b\[2K|\x1b\[1A|\x1b\[\?25[hl]|\r(?=\n|\x1b\[1A)")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, broadsheet_here: CommandHere) -> CommandHere:
    """Run a command as on a terminal of 80 columns. Return its exit code, and all it prints without Rich's
    own codes.
    """
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "80"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)

    def run(*command: object) -> tuple[int, str]:
        code, shown = broadsheet_here(*command)
        shown = RICH_CODES.sub("", shown)
        assert [line for line in shown.split("\n") if not line.isprintable()] == []
        assert "Traceback" not in shown
        return code, shown

    return run


@pytest.fixture(scope="module")
def folder(small_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a folder of two CSV files in which every name is hostile. Two rows and the second file are bad."""
    folder = tmp_path_factory.mktemp("hostile")
    card = {"note": CLIPBOARD + NOT_UTF8, "[/b]": ["\u202e"], PURPLE: 1}
    replace(small_model, classes=CLASSES, card=card).save(folder / f"m{PURPLE}[b]{NOT_UTF8}.safetensors")
    (folder / "in").mkdir()
    quoted = [f'"{name}"' for name in CLASSES]
    rows = "".join(f'"{CLIPBOARD}{PURPLE}[/b] $x^ <script>{i}",{quoted[i % 4]}\n' for i in range(12))
    bad = f'{PURPLE},"{CLASSES[0]}",{PURPLE}\n'.encode() + b'caf\xe9,"[/b]"\n'
    (folder / "in" / f"a[red]{CLIPBOARD}.csv").write_bytes(f'"{TEXT}","{TRUTH}"\n{rows}'.encode() + bad)
    (folder / "in" / f"b{LINK.replace('/', '')}.csv").write_bytes(b'"te\x00\x1b[35mxt",b\nx,y\n')
    return folder


@pytest.mark.slow
def test_hostile_names_are_shown_by_every_command_and_obeyed_by_none(
    run: CommandHere, folder: Path, client: Client
) -> None:
    model, out, data = (
        folder / f"m{PURPLE}[b]{NOT_UTF8}.safetensors",
        folder / f"out{PURPLE}[red]\u202e",
        folder / "in",
    )
    text, truth = ("--text-column", TEXT), ("--label-column", TRUTH)
    scheduler_file = Path(client.security.tls_ca_file).parent.with_name("scheduler.json")  # beside its certificates
    scheduler_file.write_text(json.dumps({"address": client.scheduler.address}))
    on = ("--scheduler-file", scheduler_file, "--report", folder / "page.html")
    code, labelled = run("classify", data, "-o", out, "--model", model, *text, *truth, *on)
    assert code == 3, labelled
    assert "articles ━━" in labelled  # the bar shows that Rich takes this for a terminal
    assert f"a[red]{printable(CLIPBOARD)}.csv row 12: expected 2 fields, found 3" in labelled
    assert f"column '{printable(TEXT)}' is not UTF-8" in labelled
    assert r"te\x00\x1b[35mxt" in labelled
    assert printable(str(out)) in labelled
    whole = f"{printable(str(out))}: whole, as far as its input was read. 1 chunk; "
    whole += "14 rows read = 12 labelled + 2 quarantined\n"
    code, verified = run("verify", out)
    assert (code, verified.partition("Input: ")[0]) == (0, whole)
    assert rf"1 file was not read: {data}/b\x1b]8;;http:x\x1b\.csv" in verified

    evaluate = ("evaluate", model, data / f"a[[]red]{CLIPBOARD}.csv", "--label-column", TRUTH, *text)
    inspected, evaluated = run("inspect", model), run(*evaluate, "--plot", folder / "matrix.png")
    for code, shown in (inspected, evaluated, (0, labelled)):
        assert code == 0, shown
        for name in CLASSES:
            assert printable(name)[:20] in shown.replace("\n", ""), (name, shown)
    assert (folder / "matrix.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(run("inspect", model, "--json")[1])["classes"] == list(CLASSES)
    shown = run(*evaluate, "--json")[1]  # the output includes a line about rows that are not UTF-8
    found, _ = json.JSONDecoder().raw_decode(shown)
    assert {mistake["truth"] for mistake in found["mistakes"]} <= set(CLASSES)
    for expected, command in (
        (1, ("verify", f"none{PURPLE}")),
        (2, ("inspect", f"none{PURPLE}")),
        (2, ("classify", "in", "-o", "out", f"--{PURPLE}\u202e[/b]")),
        (2, ("submit", "in", "-o", "out", "--dry-run", "--site", f"none{PURPLE}")),
    ):
        code, shown = run(*command)
        assert code == expected, shown
        assert r"\x1b[35m" in shown
        assert "\u202e" not in shown

    page = (folder / "page.html").read_text()
    assert [line for line in page.split("\n") if not line.isprintable()] == []
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert r"[red]x\x1b]52;c;aGk=\x07" in page
    assert r"a[red]\x1b]52;c;aGk=\x07.csv" in page


@given(st.text(st.characters()))
def test_what_is_visible_stays_on_its_line_and_says_what_it_stands_for(text: str) -> None:
    shown = printable(text)
    assert printable(shown) == shown
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert printable_lines(text).count("\n") == text.rstrip("\n").count("\n")


def test_scripts_of_all_the_world_stay_as_they_are() -> None:
    for text in ("Zürich", "東京\u3000タワー", "می\u200cخواهم", "👩\u200d🚀 naïve\xa0€", r"C:\x"):
        assert printable(text) == text
    assert printable("\x1b\x9b\r\n\u202e\udcff") == r"\x1b\x9b\r\n\u202e\udcff"


PRINTS = {"pipeline/report/console.py", "cluster/client.py", "cluster/slurm/prepare.py"}
"""The files that print. The last prints lines that a shell evaluates."""


@pytest.mark.slow
def test_nothing_prints_but_the_console_that_makes_text_visible() -> None:
    problems = []
    for path in (p for name in ("pipeline", "cluster") for p in (ROOT / name).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rich":
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                names &= {"rich.print", "rich.console.Console", "rich.text.Text", "rich.markup.render"}
                problems += [f"{file} imports {name}" for name in names if file != "pipeline/report/console.py"]
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "TextColumn" and "markup=False" not in ast.unparse(node):
                    problems.append(f"{file} lets Rich read markup in a column of its progress bar")
                if re.fullmatch(r"print|(typer|click)\.s?echo|sys\.std(out|err)\.write(lines)?", called):
                    problems += [f"{file} calls {called}"] * (file not in PRINTS)
    assert problems == []
