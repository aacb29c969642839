"""Clients of other servers, pointed at this server's URL: what they get. And traces."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa
import pytest
from conftest import examples, random_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import wait_until
from serving import ARROW, Server, serving

from broadsheet.pipeline.model.charcnn import Model

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

JSON = {"content-type": "application/json"}
HTTP = httpx.Client(timeout=240)
TEXTS = ["Stocks fell on Monday.", 'naïve 🎉, "quoted"\nand in two lines', "", "x" * 300]


class Receiver:
    """An OpenTelemetry collector that keeps the spans sent to it."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        spans, services = self.spans, self.services

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                for resource in trace_service.ExportTraceServiceRequest.FromString(body).resource_spans:
                    services.update(
                        a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
                    )
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def find(self, trace: str, name: str) -> list[Any]:
        """Return each matching span once. A client sends spans again that are not acknowledged in time."""
        found = {each.span_id: each for each in self.spans if each.trace_id.hex() == trace and each.name == name}
        return [*found.values()]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()


@pytest.fixture(scope="module")
def server(small_model: Model, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("protocols")
    replace(random_model(seed=5, length=123), classes=("a", "b", "c", "d")).save(folder / "one.safetensors")
    replace(small_model, thresholds=(0.2, 0.3, 0.2, 0.4)).save(folder / "several.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with serving(
            *("--model", f"team/one={folder / 'one.safetensors'}"),
            *("--model", f"several={folder / 'several.safetensors'}"),
            *("--target-ms", 240_000, "--max-texts", 60, "--max-queue", 50, "--max-body-mb", 1),
        ) as found:
            yield found


def scores_of(server: Server, texts: list[str], model: str = "team/one") -> list[dict[str, float]]:
    """Return the score of each class, from a request in our own form."""
    classes = next(each["classes"] for each in server.client().models() if each["name"] == model)
    found = server.client().classify(texts, model=model, scores=True)
    return [{name: result[f"score_{name}"] for name in classes} for result in found]


def ranked(scores: dict[str, float]) -> list[dict[str, Any]]:
    return [{"label": n, "score": s} for n, s in sorted(scores.items(), key=lambda item: -item[1])]


def post(server: Server, path: str, body: Any, headers: dict[str, str] = JSON) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HTTP.post(server.url + path, content=content, headers=headers)


def test_the_log_names_the_route_and_the_id_of_a_request(server: Server) -> None:
    """A valid id from a proxy is used, and the answer has it too."""
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a text"]}]}
    given = {"from-a-proxy:1": True, "no id": False, "x" * 200: False}
    for number, is_taken in given.items():
        answer = post(server, "/v2/models/team/one/infer", body, {**JSON, "X-Request-Id": number})
        assert answer.status_code == 200, answer.text
        while (told := server.wait_for("request"))["id"] != answer.headers["x-request-id"]:
            pass
        assert told["route"] == "/v2/models/{name:path}/infer"
        assert (told["id"] == number) == is_taken


@pytest.mark.slow
def test_hugging_faces_client(server: Server) -> None:
    """It posts to the URL that it was given, as a client of an endpoint does."""
    from huggingface_hub import InferenceClient

    client = InferenceClient(model=server.url, provider="hf-inference")
    wanted = ranked(scores_of(server, TEXTS[:1])[0])
    for url in (server.url, f"{server.url}/predict"):
        found = InferenceClient(model=url, provider="hf-inference").text_classification(TEXTS[0])
        assert [{"label": each.label, "score": each.score} for each in found] == wanted
    assert len(client.text_classification(TEXTS[0], top_k=2)) == 2
    raw = client.text_classification(TEXTS[0], function_to_apply="none")
    powers = np.exp([each.score for each in raw])
    assert powers / powers.sum() == pytest.approx([each["score"] for each in wanted], rel=1e-5)
    assert client.health_check() is True
    info = client.get_endpoint_info()
    assert (info["model_id"], info["max_input_length"]) == ("team/one", 123)
    assert info["model_type"]["classifier"]["id2label"] == {"0": "a", "1": "b", "2": "c", "3": "d"}


def test_text_embeddings_inference(server: Server) -> None:
    wanted = [ranked(scores) for scores in scores_of(server, TEXTS)]
    assert post(server, "/predict", {"inputs": TEXTS[0]}).json() == wanted[0]
    assert post(server, "/predict", {"inputs": [TEXTS[0]]}).json() == wanted[0]
    assert post(server, "/predict", {"inputs": [[text] for text in TEXTS], "unknown": 1}).json() == wanted
    assert post(server, "/predict", {"inputs": TEXTS, "truncate": True}).json() == wanted
    for body, status, told in (
        ({"inputs": TEXTS, "truncate": False}, 413, "text 3 is longer than the 123 characters"),
        ({"inputs": [["a", "b"]]}, 422, "not a pair"),
        ({"inputs": []}, 400, "empty"),
        ({"inputs": ["a"] * 51}, 413, "more than 50 texts"),
        ({"inputs": "a", "truncation_direction": "Left"}, 422, "truncation_direction"),
        ({"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}}, 422, "softmax"),
        ({"texts": ["a"]}, 422, "the field `inputs` is missing: give it, a string or a list"),
    ):
        answer = post(server, "/predict", body)
        assert (answer.status_code, answer.json()["error_type"]) == (status, "empty" if status == 400 else "validation")
        assert told in answer.json()["error"]
    assert post(server, "/predict", {"inputs": "a"}, {"content-type": "text/plain"}).status_code == 415


def test_the_form_of_vllm_and_openais_list_of_models(server: Server) -> None:
    listed = HTTP.get(f"{server.url}/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["team/one", "several"]
    answer = post(server, "/classify", {"model": listed["data"][0]["id"], "input": TEXTS}).json()
    assert (answer["object"], answer["model"], answer["id"][:9]) == ("list", "team/one", "classify-")
    assert answer["usage"]["prompt_tokens"] == sum(min(len(text), 123) for text in TEXTS)
    for number, (found, scores) in enumerate(zip(answer["data"], scores_of(server, TEXTS), strict=True)):
        assert found == {
            "index": number,
            "label": max(scores, key=scores.__getitem__),
            "probs": list(scores.values()),
            "num_classes": 4,
        }
    assert post(server, "/classify", {"input": TEXTS[0], "user": "me"}).json()["data"] == answer["data"][:1]
    (logits,) = post(server, "/classify", {"model": "several", "input": "a", "use_activation": False}).json()["data"]
    (probs,) = scores_of(server, ["a"], "several")
    assert 1 / (1 + np.exp(-np.array(logits["probs"]))) == pytest.approx(list(probs.values()), rel=1e-5)
    for older in ("activation", "softmax"):
        asked = {"model": "several", "input": "a", older: False, "truncate_prompt_tokens": -1}
        assert post(server, "/classify", asked).json()["data"] == [logits]
        (kept,) = post(server, "/classify", asked | {"use_activation": True}).json()["data"]
        assert kept["probs"] == list(probs.values())
    refused = post(server, "/classify", {"input": "a", "truncate_prompt_tokens": 5})
    assert (refused.status_code, "truncate_prompt_tokens" in refused.json()["error"]["message"]) == (400, True)
    missing = post(server, "/classify", {"model": "none", "input": "a"})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, 404)


def test_the_form_of_infinity(server: Server) -> None:
    """The requests are those of its client, version 0.0.78, which cannot be installed beside this project's
    packages.
    """
    sent = {"input": TEXTS, "model": "default/not-specified", "raw_scores": False}
    answer = post(server, "/classify", sent).json()
    assert answer["object"] == "classify"
    assert answer["data"] == [ranked(scores) for scores in scores_of(server, TEXTS)]
    assert set(answer["usage"]) == {"prompt_tokens", "total_tokens"}


@pytest.mark.parametrize("binary", [True, False])
def test_tritons_client(server: Server, binary: bool) -> None:
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(urlsplit(server.url).netloc, network_timeout=240)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    for name in ("team/one", "several"):
        assert client.is_model_ready(name)
        metadata = client.get_model_metadata(name, "1")
        assert [each["name"] for each in metadata["outputs"]] == ["label", "score", "scores"]
        given = triton.InferInput(metadata["inputs"][0]["name"], [len(TEXTS), 1], "BYTES")
        given.set_data_from_numpy(np.array(TEXTS, object)[:, None], binary_data=binary)
        wanted = scores_of(server, TEXTS, name)
        for outputs in (
            None,
            [triton.InferRequestedOutput("scores", binary), triton.InferRequestedOutput("label", False)],
        ):
            found = client.infer(name, [given], request_id="7", outputs=outputs)
            assert found.get_response()["id"] == "7"
            sizes = [each.get("parameters", {}).get("binary_data_size") for each in found.get_response()["outputs"]]
            assert sizes[-1 if outputs is None else 0] == (4 * 4 * len(TEXTS) if binary or outputs is None else None)
            assert found.as_numpy("scores").tolist() == [[np.float32(s) for s in each.values()] for each in wanted]
            labels = [each.decode() if isinstance(each, bytes) else each for each in found.as_numpy("label").tolist()]
            assert labels == [max(scores, key=scores.__getitem__) for scores in wanted]
    with pytest.raises(triton.InferenceServerException, match="no model of that name"):
        client.infer("none", [given])
    assert not client.is_model_ready("none")
    client.close()


def test_bodies_of_the_open_inference_protocol_are_checked(server: Server) -> None:
    path, whole = "/v2/models/team/one/infer", {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    for inputs, status, told in (
        ([whole, whole], 422, "one input"),
        ([whole | {"datatype": "FP32"}], 422, "BYTES"),
        ([whole | {"shape": [2]}], 422, "shape"),
        ([whole | {"shape": [1, 2], "data": [["a", "b"]]}], 422, "shape [1, 2]"),
        ([whole | {"shape": [1, 2], "data": ["a", "b"]}], 422, "shape [1, 2]"),
        ([whole | {"shape": [2, 1, 1], "data": ["a", "b"]}], 422, "shape [2, 1, 1]"),
        ([whole | {"data": [1]}], 422, "data[0]"),
        ([{"name": "x", "shape": [1], "datatype": "BYTES"}], 400, "binary_data_size"),
    ):
        answer = post(server, path, {"inputs": inputs})
        assert (answer.status_code, told in answer.json()["error"]) == (status, True)
    answer = post(server, path, {"inputs": [whole], "outputs": [{"name": "logits"}]})
    assert answer.status_code == 422
    assert post(server, path, {"inputs": [whole]}, {"inference-header-content-length": "9" * 5000}).status_code == 400
    head = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 6}}]}
    sent = json.dumps(head).encode()

    @settings(max_examples=examples(40), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(tensor=st.binary(min_size=6, max_size=6), length=st.integers(0, 300) | st.just(len(sent)))
    def ask(tensor: bytes, length: int) -> None:
        answer = post(server, path, sent + tensor, {"inference-header-content-length": str(length)})
        assert answer.status_code in (200, 400, 422), answer.text

    ask()
    good = post(server, path, sent + b"\x02\0\0\0\xc3\xa9", {"inference-header-content-length": str(len(sent))})
    assert good.status_code == 200


def test_sagemakers_container(server: Server) -> None:
    assert HTTP.get(f"{server.url}/ping").status_code == 200
    wanted = [ranked(scores) for scores in scores_of(server, TEXTS)]
    pairs = [{"label": [r["label"] for r in row[:2]], "prob": [r["score"] for r in row[:2]]} for row in wanted]
    body = {"instances": TEXTS, "configuration": {"k": 2}}
    assert post(server, "/invocations", body).json() == pairs
    lines = "".join(json.dumps({"source": text, "k": 2}) + "\n" for text in TEXTS).encode()
    answer = post(server, "/invocations", lines, {"content-type": "application/jsonlines"})
    assert answer.headers["content-type"] == "application/jsonlines"
    assert [json.loads(line) for line in answer.text.splitlines()] == pairs
    assert post(server, "/invocations", {"inputs": [[text] for text in TEXTS]}).json() == wanted
    best = [[row[0]["label"], row[0]["score"]] for row in wanted]
    written = io.StringIO()
    csv.writer(written).writerows([text] for text in TEXTS)
    answer = post(server, "/invocations", written.getvalue().encode(), {"content-type": "text/csv; charset=utf-8"})
    assert [[label, float(score)] for label, score in csv.reader(io.StringIO(answer.text))] == best
    plain = [text.replace("\n", " ") for text in TEXTS]
    headers = {"content-type": "text/plain", "accept": "application/json"}
    answer = post(server, "/invocations", "\r\n".join(plain).encode(), headers)
    assert [each["label"][0] for each in answer.json()] == [
        ranked(scores)[0]["label"] for scores in scores_of(server, plain)
    ]
    for body, kind, status in (
        (b"a,b\n", "text/csv", 422),
        (b'"a', "text/csv", 400),
        (b"caf\xe9", "text/plain", 400),
        (b'{"k": 1}\n', "application/jsonlines", 422),
        (b"\x93NUMPY", "application/x-npy", 415),
    ):
        assert post(server, "/invocations", body, {"content-type": kind}).status_code == status


# No text at all, a number, a lone surrogate, bytes that are not UTF-8, and a list.
@pytest.mark.parametrize("bad", [b"null", b"3", b'"\\ud800"', b'"caf\xe9"', b'["a", "b"]'])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/classify", b'{"texts": [%s]}'),
        ("/predict", b'{"inputs": [%s]}'),
        ("/classify", b'{"input": [%s]}'),
        ("/invocations", b'{"instances": [%s]}'),
        ("/v2/models/team/one/infer", b'{"inputs":[{"name":"x","shape":[4],"datatype":"BYTES","data":[%s]}]}'),
    ],
)
def test_one_bad_text_of_several_is_named(server: Server, path: str, body: bytes, bad: bytes) -> None:
    for place in (0, 2, 3):
        texts = [b'"a"', b'"\\ud83c\\udf89 caf\xc3\xa9"', b'"c"']
        texts.insert(place, bad)
        answer = post(server, path, body % b", ".join(texts))
        assert answer.status_code in (400, 422)
        assert f"[{place}]" in answer.text


