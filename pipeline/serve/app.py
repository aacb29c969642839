"""The HTTP interface: what is asked, by whom, and in what form the answer goes back."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pipeline.errors import BroadsheetError
from pipeline.model.charcnn import Model
from pipeline.output.labelling import Labelling, Names
from pipeline.serve import answers, openapi
from pipeline.serve.bodies import ARROW, JSON, Asked, BadRequest, from_arrow, from_json, texts_of
from pipeline.serve.dispatcher import Dispatcher, Gone, Refused
from pipeline.serve.engines import LoadedModel
from pipeline.serve.log import log
from pipeline.serve.metrics import Metrics
from pipeline.serve.settings import Settings

_AT_ONCE_BYTES, _AT_ONCE_TEXTS = 1 << 17, 256
"""What is read or written on the event loop itself; more would hold up others, and goes to a thread."""

_BODIES_HELD = 8
"""Bodies of the largest size that are held at a time, or as many bytes of smaller ones."""

_GONE = 499
"""What logs and metrics have for a client that has hung up."""

_PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class App:
    """states: of the engines by device, as `LocalFleet` has them; reload: loads a model's file again."""

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        metrics: Metrics,
        states: Callable[[], dict[str, str]],
        reload: Callable[[str], Awaitable[LoadedModel]],
    ) -> None:
        self.is_stopping = False
        self._settings, self._dispatcher, self._metrics = settings, dispatcher, metrics
        self._states, self._reload = states, reload
        self._held = 0
        pages = files("pipeline.serve")
        page = pages.joinpath("page.html").read_bytes()
        described = openapi.describe(settings)
        schema, docs = msgspec.json.encode(described), openapi.page(described).encode()
        routes = [
            Route("/v1/classify", self._classify, methods=["POST"]),
            Route("/v1/models", self._guarded(self._models)),
            Route("/v1/models/{name:path}/reload", self._reload_model, methods=["POST"]),
            Route("/metrics", self._guarded(self._show_metrics)),
            Route("/healthz", lambda request: _json({"status": "alive"})),
            Route("/readyz", self._ready),
            Route("/openapi.json", lambda request: Response(schema, media_type=JSON)),
            Route("/docs", lambda request: Response(docs, media_type="text/html", headers=_PAGE_HEADERS)),
            Route("/", lambda request: Response(page, media_type="text/html", headers=_PAGE_HEADERS)),
        ]
        self.asgi = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})

    async def _classify(self, request: Request) -> Response:
        """Read, queue, wait, write. What goes wrong on the way is an answer too."""
        began, seen = time.monotonic(), _Seen()
        try:
            response = await self._answer(request, seen)
        except BadRequest as error:
            response = _error(error.status, str(error))
        except Refused as error:
            response = _error(503, str(error), {"retry-after": str(error.retry_after)})
        except (Gone, ClientDisconnect):
            response = Response(status_code=_GONE)  # which nobody reads
        finally:
            self._held -= seen.held
        seconds = time.monotonic() - began
        self._metrics.answered(seen.model, response.status_code, seen.texts, seconds)
        if self._settings.log_requests:
            self._log(request, response, seen, seconds)
        return response

    async def _answer(self, request: Request, seen: _Seen) -> Response:
        self._check_token(request)
        kind = _kind(request)
        body = await self._body(request, seen)
        is_small = len(body) <= _AT_ONCE_BYTES
        query = dict(request.query_params)
        asked = self._read(kind, body, query) if is_small else await asyncio.to_thread(self._read, kind, body, query)
        name = asked.model or self._settings.default_model
        loaded = self._dispatcher.models.get(name)
        if loaded is None:
            raise BadRequest(404, f"there is no model of that name here, but {', '.join(self._dispatcher.models)}")
        seen.model = name
        reads = loaded.model.reads
        texts = texts_of(asked, reads) if is_small else await asyncio.to_thread(texts_of, asked, reads)
        seen.texts = len(texts)
        if self._settings.log_texts:
            seen.logged = asked.texts if isinstance(asked.texts, list) else asked.texts.to_pylist()
        waiting = self._dispatcher.submit(name, texts, asked.top_k)
        gone: set[Callable[[], object]] = request.scope["gone"]
        forget = partial(self._dispatcher.forget, waiting)
        gone.add(forget)
        try:
            found = await waiting.answer
        finally:
            gone.discard(forget)
        arguments = (found, _labelling(waiting.model, asked))
        write = partial(answers.to_json, name, *arguments) if kind == JSON else partial(answers.to_arrow, *arguments)
        content = write() if len(texts) <= _AT_ONCE_TEXTS else await asyncio.to_thread(write)
        return Response(content, media_type=kind)

    def _read(self, kind: str, body: bytes, query: dict[str, str]) -> Asked:
        most = self._settings.max_texts
        if kind == ARROW:
            return from_arrow(body, query, most)
        if query:
            raise BadRequest(422, "with JSON, options are fields of the body, not of the URL")
        return from_json(body, most)

    async def _body(self, request: Request, seen: _Seen) -> bytes:
        """The whole body. Raises BadRequest for a long one, Refused where others hold too much memory."""
        most = self._settings.max_body_bytes
        too_long = BadRequest(413, f"the body is longer than {most:,} bytes")
        if int(request.headers.get("content-length", 0)) > most:
            raise too_long
        pieces = []
        async for piece in request.stream():
            seen.held += len(piece)
            self._held += len(piece)
            if seen.held > most:
                raise too_long
            if self._held > _BODIES_HELD * most:
                raise Refused("other requests hold too much memory")
            pieces.append(piece)
        return b"".join(pieces)

    async def _models(self, request: Request) -> Response:
        return _json({"models": [self._about(loaded) for loaded in self._dispatcher.models.values()]})

    def _about(self, loaded: LoadedModel) -> dict[str, Any]:
        model = loaded.model
        backends = {str(d.ready[loaded.key].backend): None for d in self._dispatcher.devices if loaded.key in d.ready}
        return {
            "name": loaded.name,
            "default": loaded.name == self._settings.default_model,
            "classes": list(model.classes),
            "reads": model.reads,
            "alphabet": model.alphabet.symbols,
            "meant_for": model.meant_for,
            "digest": model.digest,
            "loaded": loaded.number,
            "backend": next(iter(backends), None),
        }

    async def _reload_model(self, request: Request) -> Response:
        try:
            self._check_admin(request)
            name = request.path_params["name"]
            if name not in self._dispatcher.models:
                raise BadRequest(404, "there is no model of that name here")
            return _json(self._about(await self._reload(name)))
        except BadRequest as error:
            return _error(error.status, str(error))
        except BroadsheetError as error:
            return _error(409, f"the model was not reloaded, the one before stays: {error.message}")

    async def _ready(self, request: Request) -> Response:
        states = self._states()
        is_ready = bool(self._dispatcher.devices) and not self.is_stopping
        status = "stopping" if self.is_stopping else "ready" if is_ready else "not ready"
        return _json({"status": status, "engines": states}, 200 if is_ready else 503)

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.page(), media_type="text/plain; version=0.0.4")

    def _guarded(self, page: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self._check_token(request)
            except BadRequest as error:
                return _error(error.status, str(error))
            return await page(request)

        return guarded

    def _check_token(self, request: Request) -> None:
        token = self._settings.token
        if token is not None and not _shows(request, token):
            raise BadRequest(401, "show the token: Authorization: Bearer TOKEN")

    def _check_admin(self, request: Request) -> None:
        token = self._settings.admin_token
        if token is None:
            raise BadRequest(403, "this server was started without an admin token: send it SIGHUP")
        if not _shows(request, token):
            raise BadRequest(401, "show the admin token: Authorization: Bearer TOKEN")

    def _log(self, request: Request, response: Response, seen: _Seen, seconds: float) -> None:
        client = request.client
        fields = {
            "client": client.host if client else "",
            "status": response.status_code,
            "model": seen.model,
            "texts": seen.texts,
            "milliseconds": round(1000 * seconds, 2),
            **({"logged_texts": seen.logged} if seen.logged is not None else {}),
        }
        log.info("request", extra={"fields": fields})


class _Seen:
    """What is known of a request by the time it is over. held: bytes of its body."""

    def __init__(self) -> None:
        self.model, self.texts, self.held = "", 0, 0
        self.logged: list[str] | None = None


def _kind(request: Request) -> str:
    """The content type, which the answer has too. Raises BadRequest for any but the two."""
    given = request.headers.get("content-type", "")
    kind, _, parameters = given.partition(";")
    kind = kind.strip().lower()
    if kind == JSON and parameters.strip().lower().replace('"', "") in ("", "charset=utf-8"):
        return JSON
    if kind == ARROW and not parameters:
        return ARROW
    raise BadRequest(415, f"the content type must be {JSON} (in UTF-8) or {ARROW}")


def _shows(request: Request, token: str) -> bool:
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), token.encode())


def _labelling(model: Model, asked: Asked) -> Labelling:
    """What a job would say of each row, with these options."""
    names = Names(multi_label=model.is_multi_label)
    return Labelling(model.classes, asked.top_k, asked.scores, names, thresholds=model.thresholds)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    more = {"www-authenticate": "Bearer"} if status == 401 else {}
    return Response(msgspec.json.encode({"error": message}), status, {**(headers or {}), **more}, JSON)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return _error(error.status_code, error.detail, headers)
