"""Describes in one line the rows that a model is measured on and has learned from."""

from __future__ import annotations

from ..measures.overlap import Overlap
from .shares import share_text

_REMEDY = "measure on rows that it has not seen"
_MOSTLY = 0.5  # the share of rows from which the line says "mostly"


def overlap_line(overlap: Overlap | None, others: str | None = None) -> str | None:
    """Return a line for the user; None if the model has learned from none of the rows, or it is unknown.

    others: how good the model is on the other rows; None to give the accuracy, for rows with one label each.
    """
    if overlap is None or not overlap.learned:
        return None
    if overlap.checked == overlap.rows:
        line = f"rows it learned from: {overlap.learned:,} of {overlap.rows:,}"
    else:
        line = (
            f"rows it learned from: about {overlap.share:.0%} of {overlap.rows:,} "
            f"({overlap.learned:,} of the {overlap.checked:,} that can be checked)"
        )
    if not overlap.others:
        return f"{line}. These figures tell what the model remembers, not how good it is: {_REMEDY}"
    if others is None:
        others = f"accuracy {share_text(overlap.right, overlap.others)}"
    if overlap.share > _MOSTLY:
        line += f". These figures tell mostly what the model remembers: {_REMEDY}"
    return f"{line}. On the {overlap.others:,} other rows: {others}"
