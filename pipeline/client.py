"""Clients that ask a server for labels. The command `broadsheet serve` starts the server."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from .errors import BroadsheetError, UsageError, install

try:
    import httpx
except ImportError as error:
    raise ImportError(f"a client needs httpx: {install('serve')}") from error

_ARROW = "application/vnd.apache.arrow.stream"


class ServerError(BroadsheetError):
    """The error that a server answers instead of labels. Exit code 1.

    Parameters
    ----------
    message : str
        The server's message.
    status : int
        The HTTP status: 503 if the server is too busy to answer in time.
    retry_after : int or None
        The number of seconds after which it is worth asking again.

    Attributes
    ----------
    status, retry_after
        As in the parameters.

    Examples
    --------
    >>> with broadsheet.Client("http://127.0.0.1:8000") as client:
    ...     try:
    ...         client.classify(["Stocks fell on Monday."], model="another")
    ...     except broadsheet.ServerError as error:
    ...         print(error.status)
    404

    """

    def __init__(self, message: str, status: int, retry_after: int | None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class _Connection:
    """The connection that both kinds of clients open."""

    _kind: Callable[..., Any]

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        token: str | None = None,
        certificates: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        verify = True if certificates is None else ssl.create_default_context(cafile=os.fspath(certificates))
        self._http = self._kind(base_url=url, headers=headers, verify=verify, timeout=timeout)


class Client(_Connection):
    """A connection to a server, for any number of threads. It is a context manager, which closes it.

    Parameters
    ----------
    url : str
        The URL at which the server listens.
    token : str, optional
        The server's token, if it was started with a token file.
    certificates : str, optional
        A PEM file with the certificate of the server, or of its signer. Default: those that the system trusts.
    timeout : float
        The seconds to wait for an answer.

    Examples
    --------
    >>> with broadsheet.Client("http://127.0.0.1:8000") as client:
    ...     sorted(client.classify(["Stocks fell on Monday as oil rose."])[0])
    ['label', 'n_chars', 'score', 'truncated', 'unknown_chars']

    """

    _kind = httpx.Client

    def classify(
        self, texts: Sequence[str], model: str | None = None, top_k: int = 1, scores: bool = False
    ) -> list[dict[str, Any]]:
        """Label texts.

        Parameters
        ----------
        texts : sequence of str
            The texts.
        model : str, optional
            The name of one of the server's models. Default: its first.
        top_k : int
            The number of labels for each text. From 2 on, a result has `top_labels` and `top_scores`.
        scores : bool
            Whether to return the probability of every class too, as `score_CLASS`.

        Returns
        -------
        list of dict
            One dict for each text, in order, as `classify` writes it: `label`, `score`, `n_chars`, `truncated`,
            `unknown_chars`.

        Raises
        ------
        ServerError
            If the server refuses the request, or cannot be reached.
        UsageError
            For a str instead of a list.

        """
        body = _body(texts, model, top_k, scores)
        return list(self._ask("POST", "/v1/classify", json=body).json()["results"])

    def classify_arrow(
        self, texts: pa.Array | pa.ChunkedArray, model: str | None = None, top_k: int = 1, scores: bool = False
    ) -> pa.Table:
        """Label a column of texts without JSON on the way, for programs with many texts.

        Parameters
        ----------
        texts : pyarrow.Array or pyarrow.ChunkedArray
            The texts, without nulls.
        model, top_k, scores
            As in `classify`.

        Returns
        -------
        pyarrow.Table
            One row for each text, in order, with the same columns as in `classify`.

        Raises
        ------
        ServerError
            As in `classify`.

        """
        return _table(self._ask("POST", "/v1/classify", **_stream(texts, model, top_k, scores)).content)

    def models(self) -> list[dict[str, Any]]:
        """Return what the server says about its models: `name`, `classes`, how many characters it `reads`, and more."""
        return list(self._ask("GET", "/v1/models").json()["models"])

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            return _checked(self._http.request(method, path, **content))
        except httpx.HTTPError as error:
            raise _unreachable(self._http.base_url, error) from error


class AsyncClient(_Connection):
    """A `Client` whose methods are awaited. It is an asynchronous context manager.

    Parameters
    ----------
    url, token, certificates, timeout
        As in `Client`.

    Examples
    --------
    >>> async def lengths(texts):
    ...     async with broadsheet.AsyncClient("http://127.0.0.1:8000") as client:
    ...         return [result["n_chars"] for result in await client.classify(texts)]
    >>> asyncio.run(lengths(["Stocks fell on Monday as oil rose."]))
    [34]

    """

    _kind = httpx.AsyncClient

    async def classify(
        self, texts: Sequence[str], model: str | None = None, top_k: int = 1, scores: bool = False
    ) -> list[dict[str, Any]]:
        """Label texts.

        Parameters
        ----------
        texts, model, top_k, scores
            As in `Client.classify`.

        Returns
        -------
        list of dict
            As in `Client.classify`, which also documents the errors.

        """
        body = _body(texts, model, top_k, scores)
        return list((await self._ask("POST", "/v1/classify", json=body)).json()["results"])

    async def classify_arrow(
        self, texts: pa.Array | pa.ChunkedArray, model: str | None = None, top_k: int = 1, scores: bool = False
    ) -> pa.Table:
        """Label a column of texts.

        Parameters
        ----------
        texts, model, top_k, scores
            As in `Client.classify_arrow`.

        Returns
        -------
        pyarrow.Table
            As in `Client.classify_arrow`, which also documents the errors.

        """
        answer = await self._ask("POST", "/v1/classify", **_stream(texts, model, top_k, scores))
        return _table(answer.content)

    async def models(self) -> list[dict[str, Any]]:
        """Return the server's description of its models, as in `Client.models`."""
        return list((await self._ask("GET", "/v1/models")).json()["models"])

    async def close(self) -> None:
        """Close the connection."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            return _checked(await self._http.request(method, path, **content))
        except httpx.HTTPError as error:
            raise _unreachable(self._http.base_url, error) from error


def _body(texts: Sequence[str], model: str | None, top_k: int, scores: bool) -> dict[str, Any]:
    if isinstance(texts, str):
        raise UsageError("a str is not a list of texts: give a list of strings")
    return {"texts": list(texts), "model": model, "top_k": top_k, "scores": scores}


def _stream(texts: pa.Array | pa.ChunkedArray, model: str | None, top_k: int, scores: bool) -> dict[str, Any]:
    table, sink = pa.table({"text": texts}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    parameters: dict[str, Any] = {"top_k": top_k, "scores": scores} | ({} if model is None else {"model": model})
    return {"content": bytes(sink.getvalue()), "headers": {"content-type": _ARROW}, "params": parameters}


def _table(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        message = str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        message = answer.reason_phrase
    wait = answer.headers.get("retry-after", "")
    raise ServerError(f"{answer.url}: {message}", answer.status_code, int(wait) if wait.isdigit() else None)


def _unreachable(url: httpx.URL, error: httpx.HTTPError) -> ServerError:
    return ServerError(f"{url} does not answer: {error or type(error).__name__}", 0, None)
