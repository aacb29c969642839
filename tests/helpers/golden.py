"""Makes tests/data/output-v4 and output-v5, which tests read to notice that a later build no longer reads older output.

Only `--update --changed` writes version 5. Run this script after an intended change to the layout within a version that
has not been released yet: python tests/helpers/golden.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from broadsheet.pipeline import classify

PLACE = Path(__file__).parent.with_name("data")
INPUT = """id,kind,text
1,Sports,The home team won the cup final after extra time.
2,Business,Oil prices fell as traders weighed new supply.
3,Sci/Tech
4,Sci/Tech,"A probe sent back its first images of the moon's far side, after a ""quiet"" landing."
5,World,Ministers met again to discuss the border.
"""


def make(version: int, **asked: bool) -> None:
    """Label the input in the working directory, and keep the output folder."""
    options = {"id_column": "id", "label_column": "kind", "where": "n_chars < 80", "chunk_size": 2, "root": "."}
    classify("in.csv", "out", device="cpu", **options, **asked)
    shutil.rmtree("out/_runs")
    shutil.rmtree(PLACE / f"output-v{version}", ignore_errors=True)
    shutil.copytree("out", PLACE / f"output-v{version}")


def main() -> None:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for version, rows, asked in ((4, 5, {}), (5, 4, {"update": True, "changed": True})):
                Path("in.csv").write_text("".join(INPUT.splitlines(keepends=True)[: rows + 1]))
                os.utime("in.csv", ns=(1_700_000_000_000_000_000,) * 2)
                make(version, **asked)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    main()
