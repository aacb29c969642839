"""Models on the Hugging Face Hub, whose routes a local server serves: pushed, fetched, cached, pinned."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from encoders import needs_minilm, saved
from torch_folders import classifier

from broadsheet import pipeline
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.model_file import repository_of
from broadsheet.pipeline.model.several import Models

datasets = pytest.importorskip("datasets")
pytest.importorskip("huggingface_hub")

STEPS = """
import json, sys
from broadsheet import pipeline
from broadsheet.pipeline.errors import BroadsheetError
for url in sys.argv[2:]:
    try:
        if url.startswith("push "):
            print(json.dumps(pipeline.push(sys.argv[1], url[5:])))
        else:
            model = pipeline.load_model(url)
            print(json.dumps([model.name, model.digest]))
    except BroadsheetError as error:
        print(json.dumps({type(error).__name__: str(error)}))
"""


class Hub(BaseHTTPRequestHandler):
    """Repositories by name: their commits, oldest first, each with its files. blobs: uploaded files by SHA-256."""

    repositories: dict[str, list[dict[str, bytes]]]
    blobs: dict[str, bytes]
    asked: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(f"POST {self.path}")
        if self.path == "/api/repos/create":
            given = json.loads(body)
            name = "/".join(filter(None, [given.get("organization"), given["name"]]))
            self.repositories.setdefault(name, [])
            self._json({"url": self._url(name), "id": name})
        elif self.path == "/api/validate-yaml":
            self._json({"warnings": [], "errors": []})
        elif "/preupload/" in self.path:
            files = [f["path"] for f in json.loads(body)["files"]]
            modes = {True: "lfs", False: "regular"}
            kinds = [{"path": f, "uploadMode": modes[f.endswith(".safetensors")], "shouldIgnore": False} for f in files]
            self._json({"files": kinds})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": self._url(f"blob/{one['oid']}")}}}
                for one in json.loads(body)["objects"]
            ]
            self._json({"transfer": "basic", "objects": objects})
        else:
            name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            files = {}
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = self.blobs[value["oid"]]
            self.repositories[name].append(files)
            self._json({"commitUrl": self._url(name), "commitOid": _commit(len(self.repositories[name]) - 1)})

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.blobs[hashlib.sha256(data).hexdigest()] = data
        self._json({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        if self.path.startswith("/api/models/"):
            name = "/".join(self.path.removeprefix("/api/models/").split("/")[:2])
            commit = len(self.repositories[name]) - 1
            files = self.repositories[name][commit]
            if "/tree/" in self.path:  # newer versions of the library ask this way
                shown = {file: hashlib.sha1(data).hexdigest() for file, data in files.items()}
                self._json([{"type": "file", "path": f, "oid": oid, "size": len(files[f])} for f, oid in shown.items()])
            else:
                self._json({"id": name, "sha": _commit(commit), "siblings": [{"rfilename": file} for file in files]})
            return
        name, _, rest = self.path[1:].partition("/resolve/")
        revision, _, file = rest.partition("/")
        commits = self.repositories.get(name, [])
        number = next((i for i in range(len(commits)) if revision == _commit(i)), None)
        number = len(commits) - 1 if revision == "main" and commits else number
        if number is None or file not in commits[number]:
            missing = "Repo" if not commits else "Revision" if number is None else "Entry"
            self.send_response(404)
            self.send_header("X-Error-Code", f"{missing}NotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = commits[number][file]
        self.send_response(200)
        self.send_header("X-Repo-Commit", _commit(number))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _url(self, path: str) -> str:
        return f"http://{self.headers['Host']}/{path}"

    def log_message(self, *_: object) -> None:
        pass


def _commit(number: int) -> str:
    return hashlib.sha1(f"commit {number}".encode()).hexdigest()


@pytest.fixture
def hub() -> Iterator[tuple[type[Hub], str]]:
    class Ours(Hub):
        repositories, blobs, asked = {}, {}, []

    with ThreadingHTTPServer(("127.0.0.1", 0), Ours) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Ours, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_a_model_goes_to_the_hub_and_comes_back(
    hub: tuple[type[Hub], str], small_model_file: Path, tmp_path: Path
) -> None:
    server, url = hub
    env = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "of-a-test"}

    def steps(*steps: str, **more: str) -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-c", STEPS, small_model_file, *steps],
            env={**os.environ, **env, **more},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)),  # as on a laptop of 8 GB
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    digest = load_model(small_model_file).digest
    first = f"hf://user/topics@{_commit(0)}"
    pinned, fetched, nobody, old = steps("push user/topics", "hf://user/topics", "hf://user/nobody", f"{first[:-1]}0")
    assert pinned == first
    assert fetched == [first, digest]
    assert "no model.safetensors is to be had there" in nobody["ModelError"]
    assert "no model.safetensors is to be had there" in old["ModelError"]
    card = server.repositories["user/topics"][0]["README.md"].decode()
    assert card.startswith("---\nlibrary_name: broadsheet\n")
    assert "--model hf://user/topics" in card
    assert digest in card
    # A later commit does not change a pinned revision, and without the Hub, the cache has it.
    server.repositories["user/topics"].append({"model.safetensors": b"another"})
    again, broken = steps(first, "hf://user/topics")
    assert again == [first, digest]
    assert "ModelError" in broken
    assert steps(first, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="1") == [[first, digest]]


@pytest.mark.slow
@needs_minilm
def test_an_encoder_is_fetched_with_all_that_it_is_read_from(hub: tuple[type[Hub], str], tmp_path: Path) -> None:
    server, url = hub
    folder = saved(tmp_path / "folder")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server.repositories["user/encoder"] = [{**files, "README.md": b"of its authors", "pytorch_model.bin": b"a pickle"}]
    env = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "broadsheet", "convert", "hf://user/encoder", tmp_path / "it.safetensors"]
    done = subprocess.run(command, env={**os.environ, **env}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    model = load_model(tmp_path / "it.safetensors")
    assert model.digest == load_model(folder).digest
    assert model.card["origin"] == f"converted from hf://user/encoder@{_commit(0)}"
    got = {asked.rpartition("/")[2] for asked in server.asked if asked.startswith("GET") and "/resolve/" in asked}
    assert got == {*files}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed (extra torch)")
def test_an_encoder_of_pytorch_is_fetched_in_all_its_files(hub: tuple[type[Hub], str], tmp_path: Path) -> None:
    import transformers

    server, url = hub
    folder = classifier(tmp_path / "folder", "electra")
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="20KB")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server.repositories["user/large"] = [{**files, "modeling.py": b"raise SystemExit('code of a repository has run')"}]
    env = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "broadsheet", "convert", "hf://user/large", tmp_path / "it.safetensors"]
    done = subprocess.run(command, env={**os.environ, **env}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert load_model(tmp_path / "it.safetensors").digest == load_model(folder).digest
    got = {asked.rpartition("/")[2] for asked in server.asked if asked.startswith("GET") and "/resolve/" in asked}
    assert "modeling.py" not in got


def test_what_a_repository_is_called(small_model: Model) -> None:
    assert repository_of("hf://user/name@v1/2") == ("user/name", "v1/2")
    assert Models((replace(small_model, name="hf://user/name@v1/2"),)).short_names == ("name",)
    for url in ("hf://name", "hf://a/b/c", "hf://a/", "hf://a/b@"):
        with pytest.raises(UsageError, match="names no repository"):
            repository_of(url)


def test_datasets_go_in_and_come_out(small_model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    texts = ["Oil fell on Monday.", "The striker scored twice.", None]
    given = datasets.Dataset.from_dict({"body": texts, "label": [1, 0, 1]})
    given = given.cast_column("label", datasets.ClassLabel(names=["sport", "money"]))
    options = {"text_column": "body", "model": small_model_file, "device": "cpu"}
    labelled = pipeline.label(given, suffix="_found", **options)
    with pipeline.load(small_model_file, device="cpu") as classifier:
        wanted = classifier.predict(texts[:2])
    assert labelled["label_found"] == [*wanted, None]
    assert labelled["reason"] == [None, None, "the text is null"]
    assert labelled.features["label"] == given.features["label"]
    read = pipeline.label(given.to_iterable_dataset(), suffix="_found", **options)
    assert list(read) == list(labelled)
    generated = datasets.IterableDataset.from_generator(lambda: ({"body": text} for text in texts[:2]))
    assert [row["label"] for row in pipeline.label(generated, **options)] == wanted
    with pytest.raises(UsageError, match="already"):
        pipeline.label(given, **options)
    pipeline.classify(given, tmp_path / "out", **options)
    again = datasets.load_dataset("parquet", data_dir=str(tmp_path / "out" / "parts"), split="train")
    assert again["label"][:] == wanted
    pipeline.close()
