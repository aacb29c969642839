"""Disturbances of a server while clients send requests: its models change, or its processes are killed or stopped.

Each answer must be complete and equal to what a job writes with one of the two models, or a refusal that says why. In
the end the server must answer with the model that its file holds, exit with code 0, and leave no process.
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
    """Kill or stop one of the server's processes that run a module, and check that the server recovers."""
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
    """Return two models that share no score and no name of a class.

    For each, it returns the bytes of its file, and the labels that a job with this model gives the texts.
    """
    one = load_model(source)
    two = replace(one, classes=tuple(f"not {name}" for name in one.classes), temperature=2 * one.temperature)
    labelled = [(model.to_bytes(), classify(_TEXTS, model=model, scores=True, device=device)) for model in (one, two)]
    return [(data, labels.to_arrow().drop_columns(["file", "row", "reason"])) for data, labels in labelled]


class _Server:
    """A server, the clients that send it requests, and the methods that disturb it.

    Attributes
    ----------
    run : Run
        The command of the server. `start` replaces it.
    url : str
        The address of the server, which it has again after another start.
    file, admin : Path
        The files of its model and of the administrator's token.
    models : list of (bytes, Table)
        The two models of `_models`.
    more : tuple of str
        Options for a cluster; empty for a server with engine processes of its own.
    over : Event
        Set when the clients are to stop.
    asking : list of Future
        The clients.

    """

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
        """Start the server, at the same port as before, and wait until it is ready. Raises Wrong."""
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
        # Start it, and read its address from the log.
        command = [sys.executable, "-m", "broadsheet", "serve", *options, "--admin-token-file", str(self.admin)]
        run = self.run = self.trial.launch(command)
        if not self.trial.wait_until(run, lambda: '"message": "ready"' in run.text):
            raise Wrong(f"the server has not begun: {run.text[-400:]!r}")
        lines = (json.loads(line) for line in run.text.splitlines() if line.startswith("{"))
        self.url = next(line["url"] for line in lines if line["message"] == "listening")

    def processes(self, module: str) -> list[psutil.Process]:
        """Return the processes that run a module. In a cluster, the workers take the place of engine processes."""
        if self.more and module == "engine_process":
            return self.run.workers()
        children = psutil.Process(self.run.process.pid).children()
        return [child for child in children if any(word.endswith(f".{module}") for word in child.cmdline())]

    def reload(self, data: bytes | None = None) -> None:
        """Replace the model's file, and ask the server to read it again, without waiting for that.

        data: the new file; by default, one of the two models or a file that is no model, at random.
        """
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
        """Send a request, and return "model N" for the model that answered, or "refused" or "lost".

        Raises Hung if there is no answer, and Wrong for a wrong answer.
        """
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
        """Send requests until `over` is set, and count their results."""
        draw, counts = random.Random(seed), Counter[str]()
        with Client(self.url, timeout=SECONDS) as client:
            while not self.over.is_set():
                counts[self.ask(client, draw.randrange(len(_TEXTS)), draw.choice([1, 1, 2, 40]))] += 1
                self.over.wait(0.01)
        return counts

    def leave(self) -> Counter[str]:
        """Stop the clients, and return how many results of each kind they had. Raises Hung, Wrong."""
        self.over.set()
        counts = sum((future.result() for future in self.asking), Counter[str]())
        self.trial.note(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
        return counts

    def settle(self) -> Counter[str]:
        """Load a model, wait until the server answers with it, and end the server. Raises Hung, Wrong."""
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
        """Send the server a signal, and wait until it has exited. Raises Wrong for an exit code other than 0."""
        self.run.process.send_signal(number)
        if code := self.trial.code(self.run):
            raise Wrong(f"exit code {code}: {self.run.text[-400:]!r}")


@contextmanager
def _asked(trial: Trial) -> Iterator[_Server]:
    """Start a server and its clients, and stop the clients at the end of the block."""
    server = _Server(trial)
    with server.pool:
        try:
            yield server
        finally:
            server.over.set()
