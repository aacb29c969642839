"""Starting something that takes seconds beside other work, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import TypeVar

_T = TypeVar("_T")


@contextmanager
def beside(context: AbstractContextManager[_T], head_start: float) -> Iterator[Callable[[], _T]]:
    """Enter `context` in a thread while the block runs, and leave it there at the end of the block.

    Yields a function that waits for the value of `context`, or raises the error of entering it. The thread begins when
    that is first called, and after `head_start` seconds at the latest: a block that fails before has started nothing.
    """
    begin, given_up = threading.Event(), threading.Event()
    entered: Future[_T] = Future()
    left: Future[None] = Future()
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def hold() -> None:
        begin.wait(head_start)
        try:
            if not given_up.is_set():
                with context as value:
                    entered.set_result(value)
                    error = ended.get()
                    if error is not None:
                        raise error
        except BaseException as error:
            if entered.done():
                left.set_exception(error)
                return
            entered.set_exception(error)
        left.set_result(None)

    def value() -> _T:
        begin.set()
        return entered.result()

    threading.Thread(target=hold, name="broadsheet-start", daemon=True).start()
    try:
        yield value
    except BaseException as error:
        given_up.set()
        begin.set()
        ended.put(error)
        raised = left.exception()  # waits: what has half started could not be stopped
        if raised is None or raised is error:
            raise
        raise raised from raised.__cause__  # of the context, in place of that of the block
    ended.put(None)
    left.result()
