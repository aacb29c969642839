"""The figures in docs/ are those of the recorded results, the files that docs/ names exist, and the site works in
headless Chromium.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from benchmarks.pages.__main__ import MARKED, read_results, refreshed, with_table
from benchmarks.record import RESULTS, about, parser, text_of, write

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "RELEASING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
OURS = ("pipeline", "cluster", "broadsheet", "benchmarks", "tests", "docs", "examples", "notebooks", "conda", ".ci")
OF_A_USER = {
    "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json", "modules.json", "params.bin.json",
    "request.json", "fine_tuned.json",
}  # fmt: skip
SUFFIX = r"\.(?:py|cuh?|c|md|sh|ya?ml|json|ipynb)"
PATHS = [p.relative_to(ROOT) for p in chain(ROOT.iterdir(), *((ROOT / name).rglob("*") for name in OURS))]
FOLDERS = {path.name for path in PATHS if (ROOT / path).is_dir()}
ENDS = {end for path in PATHS for end in accumulate(reversed(path.parts), lambda end, folder: f"{folder}/{end}")}
"""The paths of all files and folders, and all ends of these paths."""


def test_every_figure_and_table_is_what_the_results_give() -> None:
    results = read_results(RESULTS)
    for page in PAGES:
        text = page.read_text()
        fresh = refreshed(page.relative_to(ROOT).as_posix(), text, results)
        assert fresh == text, f"{page.name}: run python -m benchmarks.pages"


def test_results_have_a_line_for_each_element_of_a_field() -> None:
    """`write` writes them this way, so they are short and a diff shows which elements changed."""
    for file in RESULTS.glob("*.json"):
        assert file.read_text() == text_of(json.loads(file.read_text())) + "\n", file.name


def test_a_figure_begins_no_line_and_has_an_end() -> None:
    """At the beginning of a line, Markdown treats a comment as a paragraph of its own."""
    for page in PAGES:
        text = page.read_text()
        assert "\n<!--figure" not in text, page.name
        assert text.count("<!--") == 2 * len(MARKED.findall(text)), page.name


def test_the_first_screen_of_the_readme_has_no_comment() -> None:
    assert "<!--" not in "\n".join((ROOT / "README.md").read_text().splitlines()[:40])


def test_a_figure_without_a_result_is_an_error() -> None:
    with pytest.raises(NameError, match="unheard_of"):
        refreshed("a.md", "There are <!--figure:{unheard_of.rows}-->1<!--end--> rows.", read_results(RESULTS))


def test_a_table_is_computed_where_its_head_is_and_its_head_is_there_once() -> None:
    table = {"page": "a.md", "rows": "row in found", "columns": {"rows": "{row:,}", "twice": "{2 * row}"}}
    page = "Before.\n\n| rows | twice |\n|---|---|\n| 1 | 3 |\n\nAfter.\n"
    made = with_table(page, table, {"found": [1000, 7]})
    assert made == "Before.\n\n| rows | twice |\n|---|---|\n| 1,000 | 2000 |\n| 7 | 14 |\n\nAfter.\n"
    with pytest.raises(ValueError, match="0 tables with this head"):
        with_table("No table.", table, {"found": []})
    with pytest.raises(ValueError, match="2 tables with this head"):
        with_table(page + page, table, {"found": []})


def test_a_new_record_names_machine_and_commit_on_its_page(tmp_path: Path) -> None:
    options = parser("").parse_args(["--note", "a note", "--commit", "by hand"])
    cpu = json.loads((RESULTS / "cpu.json").read_text())
    write(cpu | {"about": about(options)}, tmp_path / "new" / "cpu.json")
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["cpu.json"]
    results = read_results(RESULTS) | read_results(tmp_path / "new")
    text = refreshed("docs/performance.md", (ROOT / "docs" / "performance.md").read_text(), results)
    assert "commit by hand, " in text
    assert "; a note<!--end-->." in text
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert about(parser("").parse_args([]))["commit"] == head.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    """`source/read.py` and `read.py` are any files whose paths end so. Names that begin with `_` are in an output
    folder.
    """
    text = page.read_text()
    named = re.findall(rf"(?<![\w/.-])(?:{'|'.join(OURS[:-1])})/[\w./-]+{SUFFIX}\b", text)
    named += re.findall(rf"`([\w.][\w./-]*{SUFFIX}|[\w.][\w./-]*/)`", re.sub(r"(?ms)^```.*?^```", "", text))
    absent = [path for path in named if path not in OF_A_USER and is_of_ours(path) and path.rstrip("/") not in ENDS]
    assert absent == []


def is_of_ours(path: str) -> bool:
    first, slash, _ = path.partition("/")
    return not first.startswith("_") and (not slash or first in FOLDERS)


def test_the_names_that_pages_examples_and_notebooks_import_are_there() -> None:
    texts = [page.read_text() for page in (*PAGES, *(ROOT / "examples").glob("*.py"))]
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        texts += ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"]]
    imported = re.findall(r"from (broadsheet[.\w]*) import ([\w, ]+)", "\n".join(texts))
    absent = [
        (module, name) for module, names in imported for name in names.split(",") if not named(module, name.strip())
    ]
    assert not absent


def named(module: str, name: str) -> bool:
    try:
        return hasattr(import_module(module), name) or import_module(f"{module}.{name}") is not None
    except ModuleNotFoundError as error:
        return not str(error.name).startswith("broadsheet")  # from a package that is not installed


# The documentation as a site: in headless Chromium, opened as files.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the documentation's tools are not installed (pip install '.[docs]')")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(command, cwd=ROOT, check=True, env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.mark.slow
def test_each_page_opens_as_a_file_and_asks_no_other_host(site: Path, chromium: Any) -> None:
    """The test starts at the first page, and follows the links that a reader sees. Each leads to a file."""
    asked: set[str] = set()
    seen, waiting = set[str](), [(site / "index.html").as_uri()]
    page = chromium.new_page()
    page.on("request", lambda request: asked.add(request.url.partition("?")[0]))
    while waiting:
        address = waiting.pop()
        seen.add(address)
        page.goto(address)
        links: list[Any] = page.eval_on_selector_all("a[href]", "found => found.map(a => a.href.split('#')[0])")
        ours = {link for link in links if link.startswith("file:")}
        waiting += [link for link in ours if link.endswith(".html") and link not in (*seen, *waiting)]
        assert [link for link in ours if not Path(link.removeprefix("file://")).is_file()] == []
    assert len(seen) == len(list((ROOT / "docs").glob("*.md")))
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
