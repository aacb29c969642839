"""Guards the dashboard: only a person who has its link may open it.

Dask's dashboard has no login, and other users of the host can reach loopback. If a scheduler imports this module as it
starts, its HTTP server answers 404 to every request for a page, file or websocket, unless three conditions hold: the
path begins with this job's token, the `Host` header names this host's loopback interface, and an `Origin` is the page's
own. The last two are needed because a web page elsewhere can make a browser send requests here, also through DNS.

Dask documents no interface for this, so all code that depends on it is in this file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import dask
import distributed.node
from distributed.http.routing import RoutingApplication
from tornado.httputil import HTTPServerRequest
from tornado.web import ErrorHandler

from .private import HAS_BOKEH, TOKEN

_ORIGINS = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
_LOOPBACK = ("127.0.0.1:*", "localhost:*", "[::1]:*")  # any port, because a tunnel may use a different one


class GuardedApplication(RoutingApplication):
    """Dask's HTTP server, below the token. Without a token in the configuration, it is as Dask made it.

    `when_opened` is called once, before the first admitted request is answered.
    """

    when_opened: Callable[[], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._token = dask.config.get(TOKEN, None)
        # Behind a proxy such as JupyterHub's, browsers name other hosts: those that the user has configured for Dask.
        self._hosts = (*_LOOPBACK, *(host for host in dask.config.get(_ORIGINS) if host != "*"))

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Find the handler of a request. For a page, remove the token from the path first."""
        if self._token is not None:
            if not (HAS_BOKEH and self._admits(request)):
                return self.get_handler_delegate(request, ErrorHandler, {"status_code": 404})
            from bokeh.core.properties import validate  # most jobs end without a request

            # An update of a page turns validation off for the whole process, for a moment. Two updates at once, by two
            # schedulers in threads of one notebook, may leave it off: then no page could be made any more.
            validate(True)
            prefix = f"/{self._token}"
            request.path, request.uri = request.path.removeprefix(prefix), (request.uri or "").removeprefix(prefix)
        if self.when_opened is not None:
            add, self.when_opened = self.when_opened, None
            add()
        return super().find_handler(request, **kwargs)

    def _admits(self, request: HTTPServerRequest) -> bool:
        from bokeh.server.util import check_allowlist  # most jobs end without a request

        parts, origin = request.path.split("/", 2), request.headers.get("Origin")
        if len(parts) < 3 or not secrets.compare_digest(parts[1].encode(), self._token.encode()):
            return False
        if not check_allowlist(request.host, self._hosts):
            return False
        page = request.host if origin is None else urlsplit(origin).netloc
        return bool(page == request.host or check_allowlist(page, self._hosts[len(_LOOPBACK) :]))


distributed.node.RoutingApplication = GuardedApplication
