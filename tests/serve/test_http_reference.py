"""The server's documents are right: the HTTP reference, the OpenAPI document, and the examples of the clients."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest
from conftest import ROOT, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import ARROW, JSON, Server, serving, stream

import broadsheet


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The administrator's token, in the file that the reference names."""
    found = tmp_path_factory.mktemp("serve") / "admin.token"
    found.write_text("a-token-of-some-length\n")
    found.chmod(0o600)
    return found


@pytest.fixture(scope="module")
def server(token: Path) -> Iterator[Server]:
    """A server of the shipped model, started as in the reference."""
    with serving("--admin-token-file", token, "--target-ms", 240_000) as found:
        yield found


@pytest.mark.slow
def test_the_reference_of_the_interface_is_what_is_answered(server: Server, token: Path) -> None:
    """curl sends each request of docs/http.md in order. Scores may differ in their last digits."""
    page = (ROOT / "docs" / "http.md").read_text()
    examples = re.findall(r"^\$ (curl .+)\n([{\[].+[}\]])$", page, re.MULTILINE)
    assert len(examples) == page.count("$ curl") == 16
    for command, answer in examples:
        command = command.replace("localhost:8000", urlsplit(server.url).netloc)
        told = json.loads(
            subprocess.run(["bash", "-c", command], cwd=token.parent, check=True, capture_output=True).stdout
        )
        wanted = json.loads(answer)
        for one, other in zip(all_of(told), all_of(wanted), strict=True):
            assert one == (pytest.approx(other, abs=1e-3) if isinstance(other, float) else other), command
        documented = httpx.get(f"{server.url}/docs").text
    for path in httpx.get(f"{server.url}/openapi.json").json()["paths"]:
        assert path.replace("{name}", "NAME") in page
        assert f"$SERVER{path.replace('{name}', 'ag-news')}" in documented


def all_of(value: object) -> list[object]:
    """Return the keys and values of JSON, without a backend's software and what is new in each answer."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in ("backend", "model_dtype", "id", "created")}
        return [one for key, each in kept.items() for one in (key, *all_of(each))]
    return [one for each in value for one in all_of(each)] if isinstance(value, list) else [value]


def of_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw values that a schema of the document allows."""
    kinds = [each["type"] for each in schema.get("anyOf", [schema])]
    made = []
    for kind in kinds:
        if kind == "object":
            wanted = {name: of_schema(each) for name, each in schema["properties"].items()}
            made.append(st.fixed_dictionaries({}, optional=wanted))
        elif kind == "array":
            made.append(st.lists(of_schema(schema["items"]), max_size=5))
        elif kind == "integer":
            made.append(st.integers(schema.get("minimum"), schema.get("maximum")))
        else:
            made.append({"string": st.text(), "boolean": st.booleans(), "null": st.none()}[kind])
    return st.one_of(made)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(alphabet=st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["texts", "model", "x"]), inner),
    max_leaves=6,
)


@pytest.mark.slow
def test_no_request_that_the_document_describes_or_nearly_so_ends_in_500(server: Server) -> None:
    document = httpx.get(f"{server.url}/openapi.json", timeout=240).json()
    schema = document["components"]["schemas"]["ClassifyRequest"]
    documented = set(document["paths"]["/v1/classify"]["post"]["responses"])
    arrow = bytearray(stream(pa.array(["a", "text", "é"])))
    answered = set()

    with httpx.Client(base_url=server.url, timeout=240) as http:

        @settings(max_examples=examples(120), deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(
            value=of_schema(schema) | ANYTHING,
            cut=st.none() | st.integers(0, 40),
            flips=st.lists(st.tuples(st.integers(0, len(arrow) - 1), st.integers(0, 255)), max_size=4),
            is_arrow=st.integers(0, 2).map(lambda number: number == 0),
            query=st.dictionaries(st.sampled_from(["model", "top_k", "scores", "x"]), st.text(max_size=5), max_size=2),
        )
        def ask(
            value: Any, cut: int | None, flips: list[tuple[int, int]], is_arrow: bool, query: dict[str, str]
        ) -> None:
            content = json.dumps(value).encode()[:cut]
            if is_arrow:
                changed = bytearray(arrow)
                for at, byte in flips:
                    changed[at] = byte
                content = bytes(changed)
            encoded = httpx.QueryParams({k: v.encode("utf-8", "replace").decode() for k, v in query.items()})
            answer = http.post(
                "/v1/classify", content=content, headers=ARROW if is_arrow else JSON, params=encoded if is_arrow else {}
            )
            assert str(answer.status_code) in documented - {"503"}, (content, query, answer.text)
            answered.add(answer.status_code)

        ask()
    assert {200, 400, 422} <= answered


@pytest.mark.parametrize("named", [broadsheet.Client, broadsheet.AsyncClient, broadsheet.ServerError])
def test_the_examples_of_the_clients_run(named: type, server: Server) -> None:
    text = (inspect.getdoc(named) or "").replace("http://127.0.0.1:8000", server.url)
    names = {"broadsheet": broadsheet, "asyncio": asyncio}
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, names, named.__name__, None, None)
    assert test.examples
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
