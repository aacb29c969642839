"""What can happen to a server while clients ask it: its models change, its processes are killed, stopped or ended.

Each answer must be what a job writes with one of two models, whole, or a refusal that says why; in the end the server
answers by the model that its file holds, ends with exit code 0, and leaves no process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache

import httpx
import psutil
import pyarrow as pa

from benchmarks.chaos.jobs import texts_of
from benchmarks.chaos.trial import SECONDS, Hung, Run, Trial, Verdict, Wrong
from broadsheet.pipeline import Client, ServerError, classify, load_model

_TEXTS = pa.array(texts_of("server", 60))
_CLIENTS = 3
_TOKEN = "a-token-of-the-administrator"
_NO_MODEL = b"no model at all"


def reload_models(trial: Trial) -> Verdict:
    """a server's model replaced, also by what is none, and reloaded one to six times, by SIGHUP and by requests"""
    with _asked(trial) as server:
        for _ in range(trial.random.randint(1, 6)):
            server.reload()
            trial.pause(0, 1)
        if (counts := server.settle()).keys() & {"refused", "lost"}:
            raise Wrong(f"a reload cost answers: {counts}")
    return Verdict.IDENTICAL


def lose_an_engine(trial: Trial) -> Verdict:
    """a server's engine killed, or stopped for seconds, also during a reload"""
    return _lose(trial, "engine_process")


def lose_an_http_process(trial: Trial) -> Verdict:
    """a process that reads a server's requests killed, or stopped for seconds, also during a reload"""
    return _lose(trial, "http_process")


def kill_a_server(trial: Trial) -> Verdict:
    """a server killed, alone or with all its processes, and started again at its port"""
    with _asked(trial) as server:
        trial.pause(0, 2)
        send = trial.random.choice([server.run.process.send_signal, server.run.signal])
        send(signal.SIGKILL)
        trial.wait_for_its_processes(server.run)
        server.start()
        server.settle()
    return Verdict.IDENTICAL


def end_a_server(trial: Trial) -> Verdict:
    """a server ended by SIGTERM or SIGINT, also during a reload"""
    with _asked(trial) as server:
        trial.pause(0, 2)
        if trial.random.random() < 0.5:
            server.reload()
        server.end(trial.random.choice([signal.SIGTERM, signal.SIGINT]))
        server.leave()
    return Verdict.IDENTICAL


def _lose(trial: Trial, module: str) -> Verdict:
    with _asked(trial) as server:
        trial.pause(0, 1)
        if trial.random.random() < 0.5:
            server.reload()
            trial.pause(0, 0.5)
        chosen = trial.random.choice(server.processes(module))
        number = trial.random.choice([signal.SIGKILL, signal.SIGSTOP])
        trial.note(f"{number.name} to {chosen.cmdline()[-1][:60]}")
        with suppress(psutil.NoSuchProcess):
            chosen.send_signal(number)
            trial.pause(0.1, 8)
            chosen.send_signal(signal.SIGCONT)
        server.settle()
    return Verdict.IDENTICAL


@cache
def _models(source: str, device: str) -> list[tuple[bytes, pa.Table]]:
    """Two models that share neither a score nor the name of a class: the file of each, and the labels that a job gives
    the texts.
    """
    one = load_model(source)
    two = replace(one, classes=tuple(f"not {name}" for name in one.classes), temperature=2 * one.temperature)
    labelled = [(model.to_bytes(), classify(_TEXTS, model=model, scores=True, device=device)) for model in (one, two)]
    return [(data, labels.to_arrow().drop_columns(["file", "row", "reason"])) for data, labels in labelled]


