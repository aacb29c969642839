"""The command `explain`, which shows the parts of a text that speak for its label or against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import ENGINE
from ..report.console import PlainConsole, print_json, styled
from .flags import Json, OneModel, keywords, with_options

if TYPE_CHECKING:
    from ..curation.explain import Explanation

_SHOWN = 10
_FAINT = 0.25  # a word whose weight is below this share of the largest is not coloured


@with_options(ENGINE)
def command(
    model: OneModel,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text to explain.", show_default=False)],
    label: Annotated[
        str | None, typer.Option("--label", metavar="LABEL", help="The label to explain.  [default: the most probable]")
    ] = None,
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Number of n-grams or words to show.")] = _SHOWN,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Show which parts of a text speak for its label, and which speak against it.

    If n-grams decide the label, their weights add up to the label's score before softmax. If a network, an encoder or a
    fastText model decides it, each word is left out in turn. Its weight is what the score loses without the word.
    """
    from ..curation.explain import explain

    why = explain(model, text, label=label, **keywords(flags, ENGINE))
    if as_json:
        parts = {name: [one._asdict() for one in getattr(why, name)] for name in ("pieces", "words")}
        print_json(why._asdict() | parts)
        return
    _print(why, top)


def _print(why: Explanation, top: int) -> None:
    from ..report.tables import new_table

    console = PlainConsole()
    console.print(styled((why.label, "bold"), f"  {why.score:.3f}"))
    console.print(_coloured(why), soft_wrap=True)
    table = new_table("weight", "kind", "text", overflow="fold")
    shown = [piece for piece in why.pieces[:top] if piece.weight > 0]
    against = [piece for piece in why.pieces[-top:] if piece.weight < 0]
    for piece in (*shown, *against):
        table.add_row(f"{piece.weight:+.3f}", piece.kind, piece.text)
    if shown or against:
        console.print(table)
    if why.bias is not None:
        total = why.bias + sum(piece.weight for piece in why.pieces)
        console.print(f"{len(why.pieces):,} n-grams and a bias of {why.bias:+.3f} add up to {total:+.3f}")


def _coloured(why: Explanation) -> object:
    """Return the text. Words that speak most for the label are green, those that speak most against it are red."""
    largest = max((abs(word.weight) for word in why.words), default=0.0)
    parts: list[tuple[str, str]] = []
    at = 0
    for word in why.words:
        style = "" if abs(word.weight) < _FAINT * largest else "bold green" if word.weight > 0 else "bold red"
        parts += [(why.text[at : word.begin], ""), (why.text[word.begin : word.end], style)]
        at = word.end
    return styled(*parts, (why.text[at:], ""))
