"""Several models in one pass, and several jobs at a time on one cluster: each label is that of the model alone. On a
GPU, text is copied and encoded once for models that read alike.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from conftest import Command, CommandHere, random_model
from distributed import Client
from gpu import hostile_texts, needs_gpu, random_texts

from broadsheet import pipeline
from broadsheet.pipeline import ModelError, UsageError, classify, label, verify
from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.cpu import CpuEngine
from broadsheet.pipeline.engine.open import opened
from broadsheet.pipeline.errors import NoRoom
from broadsheet.pipeline.labelling.engines import EngineCache
from broadsheet.pipeline.labelling.scored import Scoring, score
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.several import forget_models, heads_of, load_models

TEXTS = [f"Article {i} of the day, on {'sport' if i % 3 else 'a café, and money'} " * (1 + i % 4) for i in range(60)]
KINDS = [f"class {i % 3}" for i in range(58)] + ["wind", "class 4"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models that read alike, and one with other classes, another alphabet and a greater length."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "a": random_model(seed=1, length=123),
        "b": random_model(seed=2, length=123),
        "c": replace(random_model(seed=3, symbols="abcdefgh é", length=150, classes=2), classes=("wind", "class 1")),
    }
    for name, model in made.items():
        model.save(folder / f"{name}.safetensors")
    return {name: folder / f"{name}.safetensors" for name in made}


@pytest.fixture(scope="module")
def news(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("news") / "in.csv"
    rows = [f'{kind},"{text}"\n' for kind, text in zip(KINDS, TEXTS, strict=True)]
    path.write_text("kind,text\n" + "".join(rows) + "class 1\n")
    return path


@pytest.mark.slow
def test_a_pass_with_several_models_gives_what_each_alone_gives(
    models: dict[str, Path], news: Path, client: Client, tmp_path: Path
) -> None:
    options = {"label_column": "kind", "scores": True, "top_k": 2, "chunk_size": 30, "client": client}
    report = classify(news, tmp_path / "out", model=models.values(), **options)
    rows = report.to_arrow()
    for format_ in ("csv", "jsonl"):
        same = classify(news, tmp_path / format_, model=models.values(), format=format_, **options)
        assert same.to_arrow().equals(rows)
        assert verify(tmp_path / format_) == verify(tmp_path / "out")
    assert rows.column_names[:5] == ["file", "row", "a_label", "a_score", "truth"]
    for of_one, (name, path) in zip(report.models, models.items(), strict=True):
        alone = classify(news, model=path, **options)
        expected = alone.to_arrow().filter(pa.compute.field("reason").is_null())
        for column in expected.column_names:
            if column in ("file", "row", "n_chars", "truth", "reason"):
                continue
            assert rows[f"{name}_{column}"].equals(expected[column]), (name, column)
        assert of_one.labels == alone.tally.labels
        assert of_one.accuracy == alone.accuracy
        assert of_one.confusion is not None
        assert alone.confusion is not None
        assert of_one.confusion.without_truth == alone.confusion.without_truth
        assert str(path) in str(report)
        assert f"{alone.accuracy:.2%}" in str(report)
    assert rows["truth"].to_pylist() == [*KINDS[:59], None]
    totals = verify(tmp_path / "out")
    assert totals.rows_written == 60
    assert len(totals.others) == 2


def test_a_folder_of_several_models_is_resumed_updated_partitioned_and_checked(
    models: dict[str, Path], news: Path, client: Client, tmp_path: Path, broadsheet_here: CommandHere
) -> None:
    inputs, out = tmp_path / "inputs", tmp_path / "out"
    inputs.mkdir()
    (inputs / "1.csv").write_bytes(news.read_bytes())
    both = {"model": [models["a"], models["b"]], "client": client, "chunk_size": 16, "partition_by": "label"}
    where = {"where": "a_score > 0.2 and b_label != 'class 3'"}
    classify(inputs, out, **both, **where)
    assert {path.name.partition("=")[0] for path in (out / "parts").iterdir()} == {"a_label"}
    whole = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file() and "_runs" not in path.parts}
    first = min((out / "_entries").glob("part-*.json"))
    first.unlink()
    classify(inputs, out, **both, **where, resume=True)
    now = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file() and "_runs" not in path.parts}
    assert now == whole
    with pytest.raises(UsageError, match="another model"):
        classify(inputs, out, **{**both, "model": models["a"]}, **where, resume=True)
    (inputs / "2.csv").write_bytes(news.read_bytes())
    assert classify(inputs, out, **both, **where, update=True).rows_read == 122
    assert verify(out, input=True).rows_read == 122
    entry = json.loads(first.read_text())
    entry["others"][0]["unknown_chars"] += 1
    first.write_text(json.dumps(entry))
    code, said = broadsheet_here("verify", out)
    assert code == 1
    assert "labels or counts in its entry" in said
    with pytest.raises(UsageError, match="no class 'Wind'"):
        classify(inputs, tmp_path / "no", **both, where="b_label == 'Wind'")


@pytest.mark.slow
def test_the_command_the_pipe_the_estimate_and_label_take_several_models(
    models: dict[str, Path], news: Path, broadsheet_in_process: Command, tmp_path: Path
) -> None:
    both = ["--model", models["a"], "--model", models["b"], "--device", "cpu"]
    page = tmp_path / "page.html"
    wanted = ["--label-column", "kind", "--json", "--report", page]
    done = broadsheet_in_process("classify", news, *both, "-o", tmp_path / "out", *wanted)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["models"]
    assert [each["model"] for each in said] == [str(models["a"]), str(models["b"])]
    assert all(each["truth"]["rows"] == 58 for each in said)
    assert all(f"<td>{each['truth']['accuracy']:.2%}</td>" in page.read_text() for each in said)
    expected = classify(news, model=models["b"]).to_arrow()
    piped = broadsheet_in_process("classify", news, *both, "-o", "-")
    assert [json.loads(line)["b_label"] for line in piped.stdout.splitlines()] == expected["label"].to_pylist()
    dry = broadsheet_in_process("classify", news, *both, "-o", tmp_path / "dry", "--dry-run")
    assert dry.returncode == 0
    assert "b.safetensors" in dry.stdout.replace("\n", "")
    frame = label(pa.table({"text": TEXTS}), model=[models["a"], models["b"]])
    assert frame["b_label"].to_pylist() == expected["label"].to_pylist()[:60]
    assert frame.column_names[1:5] == ["a_label", "a_score", "b_label", "b_score"]


def test_two_models_of_one_name_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "a.safetensors"
    other.write_bytes(models["b"].read_bytes())
    with pytest.raises(UsageError, match="two models are called 'a'"):
        classify(["x"], model=[models["a"], other])


@pytest.mark.slow
def test_a_model_by_its_name_stays_loaded_while_its_file_stays(models: dict[str, Path], tmp_path: Path) -> None:
    """A changed file is loaded anew, even if another file of the same size replaced it."""
    one, other = list(models.values())[:2]
    path = tmp_path / "model.safetensors"
    path.write_bytes(one.read_bytes())
    (first,) = load_models(str(path)).loaded
    assert load_models(path).loaded[0] is first
    assert load_models(path, "all").loaded[0] is not first
    (tmp_path / "new").write_bytes(other.read_bytes())
    (tmp_path / "new").replace(path)
    assert load_models(path).loaded[0].digest != first.digest
    path.unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_models(path)
    (shipped,) = load_models("ag-news").loaded
    forget_models()
    assert load_models("ag-news").loaded[0] is not shipped


@pytest.mark.slow
def test_two_jobs_at_once_with_two_models_share_a_cluster(models: dict[str, Path], client: Client) -> None:
    """Both engines stay on the workers, and the results are those of each job alone."""
    alone = {name: classify(TEXTS, model=models[name]).to_arrow() for name in "ab"}

    def held() -> set[int]:
        found = import_module("broadsheet.pipeline.labelling.engines").ENGINES.engines
        return {id(engine) for engine in found.values()}

    def run(name: str) -> list[pa.Table]:
        options = {"model": models[name], "client": clients[name], "chunk_size": 5}
        return [classify(TEXTS, **options).to_arrow() for _ in range(3)]

    with Client(client.scheduler.address, security=client.security, set_as_default=False) as other:
        clients = {"a": client, "b": other}
        with ThreadPoolExecutor(2) as pool:
            found = dict(zip("ab", pool.map(run, "ab"), strict=True))
    assert all(table.equals(alone[name]) for name in "ab" for table in found[name])
    before = client.run(held)
    run("a")
    assert client.run(held) == before  # no engine was loaded again
    assert all(len(engines) >= 2 for engines in before.values())


class Counted:
    """Counts the engines in a process that has room for a limited number, as seen from outside."""

    room = 2
    open_now: ClassVar[set[Counted]] = set()

    def __init__(self, model: Model) -> None:
        if len(Counted.open_now) >= Counted.room:
            raise NoRoom("no room")
        self.inner = CpuEngine(model, 1)
        Counted.open_now.add(self)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def close(self) -> None:
        self.inner.close()
        Counted.open_now.remove(self)


def test_where_memory_is_short_the_engine_used_longest_ago_makes_room(small_model: Model) -> None:
    loaded = EngineCache()
    loads: list[str] = []

    def loader(key: str):
        def load() -> Engine:
            engine = Counted(small_model)
            loads.append(key)
            return engine

        return load

    for key in "abc":
        loaded.offer(key, loader(key))
    for key in "abac":
        with loaded.use([key]):
            pass
    assert loads == ["a", "b", "c"]
    assert set(loaded.engines) == {"a", "c"}
    with loaded.use(["a", "c"]) as [(first, _), _], pytest.raises(NoRoom), loaded.use(["b"]):
        pass  # an engine that is in use is never closed
    with loaded.use(["a"]) as [(first, _)]:
        loaded.withdraw("a")
        assert first in Counted.open_now  # its task continues to its end
    assert first not in Counted.open_now
    assert set(loaded.engines) == {"c"}
    with pytest.raises(pipeline.BroadsheetError, match="does not have the job's model"), loaded.use(["a"]):
        pass
    empty: list[bool] = []
    loaded.when_empty = lambda: empty.append(True)
    loaded.withdraw("b")
    assert not empty
    loaded.withdraw("c")
    assert empty
    assert not Counted.open_now


def test_an_engine_that_is_offered_for_a_block_is_loaded_meanwhile_and_closed_after(small_model: Model) -> None:
    loaded = EngineCache()
    may_load, loads = threading.Event(), list[str]()

    def load() -> Engine:
        may_load.wait(60)  # engines that must load at once would hang here
        loads.append("a")
        return Counted(small_model)

    def fail() -> Engine:
        raise pipeline.UsageError("there is no such precision")

    with loaded.offered({"a": load, "b": fail}):
        assert not loads  # the block goes on while the engine loads
        loaded.offer("a", load)  # as a worker's plugin does
        may_load.set()
        with loaded.use(["a"]) as [(engine, _)]:
            assert engine in Counted.open_now
        loaded.withdraw("a")
        assert engine in Counted.open_now
        with pytest.raises(pipeline.UsageError, match="no such precision"), loaded.use(["b"]):
            pass
    assert loads == ["a"]
    assert not Counted.open_now


# Several models on a GPU: text is copied and encoded once for models that read alike, and the bits are those of each
# model alone.


def encoders(engine: Engine) -> list[str]:
    """A list to which each kernel that encodes is added when it is launched."""
    launched: list[str] = []

    def watch(kernel, grid, arguments) -> None:
        if "encode" in kernel.name:
            launched.append(kernel.name)

    engine.network.watcher = watch
    return launched


@needs_gpu
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_models_that_read_alike_share_the_ids_and_keep_their_bits(model: Model, precision: str) -> None:
    articles = random_texts(5, 3000) + hostile_texts() + random_texts(6, 9000)
    texts = Texts.of([article for article in articles if _is_utf8(article)])
    others = [random_model(seed=8), replace(random_model(seed=9), frame="text"), random_model(seed=3, length=200)]
    models = [model, *others]
    with opened(models, "cuda", precision) as engines:
        scoring = [Scoring(2, True) for _ in models]
        alone = [engine.classify(texts, 2, True) for engine in engines]
        counts = [encoders(engine) for engine in engines]
        together = score(texts, engines, scoring)
        for expected, found in zip(alone, together, strict=True):
            for name in ("labels", "scores", "all_scores", "n_chars", "truncated", "unknown_chars"):
                assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
        assert counts[0]
        assert counts[3]  # the model reads another length
        assert not counts[1]
        assert not counts[2]


def _is_utf8(article: bytes) -> bool:
    try:
        article.decode()
    except UnicodeDecodeError:
        return False
    return True


@needs_gpu
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_heads_say_what_models_of_their_own_say(model: Model, precision: str) -> None:
    texts = Texts.of([article for article in random_texts(5, 3000) if _is_utf8(article)])
    names = ("a: x", "a: y", "b: x", "b: y")
    both = replace(model, classes=names, heads=(("a", 2), ("b", 2)))
    heads = heads_of(both)
    with opened([both], "cuda", precision) as together, opened(heads, "cuda", precision) as alone:
        scoring = [Scoring(2, True), Scoring(1, False)]
        found, expected = score(texts, together, scoring), score(texts, alone, scoring)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-5)
        sure = theirs.scores[:, 0] > 0.5 + 1e-4
        assert (ours.labels[sure] == theirs.labels[sure]).all()
    np.testing.assert_allclose(found[0].all_scores, expected[0].all_scores, atol=1e-5)
    assert found[1].all_scores is None
