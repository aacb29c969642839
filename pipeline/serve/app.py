"""The HTTP interface as an ASGI application: its routes, who may use them, and how requests are read and answered."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send

from ..engine.base import Predictions
from . import openapi, protocols
from .answers import ErrorMessage, ModelAbout, ModelList, ServerState
from .bodies import ARROW, JSON, BadRequest, DecodedRequest, Received, Reply, packed_of
from .http_link import Answers, Held, Main, Served
from .protocols import SPOKEN, Spoken
from .requests import Gone, ModelChanged, Refused
from .settings import Settings, log
from .tracing import Traces

_REQUEST_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_JSON, _ARROW = JSON.encode(), ARROW.encode()
_ASK_FOR_TOKEN = (b"www-authenticate", b"Bearer")

_AT_ONCE_BYTES, _AT_ONCE_TEXTS = 1 << 17, 256
"""The largest body, and the most texts, that the event loop itself reads or writes. A thread handles larger ones."""

_BODIES_HELD = 8
"""The number of bodies of the largest size, or as many bytes of smaller ones, that the server holds at a time."""

_LATE_SHARE = 0.3
"""A share of the target. A busy process refuses a request that it reads later than this after its arrival, before it
does anything for it: more requests arrive than the process can read, and writing the answer would take as long again.
"""

_LOOK_SECONDS = 0.05
"""The seconds between two attempts of a new process to have a text labelled."""

_GONE = 499
"""The HTTP status in logs and metrics for a client that has hung up."""

_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def too_late(settings: Settings) -> float:
    """Return the seconds from arrival to reading after which a busy process refuses a request."""
    assert settings.target_s is not None
    return _LATE_SHARE * settings.target_s


class App:
    """The routes of the server, as an ASGI application.

    A request to classify goes through these stages:

    1. `_routed` finds the route. `_classify` handles all routes to classify, and Starlette the others.
    2. `_answer` checks the token, reads the body and decodes it, by the form of its route.
    3. `_classified` sends the texts to the main process and waits for the predictions.
    4. `_answer` writes them in the form of the route. `_classify` counts, logs and sends the answer.

    Parameters
    ----------
    settings : Settings
        The server's settings; `target_s` is set.
    main : Main
        The main process, which computes the labels.
    held : Held
        The numbers of connections and of bytes of bodies that all processes hold.
    traces : Traces or None
        Records the spans of requests, if the user asks for them.

    """

    def __init__(self, settings: Settings, main: Main, held: Held, traces: Traces | None) -> None:
        # Make the pages that stay the same.
        assert settings.target_s is not None
        self._settings, self._main, self._held, self._traces = settings, main, held, traces
        self._target, self._too_late = settings.target_s, too_late(settings)
        pages = files("broadsheet.pipeline.serve")
        page = pages.joinpath("page.html").read_bytes()
        described = openapi.describe(settings)
        schema = msgspec.json.encode(described)
        docs = openapi.page(described, settings.default_model).encode()

        # List the routes. A request to classify takes one of these only if its path has a model's name.
        routes = [
            *(
                Route(path, _Raw(partial(self._classify, spoken, path)), methods=["POST"])
                for path, spoken in SPOKEN.items()
            ),
            Route("/v1/models", self._guarded(partial(self._call, "models", JSON))),
            Route("/v1/models/{name:path}/reload", self._reload_model, methods=["POST"]),
            Route("/metrics", self._guarded(partial(self._call, "metrics", "text/plain; version=0.0.4"))),
            Route("/healthz", lambda request: _json(ServerState("alive"))),
            *(Route(path, partial(self._call, "ready", JSON)) for path in ("/readyz", "/health", "/ping")),
            Route("/info", self._guarded(self._show_info)),
            Route("/v2", lambda request: _json(protocols.about_server())),
            Route("/v2/health/live", lambda request: _json({"live": True})),
            Route("/v2/health/ready", self._is_ready),
            *(Route(path + "/ready", self._is_model_ready) for path in protocols.MODELS),
            *(Route(path, self._guarded(self._show_model)) for path in protocols.MODELS),
            Route("/openapi.json", lambda request: Response(schema, media_type=JSON)),
            Route("/docs", lambda request: Response(docs, media_type="text/html", headers=_PAGE_HEADERS)),
            Route("/", lambda request: Response(page, media_type="text/html", headers=_PAGE_HEADERS)),
        ]
        self._others = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, BadRequest: _refused})
        self._answer_any: ASGIApp = self._routed
        if settings.allow_origins:
            self._answer_any = CORSMiddleware(
                self._routed,
                allow_origins=settings.allow_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )

    async def asgi(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._answer_any(scope, receive, send)
        scope["state"]["connection"].answered()

    async def _routed(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer requests to classify directly, without Starlette's router. Most requests are of this kind."""
        if scope["method"] == "POST" and scope["path"] in SPOKEN:
            await self._classify(SPOKEN[scope["path"]], scope["path"], scope, receive, send)
        else:
            await self._others(scope, receive, send)

    async def _classify(self, spoken: Spoken, route: str, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request to classify, with labels or with an error.

        Parameters
        ----------
        spoken : Spoken
            The form of the request and its answer.
        route : str
            The path for the log, without a model's name.
        scope, receive, send
            As ASGI defines them.

        """
        # Read the request and make the answer.
        seen, status, headers = _Seen(), 200, []
        span = None if self._traces is None else self._traces.begin(scope)
        if self._traces is not None:
            seen.trace = self._traces.carried(span)
        try:
            reply = await self._answer(spoken, scope, receive, seen)
        except BadRequest as error:
            status, reply = spoken.failed(error.status, str(error))
            if status == 401:
                headers.append(_ASK_FOR_TOKEN)
        except Refused as error:
            scope["state"]["connection"].is_refused = True
            status, reply = spoken.failed(503, str(error))
            headers.append((b"retry-after", b"%d" % error.retry_after))
        except Gone:
            status, reply = _GONE, Reply(_JSON, b"")  # nobody reads it
        finally:
            self._held.add_bytes(-seen.held)

        # Count, log and trace it.
        seconds = time.monotonic() - seen.arrived
        self._main.counts.answered(seen.model, status, seen.texts, seconds)
        if self._settings.log_requests:
            seen.route, seen.id = route, _id_of(scope)
            headers.append((b"x-request-id", seen.id.encode()))
            self._log(scope, status, seen, seconds)
        if self._traces is not None:
            self._traces.end(span, status, seen.model, seen.texts)

        # Send the answer.
        headers += [(b"content-length", b"%d" % len(reply.content)), (b"content-type", reply.kind), *reply.headers]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.content})

    async def _answer(self, spoken: Spoken, scope: Any, receive: Receive, seen: _Seen) -> Reply:
        # Check the headers, and read the body.
        headers = dict(scope["headers"])
        self._check_token(headers)
        kind = _kind(headers)
        coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
        if coding.lower() not in ("", "identity"):
            raise BadRequest(415, f"the body has the content encoding {coding}: send it as it is, without one")
        body = await self._body(scope, headers, receive, seen)
        is_small = len(body) <= _AT_ONCE_BYTES
        if is_small and self._main.is_busy and time.monotonic() - seen.arrived > self._too_late:
            raise Refused(f"the answer would take longer than {1000 * self._target:,.0f} ms: too many requests come")

        # Decode the body, and get predictions for its texts.
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        model = scope["path_params"].get("name") if "path_params" in scope else None
        limit = min(self._settings.max_texts, self._settings.max_queue)  # the queue would never have room for more
        received = Received(body, kind, headers, query, model, limit)
        request = spoken.read(received) if is_small else await asyncio.to_thread(spoken.read, received)
        if self._settings.log_texts:
            seen.logged = request.texts if isinstance(request.texts, list) else request.texts.to_pylist()
        served, predictions = await self._classified(scope["state"]["connection"].gone, request, is_small, seen)
        is_few = seen.texts <= _AT_ONCE_TEXTS
        write = request.write
        return write(served, predictions) if is_few else await asyncio.to_thread(write, served, predictions)

    async def answer_one(self) -> None:
        """Label a text as if a client had sent it, as soon as that works, and report this to the main process."""
        request = SPOKEN["/v1/classify"].read(Received(b'{"texts": ["a text"]}', _JSON, {}, {}, None, 1))
        while True:
            try:
                request.write(*await self._classified(set(), request, True, _Seen()))
                return self._main.link.send(Answers())
            except (BadRequest, Refused):  # there is no model yet, or no engine
                await asyncio.sleep(_LOOK_SECONDS)

    async def _classified(
        self, gone: Any, request: DecodedRequest, is_small: bool, seen: _Seen
    ) -> tuple[Served, Predictions]:
        """Return the model that a request names, and its predictions for the texts."""
        models = self._main.models
        while True:
            served = models.get(request.model or self._settings.default_model)
            if served is None:
                raise BadRequest(404, f"there is no model of that name here; there is {', '.join(models)}")
            seen.model = served.name
            if served.is_number and request.top_k > 1:
                raise BadRequest(422, f"{served.name} gives a text a number: leave out top_k")
            if len(request.texts) == 1:  # the main process may have refused another text a moment ago
                self._main.check_open(served)
            pack = partial(packed_of, request, served.reads)
            packed = pack() if is_small else await asyncio.to_thread(pack)
            seen.texts = len(request.texts)
            # Writing the answer takes about as long as reading the request. The time of a large request begins now:
            # reading takes longer for a larger body, and the target does not grow with it.
            arrived, back = (seen.arrived, time.monotonic() - seen.arrived) if is_small else (None, 0.0)
            try:
                return served, await self._main.classify(served, packed, request.top_k, arrived, back, seen.trace, gone)
            except ModelChanged:  # the new model may read more of the texts
                continue

    async def _body(self, scope: Any, headers: dict[bytes, bytes], receive: Receive, seen: _Seen) -> bytes:
        """Return the whole body.

        Raises BadRequest if it is too long, Refused if other bodies hold too much memory, and Gone if the client hangs
        up.
        """
        limit = self._settings.max_body_bytes
        too_long = f"the body is longer than {limit:,} bytes"
        if int(headers.get(b"content-length", 0)) > limit:
            raise BadRequest(413, too_long)
        pieces = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            piece = message["body"]
            seen.held += len(piece)
            self._held.add_bytes(len(piece))
            if seen.held > limit:
                raise BadRequest(413, too_long)
            if self._held.bytes > _BODIES_HELD * limit:
                raise Refused("other requests hold too much memory")
            pieces.append(piece)
            if not message["more_body"]:
                seen.arrived = scope["state"]["connection"].arrived
                return b"".join(pieces) if len(pieces) > 1 else piece

    async def _call(self, what: str, kind: str, request: Request) -> Response:
        """Return the answer of the main process."""
        returned = await self._main.call(what)
        return Response(returned.body, returned.status, media_type=kind)

    async def _show_info(self, request: Request) -> Response:
        models = await self._models()
        return _json(protocols.tei_info(models[self._settings.default_model], self._settings))

    async def _show_model(self, request: Request) -> Response:
        name = self._named(request)
        return _json(protocols.about_model((await self._models())[name]))

    async def _is_ready(self, request: Request) -> Response:
        status = (await self._main.call("ready")).status
        return _json({"ready": status == 200}, status)

    async def _is_model_ready(self, request: Request) -> Response:
        name, status = self._named(request), (await self._main.call("ready")).status
        return _json({"name": name, "ready": status == 200}, status)

    def _named(self, request: Request) -> str:
        """Return the name of the model in the path. Raises BadRequest if there is no such model."""
        name: str = request.path_params["name"]
        if name not in self._main.models:
            raise BadRequest(404, f"there is no model {name!r} here; there is {', '.join(self._main.models)}")
        return name

    async def _models(self) -> dict[str, ModelAbout]:
        listed = msgspec.json.decode((await self._main.call("models")).body, type=ModelList)
        return {model.name: model for model in listed.models}

    async def _reload_model(self, request: Request) -> Response:
        self._check_admin(dict(request.scope["headers"]))
        returned = await self._main.call("reload", request.path_params["name"])
        return Response(returned.body, returned.status, media_type=JSON)

    def _guarded(self, page: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            self._check_token(dict(request.scope["headers"]))
            return await page(request)

        return guarded

    def _check_token(self, headers: dict[bytes, bytes]) -> None:
        token = self._settings.token
        if token is not None and not _shows(headers, token):
            raise BadRequest(401, "show the token: Authorization: Bearer TOKEN")

    def _check_admin(self, headers: dict[bytes, bytes]) -> None:
        token = self._settings.admin_token
        if token is None:
            raise BadRequest(403, "this server was started without an admin token: send SIGHUP to its process")
        if not _shows(headers, token):
            raise BadRequest(401, "show the admin token: Authorization: Bearer TOKEN")

    def _log(self, scope: Any, status: int, seen: _Seen, seconds: float) -> None:
        fields = {
            "route": seen.route,
            "id": seen.id,
            "client": scope["client"][0] if scope["client"] else "",
            "status": status,
            "model": seen.model,
            "texts": seen.texts,
            "milliseconds": round(1000 * seconds, 2),
            **({"logged_texts": seen.logged} if seen.logged is not None else {}),
        }
        log.info("request", extra={"fields": fields})


def _id_of(scope: Any) -> str:
    """Return the id of a request: that of its header `X-Request-Id`, if it is valid, or else a random one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return given if _REQUEST_ID.fullmatch(given) else os.urandom(8).hex()


class _Raw:
    """Wraps an ASGI application, so that Starlette's router calls it without making a request and a response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Seen:
    """The facts about a request that the log, metrics and traces need.

    `held` is the number of bytes of its body that have been read, and `arrived` the time at which the whole body had
    arrived, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.model, self.texts, self.held, self.trace = "", 0, 0, ""
        self.route = self.id = ""
        self.arrived = time.monotonic()
        self.logged: list[str] | None = None


def _kind(headers: dict[bytes, bytes]) -> bytes:
    """Return the content type without parameters. Raises BadRequest for any character set except UTF-8."""
    given = headers.get(b"content-type", b"")
    if given in (_JSON, _ARROW):
        return given
    kind, _, parameters = given.lower().partition(b";")
    charset = parameters.replace(b'"', b"").replace(b" ", b"").partition(b"charset=")[2].partition(b";")[0]
    if charset not in (b"", b"utf-8", b"utf8"):
        raise BadRequest(415, "the body must be in UTF-8")
    return kind.strip()


def _shows(headers: dict[bytes, bytes], token: str) -> bool:
    scheme, _, shown = headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), token.encode())


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
    return await _http_error(request, HTTPException(error.status, str(error), headers))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Response(msgspec.json.encode(ErrorMessage(error.detail)), error.status_code, error.headers, JSON)
