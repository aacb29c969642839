"""broadsheet select and merge: rows of a finished job by their scores; all shares of a job as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import counted
from ..report.console import PlainConsole, facts_table, print_json, say
from ..storage.names import as_url
from .flags import Endpoint, Json, Overwrite, Quiet, Root, in_panel

if TYPE_CHECKING:
    from ..output.cut import Cut

_WHICH, _OUTPUT = "Which rows", "What is written"


def command(
    labels: Annotated[Path, typer.Argument(metavar="LABELS/", help="The output folder of a finished job, or its URL.")],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="OUT", help="A new folder, or a .parquet, .jsonl or .csv file."),
    ],
    top: Annotated[str | None, in_panel(_WHICH, "SHARE", "The share with the highest scores, such as 10%.")] = None,
    count: Annotated[int | None, in_panel(_WHICH, "N", "So many with the highest scores.")] = None,
    score: Annotated[str | None, in_panel(_WHICH, "TEST", "What the score must be, such as '>= 0.8'.")] = None,
    where: Annotated[
        str | None, in_panel(_WHICH, "EXPRESSION", "Only rows for which this is true, as in classify.", "--where")
    ] = None,
    by: Annotated[
        str | None, in_panel(_WHICH, "NAME", "Column of scores: score, or score_NAME of one class.", "--by")
    ] = None,
    per: Annotated[
        str | None, in_panel(_WHICH, "NAME", "Take --top or --count of each value of this column.", "--per")
    ] = None,
    columns: Annotated[
        list[str] | None, in_panel(_OUTPUT, "NAME", "Column to write; may be repeated. Default: all.", "--column")
    ] = None,
    with_input: Annotated[
        bool, in_panel(_OUTPUT, "", "Also every column of the input, which is read again.", "--input")
    ] = False,
    root: Root = None,
    endpoint: Endpoint = None,
    format_: Annotated[
        str | None, in_panel(_OUTPUT, "parquet|jsonl|csv", "Of the parts. Default: as the labels.", "--format")
    ] = None,
    partition_by: Annotated[
        list[str] | None, in_panel(_OUTPUT, "NAME", "A folder for each value of this column; may be repeated.")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Choose rows of a finished job by their scores: a threshold, or the best share overall or of each group."""
    from ..processes.child import spare_pandas

    spare_pandas()
    from ..output.select import select

    selected = select(
        labels,
        output,
        top=top,
        count=count,
        score=score,
        where=where,
        by=by,
        per=per,
        columns=columns,
        input=with_input,
        root=root,
        endpoint=endpoint,
        format=format_,
        partition_by=partition_by,
        overwrite=overwrite,
    )
    if as_json:
        cuts = [
            {"group": name, "rows": cut.rows, "chosen": cut.chosen, "score": cut.score}
            for name, cut in selected.cuts.items()
        ]
        print_json({"rows": selected.rows, "chosen": selected.chosen, "cuts": cuts})
    elif not quiet:
        told = f"{output}: {selected.chosen:,} of {counted(selected.rows, 'row')}"
        say(told if per is not None or not selected.cuts else f"{told}{_lowest(selected.cuts[''])}")
        if per is not None:
            lines = ((str(name), f"{c.chosen:,} of {c.rows:,}{_lowest(c)}") for name, c in selected.cuts.items())
            PlainConsole().print(facts_table(lines))


def merge(
    shares: Annotated[list[str], typer.Argument(metavar="OUT/ …", help="The output folders of all shares, or URLs.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="MERGED/", help="A new folder, or its URL.")],
    endpoint: Endpoint = None,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Also shares of processors or GPUs that differ.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was begun in MERGED.")] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make one folder of all shares of a job that ran with --shard: no row is copied on the same disk."""
    from ..processes.child import spare_pandas

    spare_pandas()
    import msgspec

    from ..output.merge import merge as join
    from ..report.tally import balance

    totals = join(shares, output, endpoint=endpoint, allow_mixed=allow_mixed, resume=resume, overwrite=overwrite)
    if as_json:
        print_json(msgspec.to_builtins(totals))
    elif not quiet:
        told = f"{counted(len(shares), 'share')}, {counted(totals.chunks, 'chunk')}"
        say(f"{as_url(str(output)) or output}: {told}; {counted(totals.rows_read, 'row')} {balance(totals)}")


def _lowest(cut: Cut) -> str:
    return "" if cut.score is None else f", scores from {cut.score:.6g}"
