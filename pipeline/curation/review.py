"""Review of rows by a person: a page on this machine shows the rows of a file one by one, and takes decisions.

Other users of this machine can connect to the page's port too. So each request must show a token. Only the URL that the
command prints holds the token, after a "#", and browsers send that part to no server. Each decision is in the file, and
on the disk, before the page goes on. The file is read again before each write, so a spreadsheet may change it
meanwhile.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from ..errors import BroadsheetError, UsageError, cause
from ..evaluation.decisions import DECISION, KEY, LEAVE_OUT, TEXT, key_of, read_table, write_table
from .explain import Explainer, Explanation

HOST = "127.0.0.1"
_SHOWN_PIECES = 6  # n-grams or words that the page lists for a label
_MOST_BODY = 1 << 16  # bytes of a request
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Summary(NamedTuple):
    """The counts of the decisions so far.

    Attributes
    ----------
    rows : int
        The rows of the file that is reviewed.
    changed : int
        The decisions for another label than the row has, or for a label of a row that has none.
    confirmed : int
        The decisions for the label that a row has.
    left_out : int
        The rows to leave out.

    """

    rows: int
    changed: int
    confirmed: int
    left_out: int

    @property
    def decided(self) -> int:
        """The number of rows that have a decision."""
        return self.changed + self.confirmed + self.left_out


class Review:
    """The rows of a file, and a person's decisions about them.

    Parameters
    ----------
    file : Path
        A CSV file as written by `train --suspects` or `next`.
    output : Path
        The file for decisions: the same file, or another one, which may already have some.
    classes : sequence of str
        The labels to offer before those that occur in the file.

    Raises
    ------
    UsageError
        For a file that cannot be read, or that has no row.

    """

    def __init__(self, file: Path, output: Path, classes: tuple[str, ...] = ()) -> None:
        self._columns, self.rows = read_table(file)
        if not self.rows or TEXT not in self._columns:
            raise UsageError(f"{file} has no row with a text to decide on")
        self._output, self._is_own = output, output.exists() and output.resolve() == file.resolve()
        for row in self.rows:
            row[KEY] = row.get(KEY, "").strip() or key_of(row[TEXT])
        # A decision in another file takes precedence over one in the file of rows.
        if not self._is_own and output.exists():
            decided = {_key(row): row[DECISION] for row in read_table(output)[1]}
            for row in self.rows:
                row[DECISION] = decided.get(row[KEY], row[DECISION])
        # Offer the classes of the model, then all other labels of the file.
        counts = Counter(row.get(name, "") for row in self.rows for name in ("truth", "label", DECISION))
        others = sorted(name for name in counts if name and name != LEAVE_OUT and name not in classes)
        self.labels = [*classes, *others]

    def decide(self, number: int, label: str) -> None:
        """Store the decision about a row, and about all rows with its text. An empty label removes the decision.

        Raises UsageError for a row or a label that does not exist, and OutputError if the file cannot be written. In
        that case the decision does not count.
        """
        if not 0 <= number < len(self.rows) or label not in ("", LEAVE_OUT, *self.labels):
            raise UsageError(f"there is no row {number}, or no label {label!r}")
        key = self.rows[number][KEY]
        columns, rows = read_table(self._output) if self._output.exists() else (self._columns, [])
        columns = [*columns, *(name for name in (*self._columns, KEY) if name not in columns)]
        found = [row for row in rows if _key(row) == key]
        if not found:
            rows.append(found_row := dict(self.rows[number]))
            found = [found_row]
        for row in found:
            row[DECISION], row[KEY] = label, key
        write_table(self._output, columns, rows)
        for row in self.rows:
            if row[KEY] == key:
                row[DECISION] = label

    def summary(self) -> Summary:
        """Return the counts of the decisions so far."""
        decided = [(row[DECISION], row.get("truth", "")) for row in self.rows if row[DECISION]]
        left_out = sum(label == LEAVE_OUT for label, _ in decided)
        confirmed = sum(label == truth for label, truth in decided)
        return Summary(len(self.rows), len(decided) - left_out - confirmed, confirmed, left_out)


def _key(row: dict[str, str]) -> str:
    return row.get(KEY, "").strip() or key_of(row.get(TEXT, ""))


async def serve(
    review: Review, name: str, explainer: Explainer | None, port: int, started: Callable[[str], None]
) -> None:
    """Serve the page until the task is cancelled.

    Parameters
    ----------
    review : Review
        The rows.
    name : str
        The name of the rows on the page.
    explainer : Explainer, optional
        Explains why a row has its label. If None, the page does not explain it.
    port : int
        The port on 127.0.0.1; 0 for a free one.
    started : callable
        Called with the URL when the page can be opened.

    Raises
    ------
    UsageError
        If the port is not available.

    """
    try:
        sockets = bind_sockets(port, HOST)
    except OSError as error:
        remedy = "give another port, or 0 for any free one"
        raise UsageError(f"{HOST} port {port} cannot be listened on: {cause(error)}: {remedy}") from error
    # Set up the pages. Only a browser that has the token can read and decide.
    token = secrets.token_urlsafe(24)
    number = sockets[0].getsockname()[1]
    with ThreadPoolExecutor(1, "broadsheet-review") as thread:  # engines and files take one call at a time
        given = {"review": review, "token": token, "host": f"{HOST}:{number}", "thread": thread}
        routes: list[Any] = [
            ("/", _Page),
            ("/rows", _Rows, given | {"name": name, "explains": explainer is not None}),
            (r"/rows/(\d{1,9})/decision", _Decision, given),
            (r"/rows/(\d{1,9})/why", _Why, given | {"explainer": explainer}),
        ]
        # Serve them until the task is cancelled.
        application = Application(routes, log_function=lambda handler: None)
        server = HTTPServer(application, max_body_size=_MOST_BODY)
        server.add_sockets(sockets)
        started(f"http://{HOST}:{number}/#{token}")
        try:
            await asyncio.Event().wait()
        finally:
            server.stop()
            await server.close_all_connections()


class _Answer(RequestHandler):  # type: ignore[misc]  # Tornado comes without types here
    """An answer with the headers that all answers have. Errors are JSON."""

    def set_default_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def write_error(self, status_code: int, **_: Any) -> None:
        self.set_header("content-type", "application/json")
        self.finish({"error": self._reason})


class _Page(_Answer):
    """The page itself, which does not contain a row."""

    def get(self) -> None:
        self.set_header("content-type", "text/html; charset=utf-8")
        self.finish(files("broadsheet.pipeline.curation").joinpath("review.html").read_bytes())


class _Guarded(_Answer):
    """An answer to requests that show the token."""

    def initialize(self, review: Review, token: str, host: str, thread: ThreadPoolExecutor, **more: Any) -> None:
        self._review, self._token, self._host, self._thread, self._more = review, token, host, thread, more

    def prepare(self) -> None:
        shown = self.request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), self._token.encode()):
            self._fail(401, "open the URL that the command has printed: it holds the token")
        elif self.request.headers.get("host") not in (self._host, self._host.replace(HOST, "localhost")):
            self._fail(403, "this page is for this machine only")

    def _fail(self, status: int, reason: str) -> None:
        self.set_status(status)
        self.set_header("content-type", "application/json")
        self.finish({"error": reason})

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """Return the result of the work, which runs in the thread for engines and files.

        If it fails, answer the error and return None.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except BroadsheetError as error:
            self._fail(409, error.message)
        return None