def test_the_line_of_a_bad_text_is_named(server: Server) -> None:
    for kind, body, status in (
        ("application/jsonlines", b'{"source": "a"}\n\n{"source": null}\n', 422),
        ("text/plain", b"a\nb\ncaf\xe9\n", 400),
        ("text/csv", b"a\nb\ncaf\xe9\n", 400),
    ):
        answer = post(server, "/invocations", body, {"content-type": kind})
        assert (answer.status_code, "line 3" in answer.json()["error"]) == (status, True)
    schema = pa.schema([("text", pa.string())])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.table({"text": ["a", "b"]}, schema))
        writer.write_table(pa.table([pa.array([b"c", b"\xff"]).view(pa.string())], schema=schema))
    answer = post(server, "/v1/classify", sink.getvalue().to_pybytes(), ARROW)
    assert answer.status_code == 400
    assert re.search("begins with text 2: .* index 1", answer.json()["error"])


def test_a_wrong_field_is_told_with_the_right_one(server: Server) -> None:
    for body, told in (
        ({"text": ["a"]}, "unknown field `text`: give `texts`, a list"),
        ({"texts": ["a"], "topk": 2}, "unknown field `topk`: give `top_k`, an integer"),
        (
            {"input": ["a"]},
            "unknown field `input`: there are `texts`, a list; `model`, a string; `top_k`, an integer; ",
        ),
        ({}, "the field `texts` is missing: give it, a list"),
    ):
        answer = post(server, "/v1/classify", body)
        assert (answer.status_code, told in answer.json()["error"]) == (422, True), answer.text


