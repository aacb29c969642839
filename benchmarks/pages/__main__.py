"""Refresh the figures in README.md and the pages of docs/ from the recorded results.

    python -m benchmarks.pages
    python -m benchmarks.pages --plots    # ladder.png and serving.png too

You edit the text of a page in place. A figure stands between two comments. The first comment says how to compute it, in
the syntax of Python's f-strings: in `<!--figure:{gpu.articles:,}-->262,144<!--end-->`, `gpu` is
benchmarks/results/gpu.json. A name without braces stands for an expression in pages.toml, which is in this folder. The
expressions may also call the functions of figures.py.

A table has no comments. pages.toml says on which page it is and how to compute it; the table is found by its head. To
add a table, write its head and one more line that begins with `|` into the page, and run this command.

Do not begin a line with a figure, since Markdown would end the paragraph there.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.pages import figures
from benchmarks.record import RESULTS, ROOT

MARKED = re.compile(r"(?<!\n)<!--figure:(.*?)-->.*?<!--end-->", re.DOTALL)
CONTENT = tomllib.loads(Path(__file__).with_name("pages.toml").read_text())


class Record(dict[str, Any]):
    """An object of a result, whose fields are also attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def read_results(folder: Path) -> dict[str, Record]:
    """Read all results, by the names of their files."""
    return {file.stem: json.loads(file.read_text(), object_hook=Record) for file in sorted(folder.glob("*.json"))}


def refreshed(page: str, text: str, results: dict[str, Record]) -> str:
    """Return the text of a page with figures and tables computed anew from the results.

    Parameters
    ----------
    page
        The page's path in the repository, such as `docs/accuracy.md`.
    text
        The content of the page.
    results
        All results, by the names of their files.

    Raises
    ------
    ValueError
        If the head of a table of this page is not on the page, or is there twice.

    """
    names = vars(figures) | results

    def made(match: re.Match[str]) -> str:
        what = match[1]
        return f"<!--figure:{what}-->{formatted(CONTENT['figures'].get(what, what), names)}<!--end-->"

    for table in CONTENT["table"]:
        if table["page"] == page:
            text = with_table(text, table, names)
    return MARKED.sub(made, text)


def formatted(text: str, names: dict[str, Any]) -> str:
    """Return a text in which each expression in braces is replaced by its value."""
    return str(eval(f'f"""{text}"""', names))


def with_table(text: str, table: dict[str, Any], names: dict[str, Any]) -> str:
    """Return the text of a page with one table of pages.toml computed anew."""
    head = list(table["columns"]) if "columns" in table else table["head"]
    parts = re.split(rf"(?m)^{re.escape(line_of(head))}\n(?:\|.*\n)*", text)
    if len(parts) != 2:
        found = len(parts) - 1
        raise ValueError(f"{table['page']} has {found} tables with this head, in place of one: {line_of(head)}")
    if "columns" in table:  # a row for each element of an expression
        cells = ", ".join(f'f"""{column}"""' for column in table["columns"].values())
        rows = eval(f"[[{cells}] for {table['rows']}]", names)
    else:
        rows = [[formatted(cell, names) for cell in row] for row in table["cells"]]
    lines = [line_of(head), "|" + "---|" * len(head), *map(line_of, rows)]
    return "".join([parts[0], *(f"{line}\n" for line in lines), parts[1]])


def line_of(cells: list[str]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cells)} |".replace("  |", " |")


def main() -> None:
    """Refresh all pages, and draw the plots if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of recorded results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages, beside README.md")
    parser.add_argument("--plots", action="store_true", help="draw the plots too (needs Matplotlib)")
    options = parser.parse_args()
    results = read_results(options.results)
    folder = options.docs.parent
    for file in (folder / "README.md", *sorted(options.docs.glob("*.md"))):
        page = file.relative_to(folder).as_posix()
        file.write_text(refreshed(page, file.read_text(), results))
    if options.plots:
        from benchmarks.pages import plots

        plots.ladder(results["ladder"], options.docs / "ladder.png")
        plots.serving(results["serve_cpu"], options.docs / "serving.png")
        plots.serving(results["serve_gpu"], options.docs / "serving_gpu.png")


if __name__ == "__main__":
    main()
