"""Refresh the figures in the pages of docs/, and in README.md, from the recorded results.

    python -m benchmarks.pages
    python -m benchmarks.pages --plots    # ladder.png and serving.png too

A page is edited as it is. A figure in it stands between two comments, of which the first says what it is, in the
syntax of Python's f-strings: `<!-- figure {gpu.articles:,} -->262,144<!-- end -->`, where `gpu` is
benchmarks/results/gpu.json. So does a table, a row for each element and a column for each line:

    <!-- table row in gpu.ours
    batch | {row.batch:,}
    articles/s | {row.articles_per_second:,.0f}
    -->

A figure begins no line, for Markdown would end the paragraph there. What else the braces may use is in figures.py.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.pages import figures
from benchmarks.record import RESULTS, ROOT

MARKED = re.compile(r"(?<!\n)<!-- (figure) (.*?) -->.*?<!-- end -->|<!-- (table) (.*?)\n-->.*?<!-- end -->", re.DOTALL)


class Record(dict[str, Any]):
    """An object of a result, its fields as attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def read_results(folder: Path) -> dict[str, Record]:
    """All results, by the names of their files."""
    return {file.stem: json.loads(file.read_text(), object_hook=Record) for file in sorted(folder.glob("*.json"))}


def refreshed(page: str, results: dict[str, Record]) -> str:
    """The page with the figures that the results give."""
    names = vars(figures) | results

    def made(match: re.Match[str]) -> str:
        kind, what = match[1] or match[3], match[2] or match[4]
        if kind == "figure":
            return f"<!-- figure {what} -->{formatted(what)}<!-- end -->"
        rows, *columns = what.split("\n")
        heads, cells = zip(*(column.split(" | ", 1) for column in columns), strict=True)
        lines = eval(f'[f"""{" | ".join(cells)}""" for {rows}]', names)
        return f"<!-- table {what}\n-->\n\n{table(formatted(' | '.join(heads)), lines)}\n\n<!-- end -->"

    def formatted(text: str) -> str:
        return str(eval(f'f"""{text}"""', names))

    return MARKED.sub(made, page)


def table(head: str, rows: list[str]) -> str:
    """A table in Markdown. `head` and each row are cells with " | " between them."""
    lines = [f"| {row} |".replace("  |", " |") for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head.split("|")), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of recorded results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of the pages, beside README.md")
    parser.add_argument("--plots", action="store_true", help="draw the plots too (needs Matplotlib)")
    options = parser.parse_args()
    results = read_results(options.results)
    for page in (options.docs.parent / "README.md", *sorted(options.docs.glob("*.md"))):
        page.write_text(refreshed(page.read_text(), results))
    if options.plots:
        from benchmarks.pages import plots

        plots.ladder(results["ladder"], options.docs / "ladder.png")
        plots.serving(results["serve_cpu"], options.docs / "serving.png")
        plots.serving(results["serve_gpu"], options.docs / "serving_gpu.png")


if __name__ == "__main__":
    main()