def test_a_request_is_traced_with_its_batch(server: Server, receiver: Receiver) -> None:
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    asked = post(server, "/predict", {"inputs": TEXTS}, JSON | {"traceparent": f"00-{trace}-{parent}-01"})
    assert asked.status_code == 200
    unsampled = trace.replace("4", "5")
    post(server, "/predict", {"inputs": TEXTS}, JSON | {"traceparent": f"00-{unsampled}-{parent}-00"})
    wait_until(lambda: bool(receiver.find(trace, "POST /predict") and receiver.find(trace, "batch")))
    (request,), (batch,) = receiver.find(trace, "POST /predict"), receiver.find(trace, "batch")
    assert (request.parent_span_id.hex(), batch.parent_span_id) == (parent, request.span_id)
    assert request.start_time_unix_nano <= batch.start_time_unix_nano
    assert batch.end_time_unix_nano <= request.end_time_unix_nano
    told = {each.key: each.value for each in request.attributes}
    assert (told["http.response.status_code"].int_value, told["broadsheet.texts"].int_value) == (200, len(TEXTS))
    told = {each.key: each.value for each in batch.attributes}
    assert (told["broadsheet.batch.texts"].int_value, told["broadsheet.device"].string_value) == (len(TEXTS), "cpu")
    assert receiver.services == {"broadsheet"}
    assert receiver.find(unsampled, "batch") == []


def test_the_gauge_of_the_target_counts_what_was_used(server: Server) -> None:
    def used() -> float:
        page = HTTP.get(f"{server.url}/metrics").text
        return float(next(line for line in page.splitlines() if line.startswith("broadsheet_target_used")).split()[1])

    post(server, "/predict", {"inputs": TEXTS})
    assert 0 < used() < 1