class _Server:
    """A server, and what a trial does to it."""

    run: Run

    def __init__(self, trial: Trial) -> None:
        self.trial, self.url = trial, "http://127.0.0.1:0"
        self.file, self.admin = trial.folder / "news.safetensors", trial.folder / "admin"
        given = trial.job.command
        self.device = given[given.index("--device") + 1]
        self.models = _models(given[given.index("--model") + 1], self.device)
        self.file.write_bytes(self.models[0][0])
        self.admin.write_text(_TOKEN)
        self.more = ("--cluster", "cuda" if self.device == "cuda" else "local") if trial.random.random() < 0.3 else ()
        trial.note(" ".join(self.more) or "engines of its own")
        self.pool, self.over = ThreadPoolExecutor(), threading.Event()
        self.start()
        self.asking = [self.pool.submit(self._ask_on, trial.random.random()) for _ in range(_CLIENTS)]

    def start(self) -> None:
        options = ["--port", self.url.rpartition(":")[2], "--model", f"news={self.file}", *self.more]
        options += [
            "--device",
            self.device,
            "--http-processes",
            "2",
            "--target-ms",
            "60000",
            "--no-log-requests",
            "--log-format",
            "json",
        ]
        command = [sys.executable, "-m", "broadsheet", "serve", *options, "--admin-token-file", str(self.admin)]
        run = self.run = self.trial.launch(command)
        if not self.trial.wait_until(run, lambda: '"message": "ready"' in run.text):
            raise Wrong(f"the server has not begun: {run.text[-400:]!r}")
        lines = (json.loads(line) for line in run.text.splitlines() if line.startswith("{"))
        self.url = next(line["url"] for line in lines if line["message"] == "listening")

    def processes(self, module: str) -> list[psutil.Process]:
        """The processes that run a module; in place of engine processes, the workers of a cluster."""
        if self.more and module == "engine_process":
            return self.run.workers()
        children = psutil.Process(self.run.process.pid).children()
        return [child for child in children if any(word.endswith(f".{module}") for word in child.cmdline())]

    def reload(self, data: bytes | None = None) -> None:
        """Replace the model's file, by one of the models or by none, and have it read again; wait for nothing."""
        other = self.file.with_suffix(".other")
        other.write_bytes(data or self.trial.random.choice([_NO_MODEL, *(file for file, _ in self.models)]))
        os.replace(other, self.file)
        if data or self.trial.random.random() < 0.5:
            self.run.process.send_signal(signal.SIGHUP)
        else:
            self.pool.submit(self._request_reload, self.url)

    def _request_reload(self, url: str) -> None:
        headers = {"authorization": f"Bearer {_TOKEN}"}
        with suppress(httpx.TransportError):
            httpx.post(f"{url}/v1/models/news/reload", headers=headers, timeout=SECONDS)

    def ask(self, client: Client, first: int, count: int) -> str:
        """Which model has answered, "model N", or why there is no answer. Raises Hung, Wrong."""
        try:
            answer = client.classify_arrow(_TEXTS[first : first + count], scores=True)
        except ServerError as error:
            if isinstance(error.__cause__, httpx.TimeoutException):
                raise Hung(f"no answer within {SECONDS} s") from error
            if error.status not in (0, 503) or not error.message:
                raise Wrong(f"status {error.status}: {error.message}") from error
            return "refused" if error.status else "lost"
        for number, (_, labels) in enumerate(self.models):
            expected = labels.slice(first, count)
            if answer.column_names == expected.column_names and answer.equals(expected.cast(answer.schema)):
                return f"model {number}"
        raise Wrong(f"an answer by neither model: {answer.to_pylist()[:2]}")

    def _ask_on(self, seed: float) -> Counter[str]:
        draw, counts = random.Random(seed), Counter[str]()
        with Client(self.url, timeout=SECONDS) as client:
            while not self.over.is_set():
                counts[self.ask(client, draw.randrange(len(_TEXTS)), draw.choice([1, 1, 2, 40]))] += 1
                self.over.wait(0.01)
        return counts

    def leave(self) -> Counter[str]:
        """Let the clients ask no more; how many answers of each kind they had. Raises Hung, Wrong."""
        self.over.set()
        counts = sum((future.result() for future in self.asking), Counter[str]())
        self.trial.note(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
        return counts

    def settle(self) -> Counter[str]:
        """Load a model, wait until the server answers by it, and end the server. Raises Hung, Wrong."""
        number = self.trial.random.randrange(len(self.models))
        deadline = time.monotonic() + SECONDS
        self.reload(self.models[number][0])
        with Client(self.url, timeout=SECONDS) as client:
            while self.ask(client, 0, len(_TEXTS)) != f"model {number}":
                if time.monotonic() > deadline:
                    raise Hung(f"it does not answer by its model {SECONDS} s after the last reload")
                time.sleep(0.05)
        counts = self.leave()
        self.end(signal.SIGTERM)
        return counts

    def end(self, number: int) -> None:
        self.run.process.send_signal(number)
        if code := self.trial.code(self.run):
            raise Wrong(f"exit code {code}: {self.run.text[-400:]!r}")


@contextmanager
def _asked(trial: Trial) -> Iterator[_Server]:
    """A server that clients ask until they leave."""
    server = _Server(trial)
    with server.pool:
        try:
            yield server
        finally:
            server.over.set()
