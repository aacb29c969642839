"""The command `next`, which chooses the rows to label next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UsageError, install
from ..options import SCORE
from ..report.console import say
from ..storage.disk import refuse_outputs
from .flags import OneModel, Overwrite, Texts, in_panel, keywords, with_options
from .tables import write_rows

_LABEL = "Column with labels; rows that have a label are left out."
_ID = "Column that identifies a row, to copy to FILE.csv."
_DECIDED = "File of `review` with decisions; rows in it are left out."


@with_options(SCORE)
def command(
    model: OneModel,
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="Texts: files, folders, globs or URLs.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.csv", help="The file to write.")],
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Number of rows to choose.")] = 100,
    text_column: Texts = None,
    label_column: Annotated[str | None, in_panel("Input", "NAME", _LABEL)] = None,
    id_column: Annotated[str | None, in_panel("Input", "NAME", _ID)] = None,
    corrections: Annotated[Path | None, in_panel("Input", "FILE.csv", _DECIDED)] = None,
    overwrite: Overwrite = False,
    **flags: Any,
) -> None:
    """Choose the rows whose labels would help the model most.

    The model is unsure of these rows, and they are typical of others. Give their labels with `broadsheet review
    FILE.csv`, or in a spreadsheet in the column `decision`. Then train again, with --corrections FILE.csv.
    """
    try:
        import scipy  # noqa: F401 - the words of texts are in its sparse arrays

        from ..curation.next_rows import next_rows
    except ModuleNotFoundError as error:
        raise UsageError(f"choosing rows needs SciPy ({error}): {install('train')}") from error
    from ..source.inputs import Paths, local_paths

    read = [*data, *([str(corrections)] if corrections else [])]
    refuse_outputs({"-o": output}, overwrite, lambda: [model, *local_paths(Paths(read))])
    options = {"text_column": text_column or (), "label_column": label_column, **keywords(flags, SCORE)}
    options |= {"id_column": id_column, "count": count, "decided": corrections}
    found = next_rows(model, Paths(data), **options)
    write_rows(output, found)
    say(f"{output}: {found.num_rows:,} rows to label, the most helpful first")
