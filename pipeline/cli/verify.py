"""broadsheet verify: reread an output folder and check every row of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..report.console import print_json, say
from ..storage.names import as_url


def command(
    output: Annotated[Path, typer.Argument(metavar="OUT/", help="The output folder of a finished job, or its URL.")],
    against_input: Annotated[
        bool,
        typer.Option(
            "--input",
            help="Also compare with the input files: that they have not changed, and how many rows they have.",
        ),
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="With --input: of a job with --root.  [default: the current folder]"),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Of an s3:// URL and the like: its server, if not the provider's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the totals as JSON.")] = False,
) -> None:
    """Read everything in an output folder again and check it; exit code 1 and a message at the first damage."""
    import msgspec

    from ..output.verify import verify
    from ..report.remarks import unread_line
    from ..report.tally import balance

    totals = verify(output, input=against_input, root=root, endpoint=endpoint)
    if as_json:
        print_json(msgspec.to_builtins(totals))
    else:
        name = as_url(str(output)) or output
        say(f"{name}: whole. {totals.chunks:,} chunks; {totals.rows_read:,} rows {balance(totals)}")
        if totals.unread:
            say(f"Of the input, {unread_line(totals.unread)}")