class _Rows(_Guarded):
    """All rows, with the decisions."""

    def get(self) -> None:
        review, facts = self._review, ("file", "row", "truth", "truth_score", "label", "score", DECISION, TEXT)
        rows = []
        for row in review.rows:
            more = {name: value for name, value in row.items() if name not in (*facts, KEY)}
            rows.append({name: row.get(name, "") for name in facts} | {"more": more})
        answer = {"name": self._more["name"], "explains": self._more["explains"], "labels": review.labels, "rows": rows}
        self.finish(answer | {"leave_out": LEAVE_OUT})


class _Decision(_Guarded):
    """A decision, which is on the disk before this is answered."""

    async def post(self, number: str) -> None:
        try:
            label = json.loads(self.request.body)["label"]
        except (ValueError, TypeError, KeyError):
            label = None
        if not isinstance(label, str):
            self._fail(400, 'send {"label": LABEL}')
            return
        await self._in_thread(lambda: self._review.decide(int(number), label))
        if not self._finished:
            self.finish({"decided": self._review.summary().decided})


class _Why(_Guarded):
    """The words that support the label of a row, and the label that the row has."""

    async def get(self, number: str) -> None:
        explainer, rows = self._more["explainer"], self._review.rows
        if explainer is None or int(number) >= len(rows):
            self._fail(404, "there is no such row, or no model to explain it: review with --model")
            return
        row = rows[int(number)]
        classes = explainer.model.classes
        named = dict.fromkeys((row.get("label", ""), row.get("truth", "")))
        wanted: list[str | None] = [name for name in named if name in classes]

        def explained() -> list[dict[str, Any]]:
            return [_as_json(explainer.explain(row[TEXT], name)) for name in wanted or [None]]

        found = await self._in_thread(explained)
        if found is not None:
            self.finish({"why": found})


def _as_json(why: Explanation) -> dict[str, Any]:
    """Return what the page shows of an explanation: the words, and the strongest pieces."""
    pieces = [piece for piece in why.pieces if piece.weight > 0][:_SHOWN_PIECES]
    return {
        "text": why.text,
        "label": why.label,
        "score": why.score,
        "words": [[word.begin, word.end, round(word.weight, 4)] for word in why.words],
        "pieces": [[piece.text, piece.kind, round(piece.weight, 3)] for piece in pieces],
    }
