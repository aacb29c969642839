"""The HTTP interface: what is asked, by whom, and in what form the answer goes back."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send

from ..engine.base import Predictions
from ..output.model_columns import ModelColumns, Names
from . import openapi
from .bodies import ARROW, JSON, Asked, BadRequest, from_arrow, from_json, packed_of, to_arrow, to_json
from .http_link import Held, Main, Served
from .requests import Gone, ModelChanged, Refused
from .settings import Settings, log

_CLASSIFY = "/v1/classify"
_JSON, _ARROW = JSON.encode(), ARROW.encode()
_ASK_FOR_TOKEN = (b"www-authenticate", b"Bearer")

_AT_ONCE_BYTES, _AT_ONCE_TEXTS = 1 << 17, 256
"""What is read or written on the event loop itself; more would hold up others, and goes to a thread."""

_BODIES_HELD = 8
"""Bodies of the largest size that are held at a time, or as many bytes of smaller ones."""

_LATE_SHARE = 0.3
"""A request that is read so late, as a share of the target, is refused before anything is done for it: what comes is
more than this process can read, and the answer would be as late again.
"""

_GONE = 499
"""What logs and metrics have for a client that has hung up."""

_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class App:
    """main: to which requests go; held: what is held of them in all processes."""

    def __init__(self, settings: Settings, main: Main, held: Held) -> None:
        assert settings.target_s is not None
        self._settings, self._main, self._held = settings, main, held
        self._target, self._too_late = settings.target_s, _LATE_SHARE * settings.target_s
        pages = files("broadsheet.pipeline.serve")
        page = pages.joinpath("page.html").read_bytes()
        described = openapi.describe(settings)
        schema, docs = msgspec.json.encode(described), openapi.page(described).encode()
        routes = [
            Route(_CLASSIFY, _Raw(self._classify), methods=["POST"]),
            Route("/v1/models", self._guarded(partial(self._call, "models"))),
            Route("/v1/models/{name:path}/reload", self._reload_model, methods=["POST"]),
            Route("/metrics", self._guarded(self._show_metrics)),
            Route("/healthz", lambda request: _json(openapi.ServerState("alive"))),
            Route("/readyz", partial(self._call, "ready")),
            Route("/openapi.json", lambda request: Response(schema, media_type=JSON)),
            Route("/docs", lambda request: Response(docs, media_type="text/html", headers=_PAGE_HEADERS)),
            Route("/", lambda request: Response(page, media_type="text/html", headers=_PAGE_HEADERS)),
        ]
        self._others = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})

    async def asgi(self, scope: Any, receive: Receive, send: Send) -> None:
        """Most requests are to classify, and need none of what finds and calls the others."""
        if scope["path"] == _CLASSIFY and scope["method"] == "POST":
            await self._classify(scope, receive, send)
        else:
            await self._others(scope, receive, send)

    async def _classify(self, scope: Any, receive: Receive, send: Send) -> None:
        """Read, ask, wait, write. What goes wrong on the way is an answer too."""
        seen, headers = _Seen(), []
        try:
            status, (kind, content) = 200, await self._answer(scope, receive, seen)
        except BadRequest as error:
            status, kind, content = error.status, _JSON, _message(str(error))
            if status == 401:
                headers.append(_ASK_FOR_TOKEN)
        except Refused as error:
            status, kind, content = 503, _JSON, _message(str(error))
            headers.append((b"retry-after", b"%d" % error.retry_after))
        except Gone:
            status, kind, content = _GONE, _JSON, b""  # which nobody reads
        finally:
            self._held.add_bytes(-seen.held)
        seconds = time.monotonic() - seen.arrived
        self._main.counts.answered(seen.model, status, seen.texts, seconds)
        if self._settings.log_requests:
            self._log(scope, status, seen, seconds)
        headers += [(b"content-length", b"%d" % len(content)), (b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, scope: Any, receive: Receive, seen: _Seen) -> tuple[bytes, bytes]:
        """The answer's content type, and what it holds."""
        headers = dict(scope["headers"])
        self._check_token(headers)
        kind = _kind(headers)
        body = await self._body(scope, headers, receive, seen)
        is_small = len(body) <= _AT_ONCE_BYTES
        if is_small and time.monotonic() - seen.arrived > self._too_late:
            raise Refused(f"the answer would take longer than {1000 * self._target:,.0f} ms: too many requests come")
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        asked = self._read(kind, body, query) if is_small else await asyncio.to_thread(self._read, kind, body, query)
        if self._settings.log_texts:
            seen.logged = asked.texts if isinstance(asked.texts, list) else asked.texts.to_pylist()
        served, found = await self._classified(scope, asked, is_small, seen)
        columns = columns_of(served.classes, served.thresholds, asked.top_k, asked.scores)
        write = partial(to_json, served.name) if kind == _JSON else to_arrow
        is_few = seen.texts <= _AT_ONCE_TEXTS
        return kind, write(found, columns) if is_few else await asyncio.to_thread(write, found, columns)

    async def _classified(self, scope: Any, asked: Asked, is_small: bool, seen: _Seen) -> tuple[Served, Predictions]:
        """Predictions of the texts, and by which model."""
        models = self._main.models
        while True:
            served = models.get(asked.model or self._settings.default_model)
            if served is None:
                raise BadRequest(404, f"there is no model of that name here; there is {', '.join(models)}")
            seen.model = served.name
            if len(asked.texts) == 1:
                self._main.check_open(served)
            pack = partial(packed_of, asked, served.reads)
            packed = pack() if is_small else await asyncio.to_thread(pack)
            seen.texts = len(asked.texts)
            back = time.monotonic() - seen.arrived if is_small else 0.0  # the way back takes as long as the way here
            try:
                return served, await self._main.classify(served, packed, asked.top_k, seen.arrived, back, scope["gone"])
            except ModelChanged:  # it may read more of the texts
                continue

    def _read(self, kind: bytes, body: bytes, query: dict[str, str]) -> Asked:
        most = self._settings.max_texts
        if kind == _ARROW:
            return from_arrow(body, query, most)
        if query:
            raise BadRequest(422, "with JSON, options are fields of the body, not of the URL")
        return from_json(body, most)

    async def _body(self, scope: Any, headers: dict[bytes, bytes], receive: Receive, seen: _Seen) -> bytes:
        """The whole body. Raises BadRequest for a long one, Refused where others hold too much memory."""
        most = self._settings.max_body_bytes
        too_long = f"the body is longer than {most:,} bytes"
        if int(headers.get(b"content-length", 0)) > most:
            raise BadRequest(413, too_long)
        pieces = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            piece = message["body"]
            seen.held += len(piece)
            self._held.add_bytes(len(piece))
            if seen.held > most:
                raise BadRequest(413, too_long)
            if self._held.bytes > _BODIES_HELD * most:
                raise Refused("other requests hold too much memory")
            pieces.append(piece)
            if not message["more_body"]:
                seen.arrived = scope["arrived"]
                return b"".join(pieces) if len(pieces) > 1 else piece

    async def _call(self, what: str, request: Request) -> Response:
        """What the main process answers."""
        returned = await self._main.call(what)
        return Response(returned.body, returned.status, media_type=JSON)

    async def _show_metrics(self, request: Request) -> Response:
        returned = await self._main.call("metrics")
        return Response(returned.body, media_type="text/plain; version=0.0.4")

    async def _reload_model(self, request: Request) -> Response:
        try:
            self._check_admin(dict(request.scope["headers"]))
        except BadRequest as error:
            return _error(error)
        returned = await self._main.call("reload", request.path_params["name"])
        return Response(returned.body, returned.status, media_type=JSON)

    def _guarded(self, page: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self._check_token(dict(request.scope["headers"]))
            except BadRequest as error:
                return _error(error)
            return await page(request)

        return guarded

    def _check_token(self, headers: dict[bytes, bytes]) -> None:
        token = self._settings.token
        if token is not None and not _shows(headers, token):
            raise BadRequest(401, "show the token: Authorization: Bearer TOKEN")

    def _check_admin(self, headers: dict[bytes, bytes]) -> None:
        token = self._settings.admin_token
        if token is None:
            raise BadRequest(403, "this server was started without an admin token: send it SIGHUP")
        if not _shows(headers, token):
            raise BadRequest(401, "show the admin token: Authorization: Bearer TOKEN")

    def _log(self, scope: Any, status: int, seen: _Seen, seconds: float) -> None:
        fields = {
            "client": scope["client"][0] if scope["client"] else "",
            "status": status,
            "model": seen.model,
            "texts": seen.texts,
            "milliseconds": round(1000 * seconds, 2),
            **({"logged_texts": seen.logged} if seen.logged is not None else {}),
        }
        log.info("request", extra={"fields": fields})


class _Raw:
    """What Starlette's router calls as it is, without a request and a response of Starlette's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Seen:
    """What is known of a request by the time it is over. held: bytes of its body. arrived: when all of it was there."""

    def __init__(self) -> None:
        self.model, self.texts, self.held = "", 0, 0
        self.arrived = time.monotonic()
        self.logged: list[str] | None = None


def _kind(headers: dict[bytes, bytes]) -> bytes:
    """The content type, which the answer has too. Raises BadRequest for any but the two."""
    given = headers.get(b"content-type", b"")
    if given in (_JSON, _ARROW):
        return given
    kind, _, parameters = given.partition(b";")
    kind = kind.strip().lower()
    if kind == _JSON and parameters.strip().lower().replace(b'"', b"") in (b"", b"charset=utf-8"):
        return _JSON
    if kind == _ARROW and not parameters:
        return _ARROW
    raise BadRequest(415, f"the content type must be {JSON} (in UTF-8) or {ARROW}")


def _shows(headers: dict[bytes, bytes], token: str) -> bool:
    scheme, _, shown = headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), token.encode())


@lru_cache(maxsize=256)
def columns_of(
    classes: tuple[str, ...], thresholds: tuple[float, ...] | None, top_k: int, scores: bool
) -> ModelColumns:
    """What a job would say of each row, with these options."""
    names = Names(multi_label=thresholds is not None)
    return ModelColumns(classes, top_k, scores, names, thresholds=thresholds)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)


def _message(told: str) -> bytes:
    return msgspec.json.encode(openapi.ErrorMessage(told))


def _error(error: BadRequest) -> Response:
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
    return Response(_message(str(error)), error.status, headers, JSON)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return Response(_message(error.detail), error.status_code, headers, JSON)
