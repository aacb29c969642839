"""The commands `select`, which chooses rows of a finished job by their scores, and `merge`, which joins its shares."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError, counted
from ..report.console import PlainConsole, facts_table, print_json, say
from ..storage.names import as_url
from .flags import Endpoint, Json, Overwrite, Quiet, Root, in_panel

if TYPE_CHECKING:
    from ..output.cut import Cut

_MERGED = "A new folder for the rows of all shares, or its URL."
_COMPACT = "Join small parts; without -o, change the one folder in place."
_PART_ROWS = "Join small parts, so that each has about N rows.  [default: 1,000,000 with --compact]"
_MIXED = "Also join shares that different processors have computed."
_OUT = "A new folder, or a .parquet, .jsonl or .csv file."
_KEEP_ALL = "Also write every column of the input files, which are read again."
_FORMAT = "Format of the output.  [default: that of LABELS/]"
_BY_VALUE = "Write a folder for each value of this column; may be repeated."
_which, _what = partial(in_panel, "Which rows"), partial(in_panel, "What is written")


def command(
    labels: Annotated[Path, typer.Argument(metavar="LABELS/", help="The output folder of a finished job, or its URL.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help=_OUT)],
    top: Annotated[str | None, _which("SHARE", "The share with the highest scores, such as 10%.")] = None,
    count: Annotated[int | None, _which("N", "The N rows with the highest scores.")] = None,
    score: Annotated[str | None, _which("TEST", "Only rows whose score passes this test, such as '>= 0.8'.")] = None,
    where: Annotated[str | None, _which("EXPRESSION", "Only rows for which this is true, as for `classify`.")] = None,
    by: Annotated[str | None, _which("NAME", "Column of scores: score, or score_NAME for one class.")] = None,
    per: Annotated[str | None, _which("NAME", "Apply --top or --count to each value of this column.")] = None,
    keep: Annotated[list[str] | None, _what("NAME", "Column to write; may be repeated.  [default: all]")] = None,
    keep_all: Annotated[bool, _what("", _KEEP_ALL, "--keep-all")] = False,
    root: Root = None,
    endpoint: Endpoint = None,
    format_: Annotated[str | None, _what("parquet|jsonl|csv", _FORMAT, "--format")] = None,
    partition_by: Annotated[list[str] | None, _what("NAME", _BY_VALUE)] = None,
    part_rows: Annotated[int | None, _what("N", "Join small parts, so that each has about N rows.")] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Choose rows of a finished job by their scores: above a threshold, or the best share of all or of each group."""
    from ..processes.child import spare_pandas

    spare_pandas()
    from ..output.select import select

    which = {"top": top, "count": count, "score": score, "where": where, "by": by, "per": per, "root": root}
    what: dict[str, Any] = {"keep": keep, "keep_all": keep_all, "format": format_, "partition_by": partition_by}
    what["part_rows"] = part_rows
    selected = select(labels, output, **which, **what, endpoint=endpoint, overwrite=overwrite)  # type: ignore[arg-type]
    if as_json:
        cuts = [{"group": name, **vars(cut)} for name, cut in selected.cuts.items()]
        print_json({"rows": selected.rows, "chosen": selected.chosen, "cuts": cuts})
    elif not quiet:
        told = f"{output}: {selected.chosen:,} of {counted(selected.rows, 'row')}"
        say(told if per is not None or not selected.cuts else f"{told}{_lowest(selected.cuts[''])}")
        if per is not None:
            lines = ((str(name), f"{c.chosen:,} of {c.rows:,}{_lowest(c)}") for name, c in selected.cuts.items())
            PlainConsole().print(facts_table(lines))


def merge(
    shares: Annotated[list[str], typer.Argument(metavar="OUT/ …", help="The output folders of all shares, or URLs.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="MERGED/", help=_MERGED)] = None,
    endpoint: Endpoint = None,
    compact: Annotated[bool, typer.Option("--compact", help=_COMPACT)] = False,
    part_rows: Annotated[int | None, typer.Option("--part-rows", metavar="N", min=1, help=_PART_ROWS)] = None,
    allow_mixed: Annotated[bool, typer.Option("--allow-mixed", help=_MIXED)] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted merge into MERGED/.")] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Join the shares of a job that ran with --shard, in one folder. With --compact, join the small parts of a folder.

    If all folders are on one disk, the command copies no rows.
    """
    from ..processes.child import spare_pandas

    spare_pandas()
    import msgspec

    from ..output.compact import PART_ROWS
    from ..output.compact import compact as join_parts
    from ..output.merge import merge as join
    from ..report.summary import compacted_line
    from ..report.tally import balance

    # Find the folder to write.
    compact = compact or part_rows is not None
    place, told = _place_of(shares, output, compact, resume or overwrite), {}

    # Join the shares, then the small parts.
    if output is not None:
        options = {"allow_mixed": allow_mixed, "resume": resume, "overwrite": overwrite}
        totals = join(shares, output, endpoint=endpoint, **options)
        told = msgspec.to_builtins(totals)
        if not (as_json or quiet):
            said = f"{counted(len(shares), 'share')}, {counted(totals.chunks, 'chunk')}"
            say(f"{place}: {said}; {counted(totals.rows_read, 'row')} {balance(totals)}")
    if compact:
        before = lambda one: None if quiet or not one.joined else say(f"joining {one.joined:,} parts", error=True)
        compacted = join_parts(place, PART_ROWS if part_rows is None else part_rows, endpoint=endpoint, told=before)
        told["parts"] = vars(compacted)
        if not (as_json or quiet):
            say(f"{place}: parts: {compacted_line(compacted)}")

    # Print all totals.
    if as_json:
        print_json(told)


def _place_of(shares: list[str], output: Path | None, compact: bool, resumes_or_replaces: bool) -> str:
    """Return the folder to write. Raises UsageError if the arguments do not say which it is."""
    if output is not None:
        return as_url(str(output)) or str(output)
    if not compact:
        raise UsageError("give -o, a folder for all shares; or with --compact one folder, whose small parts are joined")
    if len(shares) > 1:
        raise UsageError("give -o, a folder for all shares: only the parts of one folder are joined where they are")
    if resumes_or_replaces:
        raise UsageError("--resume and --overwrite go with -o: --compact changes a folder where it is, and begins anew")
    return shares[0]


def _lowest(cut: Cut) -> str:
    return "" if cut.score is None else f", scores from {cut.score:.6g}"
