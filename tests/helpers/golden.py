"""Makes tests/data/output-v4, the folder by which tests notice that a later build no longer reads what an earlier one
wrote. After an intended change of the layout, within a version that was not released yet:
python tests/helpers/golden.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from broadsheet.pipeline import classify

PLACE = Path(__file__).parent.with_name("data") / "output-v4"
INPUT = """id,kind,text
1,Sports,The home team won the cup final after extra time.
2,Business,Oil prices fell as traders weighed new supply.
3,Sci/Tech
4,Sci/Tech,"A probe sent back its first images of the moon's far side, after a ""quiet"" landing."
5,World,Ministers met again to discuss the border.
"""


def make() -> None:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("in.csv").write_text(INPUT)
            os.utime("in.csv", ns=(1_700_000_000_000_000_000,) * 2)
            options = {"id_column": "id", "label_column": "kind", "where": "n_chars < 80", "chunk_size": 2, "root": "."}
            classify("in.csv", "out", device="cpu", **options)
            shutil.rmtree("out/_runs")
            shutil.rmtree(PLACE, ignore_errors=True)
            shutil.copytree("out", PLACE)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    make()
