"""Serve like Broadsheet, but without queue and engine: python -m benchmarks.serve.noop_app PORT

Like Broadsheet, it uses Starlette and uvicorn.
"""

from __future__ import annotations

import sys

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def classify(request: Request) -> Response:
    """Answer each text with the same label."""
    asked = msgspec.json.decode(await request.body())
    results = [{"label": "none", "score": 1.0}] * len(asked["texts"])
    return Response(msgspec.json.encode({"results": results}), media_type="application/json")


if __name__ == "__main__":
    app = Starlette(routes=[Route("/v1/classify", classify, methods=["POST"])])
    uvicorn.run(app, port=int(sys.argv[1]), http="httptools", loop="uvloop", log_config=None, access_log=False)
