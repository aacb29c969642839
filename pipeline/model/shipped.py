"""The models that come with the package."""

from __future__ import annotations

from typing import NamedTuple

from .cascade import Cascade


class Shipped(NamedTuple):
    """A model that comes with the package.

    header: SHA-256 of what comes before its tensors, by which a copy under another name is recognised. digest: of the
    model that belongs there. meant_for: the texts that it was trained on. cascade: what `calibrate` finds on the rows
    that were held out. Its file says neither.
    """

    file: str
    header: str
    digest: str
    meant_for: str
    cascade: Cascade


SHIPPED = {
    "ag-news": Shipped(
        "ag_news.safetensors",
        "68b4d580cf3144366d4141da3e84d87b97b7d3b4ebbf1fc84896f1ea49b3d75f",
        "9d7d761dfaf933a171fbacaeb5bb154d0fdbb80d798cd6cbd00e392601459f93",
        "English news",
        Cascade(
            1.0974736213684082,
            0.183402,
            1.0,
            (-3.9263389110565186, -3.9402916431427, -4.070120811462402, -3.8009207248687744),
            0.5975771546363831,
        ),
    )
}

MEANT_FOR = "meant for"
"""The key of a card that says for which texts a model is."""
