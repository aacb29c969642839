"""The command `review`, which serves a local page to decide on the labels of rows."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ..errors import counted
from ..report.console import say
from ..storage.disk import refuse_outputs
from .flags import Device

_FILE = "File of rows that `train --suspects` or `next` has written."
_OUTPUT = "File for the decisions.  [default: FILE.csv]"
_MODEL = "A model that marks the words that speak for a label."
_PORT = "Port of the page; 0: any free one."


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help=_FILE, show_default=False)],
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="CORRECTIONS.csv", help=_OUTPUT)] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help=_MODEL)] = None,
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help=_PORT)] = 0,
    device: Device = "auto",
) -> None:
    """Show rows in the browser, where you choose the right label of each by keyboard, or leave the row out.

    Open the URL that the command prints. It holds a token, without which the page shows no row. The command saves each
    decision at once. Ctrl-C ends it. `train --corrections` then learns from the decisions.
    """
    from ..curation.explain import Explainer
    from ..curation.review import Review, serve

    decisions = output or file
    if output is not None and not output.exists():
        refuse_outputs({"-o": output}, False, list)
    with nullcontext() if model is None else Explainer(model, device=device) as explainer:
        review = Review(file, decisions, () if explainer is None else explainer.model.classes)
        say(f"{file}: {counted(len(review.rows), 'row')}, of which {review.summary().decided:,} have a decision")
        try:
            asyncio.run(serve(review, file.name, explainer, port, _opened))
        except KeyboardInterrupt:
            found = review.summary()
            counts = f"{counted(found.decided, 'decision')} of {found.rows:,}: {found.changed:,} with another label"
            say(f"{decisions}: {counts}, {found.confirmed:,} confirmed, {found.left_out:,} left out")
            say(f"next: broadsheet train … --corrections {decisions}")


def _opened(url: str) -> None:
    say(f"open {url}")
    say("each decision is saved at once; Ctrl-C ends the page")
