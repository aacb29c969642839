"""The examples, and what pages quote, run as a user runs them."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
import zstandard
from commands import PROGRAMS
from conftest import ROOT, Command, CommandHere, random_model
from s3 import Folder

from broadsheet import pipeline
from broadsheet.pipeline.ecosystem.onnx import to_onnx
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.serve.metrics import Metrics
from broadsheet.pipeline.serve.openapi import describe
from broadsheet.pipeline.serve.settings import Settings

datasets, kubernetes_validate = map(pytest.importorskip, ("datasets", "kubernetes_validate"))

SHARDS = ROOT / "examples" / "shards"


@pytest.fixture(scope="module")
def path() -> str:
    """The path on which a script finds the installed `broadsheet`."""
    return f"{PROGRAMS}:{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["examples/batch.sh"], [sys.executable, "examples/batch.py"]])
def test_a_batch_example_tells_its_result_by_json_and_exit_code(path: str, tmp_path: Path, command: list[str]) -> None:

    def run(source: Path) -> subprocess.CompletedProcess[str]:
        arguments = [*command, str(source), str(tmp_path / "out")]
        return subprocess.run(
            arguments, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )

    done = run(ROOT / "examples" / "articles.csv")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["rows_written"] == 100
    assert summary["exit_code"] == 0
    if command[0] == sys.executable:
        return
    again = run(ROOT / "examples" / "articles.csv")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["rows_this_run"] == 0
    wrong = run(ROOT / "examples" / "nothing.csv")
    assert wrong.returncode in (2, 3)
    assert not wrong.stdout
    assert "Traceback" not in wrong.stderr


def _of_kubernetes() -> list[str]:
    (container,) = yaml.safe_load((SHARDS / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    return [*container["command"], *container["args"]]


def _of_batch() -> list[str]:
    return json.loads((SHARDS / "aws_batch.json").read_text())["containerProperties"]["command"]


def _of_skypilot() -> list[str]:
    return ["bash", "-c", yaml.safe_load((SHARDS / "skypilot.yaml").read_text())["run"]]


@pytest.mark.slow
def test_the_examples_of_shares_label_each_its_own(tmp_path: Path, broadsheet_here: CommandHere) -> None:
    """Each example's own command line is used, and all lead to the same command. A stand-in for a container's runtime
    runs what follows the image.
    """
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text("the market fell as oil rose\n" * (number + 1))
    runtimes = tmp_path / "bin"
    runtimes.mkdir()
    of_image = 'while [ "$1" != {} ]; do shift; done'
    for name, script in (
        ("broadsheet", "printf '%s\\n' \"$@\""),
        ("apptainer", f'{of_image.format("an.sif")}; shift; exec "$@"'),
        ("enroot", f'[ "$1" = create ] || {{ {of_image.format("broadsheet")}; exec "$@"; }}'),
    ):
        (runtimes / name).write_text(f"#!/bin/sh\n{script}\n")
        (runtimes / name).chmod(0o755)
    source, out = f"{tmp_path}/in/*.txt", str(tmp_path / "out")
    given = {"PATH": f"{runtimes}:{os.environ['PATH']}", "HOME": str(tmp_path), "INPUT": source, "OUTPUT": out}
    given |= {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "2"}
    slurm: list[object] = [SHARDS / "slurm_array.sh", "--max-unread", "1%"]  # as in the other examples
    container: list[object] = [SHARDS / "container.sh", "2/3", source, out, "--max-unread", "1%"]
    said = {
        subprocess.run(
            command, env={**os.environ, **given, "SHARES": "3", **more}, check=True, stdout=subprocess.PIPE
        ).stdout.decode()
        for command, more in (
            (_of_kubernetes(), {"JOB_COMPLETION_INDEX": "1"}),
            (_of_batch(), {"AWS_BATCH_JOB_ARRAY_INDEX": "1"}),
            (_of_skypilot(), {"SHARE": "2"}),
            (slurm, {"SLURM_ARRAY_TASK_MAX": "2"}),  # some tasks run again
            (slurm, {"SLURM_ARRAY_TASK_MAX": "3", "SHARES": ""}),
            (container, {"RUNTIME": "apptainer", "IMAGE": "an.sif"}),
            (container, {"RUNTIME": "enroot", "IMAGE": "an.sqsh"}),
        )
    }
    (arguments,) = said
    code, told = broadsheet_here(*arguments.splitlines())
    assert code == 0, told
    manifest = json.loads((tmp_path / "out/share-2/_manifest.json").read_text())
    assert (manifest["fingerprint"]["settings"]["shard"], manifest["totals"]["rows_written"]) == ("2/3", 2)


@pytest.mark.slow
def test_labels_are_added_in_a_bucket_day_by_day(s3: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(ROOT / "examples" / "bucket.py"))["main"]
    assert main(s3.url, s3.endpoint) == 0
    said = capsys.readouterr().out
    assert "1 new file; 1 file labelled before" in said
    assert said.splitlines()[-1] == f"{s3.url}/labels: 200 labels of 200 articles"


@pytest.mark.slow
def test_a_web_corpus_in_a_bucket_is_filtered_as_its_page_says(
    s3: Folder, broadsheet_in_process: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model replaces the one of quality, and pandas gives the expected rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    replace(random_model(7, length=123, classes=2), classes=("high", "low")).save("quality.safetensors")
    rows = [
        {
            "id": f"a{i}",
            "doc": {"text": f"page {i * i} of {i % 7}", "language": "en" if i % 3 else "de"},
            "url": f"u{i}",
        }
        for i in range(90)
    ]
    for number in range(3):
        lines = "".join(json.dumps(row) + "\n" for row in rows[number::3])
        s3.write(f"crawl/{number}.jsonl.zst", zstandard.compress(lines.encode()))
    page = (ROOT / "docs" / "web_corpus.md").read_text().replace("s3://corpus", s3.url)
    for block in re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for command in block.splitlines():
            done = broadsheet_in_process(*shlex.split(command)[1:])
            assert done.returncode == 0, (command, done.stderr)
    labels = pd.concat(map(pd.read_parquet, (io.BytesIO(s3.read(n)) for n in s3.names() if "labels/parts/" in n)))
    best = pd.concat(map(pd.read_parquet, (io.BytesIO(s3.read(n)) for n in s3.names() if "best/parts/" in n)))
    ranked = labels.sort_values("score_high", ascending=False, kind="stable")
    counts = {"de": 3, "en": 6}  # a tenth of each language
    expected = {name for one, count in counts.items() for name in ranked[ranked["doc.language"] == one]["id"][:count]}
    assert {*best["id"]} == expected
    assert {*best["url"]} == {name.replace("a", "u") for name in expected}
    assert len(pd.read_csv("best.csv")) == 2


@pytest.mark.slow
def test_the_first_hour_goes_without_a_stumble(path: str, tmp_path: Path) -> None:
    script = [ROOT / "examples" / "first_hour.sh", tmp_path / "work"]
    run = subprocess.run(script, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1].startswith("all ")


@pytest.mark.slow
def test_examples_for_other_tools_do_what_they_say(
    small_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small model replaces theirs. All examples give the labels of one classifier."""
    model, source = tmp_path / "small.safetensors", str(ROOT / "examples" / "articles.csv")
    small = replace(small_model, frame="text")
    small.save(model)
    (tmp_path / "small.onnx").write_bytes(to_onnx(small))

    def example(name: str, *arguments: object, **options: object) -> Any:
        return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](*map(str, arguments), **options)

    rows = pd.read_csv(source)
    with pipeline.load(model, device="cpu") as classifier:
        labels = classifier.predict(rows.title + " " + rows.text)
        first = classifier(rows.text[0]).label
    counts = Counter(labels)
    assert example("lazy_dask", source, tmp_path / "lazy", model, labels[0]) == counts[labels[0]]
    assert dict(example("duckdb_query", source, model)) == counts
    assert len(example("polars_query", source, model)) == 10
    assert example("onnx_runtime", tmp_path / "small.onnx", source, model) == labels
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert example("hugging_face", source, tmp_path / "labels", model) == (first, len(rows))
    pipeline.close()


