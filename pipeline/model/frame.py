"""The two frames of the network: what becomes of the positions after an article's text."""

from __future__ import annotations

from typing import Literal, get_args

Frame = Literal["text", "dense"]
"""dense: the published network. text: block 1's output is zero from position n on, after its ReLU and before its pool,
where n is the index after the article's last character, known or unknown (0 for an empty text). Nothing else differs:
both norms take their statistics over all rows. So from block 2 on, rows that no character reaches are vectors of the
model, one a layer and the same for every article, which need not be computed.
"""

FRAMES: tuple[Frame, ...] = get_args(Frame)
