"""The turn of a chunk on the engines of a process, which the threads of many chunks share."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from ..labelling.engines import ENGINES
from ..telemetry.activity import ACTIVITY
from ..telemetry.spans import Span, here, span


class Turn(AbstractContextManager["Turn"]):
    """The lock of the engines, as one chunk holds it: while an engine computes, or while it hands texts to a GPU.

    The span "infer" runs from the first time that the lock is entered until `close`. The span "wait" is before it.

    Parameters
    ----------
    spans : list of Span
        The spans of the chunk's reading, to which these are appended.
    device : str
        The device of the first engine.
    number : int
        The number of the chunk in its file.

    """

    def __init__(self, spans: list[Span], device: str, number: int) -> None:
        self._has_begun = False
        self._spans, self._device, self._number = spans, device, number
        self._during = ExitStack()

    def __enter__(self) -> Turn:
        ENGINES.computing.__enter__()
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        ENGINES.computing.__exit__(kind, error, at)

    def close(self) -> None:
        """End the span "infer"."""
        self._during.close()

    def _begin(self) -> None:
        spans = self._spans
        if spans and spans[-1].where == here():
            waited = time.time() - spans[-1].end
            spans.append(Span("wait", spans[-1].end, max(0.0, waited), here(), "wait"))
        self._during.enter_context(span("infer", spans, "infer", self._device, self._number))
        if self._device == "cpu":  # the engine of a GPU reports activities itself, from its events
            self._during.enter_context(ACTIVITY.during("computing"))
