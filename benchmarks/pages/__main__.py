"""Write the pages of docs/ that show measured figures, from the recorded results.

python -m benchmarks.pages
python -m benchmarks.pages --plots                             # ladder.png, scaling.png and serving.png too
python -m benchmarks.pages --results /tmp/new --docs /tmp/new  # from files elsewhere, as far as they are there
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.pages import (
    accuracy,
    decompression,
    ladder,
    performance,
    reading,
    reliability,
    scaling,
    serving,
    training_speed,
)
from benchmarks.record import RESULTS, ROOT

PAGES: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "performance.md": (performance.page, ("gpu", "cpu", "memory", "held_cpu", "held_gpu")),
    "ladder.md": (ladder.page, ("ladder",)),
    "scaling.md": (scaling.page, ("scale",)),
    "reading.md": (reading.page, ("readers",)),
    "decompression.md": (decompression.page, ("decompression",)),
    "accuracy.md": (accuracy.page, ("accuracy",)),
    "reliability.md": (reliability.page, ("chaos_local", "chaos_slurm")),
    "training_speed.md": (training_speed.page, ("training_cpu",)),
    "serving.md": (serving.page, ()),
}
"""What makes each page, and from which files."""

FURTHER = {
    "scaling.md": ("corpora_1", "corpora_1_of_2", "corpora_2", "object_store"),
    "training_speed.md": ("training",),
    "serving.md": ("serve_cpu", "serve_gpu"),
}
"""Files from which a page has a section each, where they are there."""


def pages(results: Path) -> dict[str, str]:
    """Each page by name, of those for which the folder holds all results; of two further ones, one at least."""
    found = {file.stem: json.loads(file.read_text()) for file in results.glob("*.json")}
    return {
        name: make(*map(found.get, (*of, *FURTHER.get(name, ()))))
        for name, (make, of) in PAGES.items()
        if found.keys() >= set(of) and (of or found.keys() & set(FURTHER[name]))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of recorded results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder to write to")
    parser.add_argument("--plots", action="store_true", help="draw the plots too (needs Matplotlib)")
    options = parser.parse_args()
    for name, text in pages(options.results).items():
        (options.docs / name).write_text(text)
    if options.plots:
        from benchmarks.pages import plots

        drawn = {"ladder": plots.ladder, "scale": plots.scaling, "serve_cpu": plots.serving, "serve_gpu": plots.serving}
        for name, draw in drawn.items():
            if (file := options.results / f"{name}.json").exists():
                draw(json.loads(file.read_text()), options.docs)


if __name__ == "__main__":
    main()