@pytest.mark.slow
def test_the_example_for_scikit_learn_runs() -> None:
    main = runpy.run_path(str(ROOT / "examples" / "sklearn_scores.py"))["main"]
    assert (
        min(main(str(ROOT / "examples" / "articles.csv"), ngrams=1 << 12, length=123, device="cpu")) > 0.5
    )  # of four topics


@pytest.mark.slow
@pytest.mark.parametrize("page", ["tutorial", "filter", "wrong_labels", "training"])
def test_what_a_page_says_can_be_done_in_its_order(
    broadsheet_in_process: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """`make demo` comes first, and leaves a folder `labels`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    make = (ROOT / "Makefile").read_text().replace("\\\n\t", "").replace("$(BIN)/", "")
    demo = re.findall(r"^\t(broadsheet .+)", make, re.MULTILINE)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    told = set[str]()
    for kind, block in [("sh", "\n".join(demo)), *blocks]:
        if kind == "text":
            expected = pd.read_csv(io.StringIO(block)).drop(columns="score")
            (part,) = Path("suspects/parts").iterdir()
            assert pd.read_csv(part)[["row", "title", "label", "truth"]].equals(expected)
            continue
        if kind == "python":
            exec(compile(block, f"{page}.md", "exec"), {})
            continue
        for line in block.replace("\\\n", "").splitlines():
            command, _, code = line.partition("  # exit code ")
            if line.startswith("broadsheet "):
                done = broadsheet_in_process(*shlex.split(command)[1:])
                assert done.returncode == int(code or 0), (line, done.stderr)
                told |= {" ".join(each.split()) for each in done.stdout.splitlines()}
            elif not line.startswith(("python3 -m venv", ". .venv", "pip install")):
                subprocess.run(["bash", "-c", line], check=True)
    assert {f"rows {counts}" for counts in re.findall(r"`(\d+ read = [^`]+)`", text)} <= told


@pytest.mark.slow
def test_what_the_readme_quotes_is_printed(
    broadsheet_in_process: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores are compared to three digits, because the others depend on the processor."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "README.md").read_text()
    (console,) = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for command, quoted in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE):
        lines = (line.strip() for line in broadsheet_in_process(*shlex.split(command)[1:]).stdout.splitlines())
        assert [line for line in quoted.splitlines() if line != "…" and line.strip() not in lines] == []
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    capsys.readouterr()
    exec(
        compile(code, "README.md", "exec"),
        {"frame": pd.read_csv("examples/articles.csv").rename(columns={"text": "body"})},
    )
    quoted = "\n".join(line.removeprefix("# ") for line in code.splitlines() if line.startswith("# "))
    assert [re.sub(r"(\.\d{3})\d+", r"\1", each).split() for each in (quoted, capsys.readouterr().out)] == [
        re.sub(r"(\.\d{3})\d+", r"\1", quoted).split()
    ] * 2
    given, label, score = re.search(r'^7,"(.+)" +→ +7,(\w+),([\d.]+)$', text, re.MULTILINE).groups()
    with pipeline.load("ag-news") as classifier:
        found = classifier(given)
    assert (found.label, f"{found.score:.3f}") == (label, score)


@pytest.mark.slow
def test_rows_that_tell_too_little_are_named_as_the_page_says(broadsheet_here: CommandHere, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\n" + "Сборная победила в финале чемпионата\n" * 30 + '" "\n' * 7)
    code, told = broadsheet_here("classify", tmp_path / "in.csv", "-o", tmp_path / "out")
    quoted = re.findall(
        r"^```\n(\d+ rows gave .*?)^```$", (ROOT / "docs" / "explain.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert code == 0
    assert [" ".join(each.split()) in " ".join(told.split()) for each in quoted] == [True], told


def test_kubernetes_takes_the_examples_and_what_they_name_is_there(broadsheet_here: CommandHere) -> None:
    """Kubernetes' own schemas, which allow no other field, check the examples. Two kinds come from other projects, and
    have no schema here.
    """
    files = {file.stem: list(yaml.safe_load_all(file.read_text())) for file in (ROOT / "examples/kubernetes").iterdir()}
    documents = [each for found in files.values() for each in found]
    for each in documents:
        if each["apiVersion"].split("/")[0] not in ("keda.sh", "monitoring.coreos.com"):
            kubernetes_validate.validate(each, "1.37", strict=True)
    kinds = ["Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "ScaledObject", "PodMonitor"]
    assert sorted(each["kind"] for each in documents) == sorted(kinds)
    (container,) = files["broadsheet"][0]["spec"]["template"]["spec"]["containers"]
    command, *flags = container["args"]
    _, printed = broadsheet_here(command, "--help")
    assert [flag for flag in flags if flag.partition("=")[0] not in printed] == []
    assert f"--port={container['ports'][0]['containerPort']}" in flags
    paths = describe(Settings({"ag-news": "ag-news"}))["paths"]
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    assert [path for path in probes if path not in paths] == []
    named = set(re.findall(r"broadsheet_[a-z_]+", str(documents)))
    assert named == {"broadsheet_target_used_share", "broadsheet_queue_texts"}
    assert all(name in Metrics().page().decode() for name in named)
    triggers = files["keda"][0]["spec"]["triggers"]
    assert all(isinstance(value, str) for trigger in triggers for value in trigger["metadata"].values())
