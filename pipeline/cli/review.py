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

_FILE = "Rows, as `train --suspects` or `next` wrote them."
_OUTPUT = "Where decisions are kept.  [default: FILE.csv]"
_MODEL = "A model that says which words speak for a label."


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.csv", help="Rows, as train --suspects or next wrote them.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="CORRECTIONS.csv", help="Where decisions are kept.  [default: FILE.csv]"
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="A model that says which words speak for a label.")
    ] = None,
    port: Annotated[int, typer.Option("--port", metavar="PORT", min=0, max=65_535, help="0: a free one.")] = 0,
    device: Device = "auto",
) -> None:
    """Show rows in the browser, where you choose the right label of each by keyboard, or leave the row out.

    Open the URL that the command prints. It holds a token, without which the page shows no row. The command saves each
    decision at once. Ctrl-C ends it. `train --corrections` then learns from the decisions.
    """
    from ..curation.explain import Explainer
    from ..curation.review import Review, serve

    kept = output or file
    if output is not None and not output.exists():
        refuse_outputs({"-o": output}, False, list)
    with nullcontext() if model is None else Explainer(model, device=device) as explainer:
        review = Review(file, kept, () if explainer is None else explainer.model.classes)
        say(f"{file}: {counted(len(review.rows), 'row')}, of which {review.summary().decided:,} have a decision")
        try:
            asyncio.run(serve(review, file.name, explainer, port, _opened))
        except KeyboardInterrupt:
            found = review.summary()
            done = f"{counted(found.decided, 'decision')} of {found.rows:,}: {found.changed:,} with another label"
            say(f"{kept}: {done}, {found.confirmed:,} confirmed, {found.left_out:,} left out")
            say(f"next: broadsheet train … --corrections {kept}")


def _opened(url: str) -> None:
    say(f"open {url}")
    say("each decision is saved at once; Ctrl-C ends the page")
