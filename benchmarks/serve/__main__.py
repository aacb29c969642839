"""Compare servers: the highest rate of requests at which the 99th percentile is within a target, and latency below it.

The peer has an environment of its own, which also has PyTorch, NumPy and the requirements of this project:

    python -m venv --system-site-packages peers && peers/bin/pip install litserve
    python -m benchmarks.serve --peers peers/bin --articles-csv test.csv --device cpu --each 1:100:4 64:2000:6 \
        --rounds 3 --server-cores 0 --client-cores 1 --output benchmarks/results/serve_cpu.json
    python -m benchmarks.serve --peers peers/bin --articles-csv test.csv --device cuda --each 1:20:10 64:20:10 \
        --load 6 --arrow --output benchmarks/results/serve_gpu.json

    python -m benchmarks.serve --peers peers/bin --articles-csv test.csv --device cuda --each 1:20:10 64:20:10 \
        --stacks Broadsheet LitServe Triton --wrk 1 8 64 256 --output benchmarks/results/serve_wrk_gpu.json

load.py sends requests when they are due, whether or not others have been answered. A rate counts if all requests were
answered, none was refused, and the 99th percentile is within the target. The benchmark first tunes the batch and the
waiting time of the peer, on GRID. It writes the output after each number of texts. (The records also have Ray Serve and
BentoML, which were slower than LitServe and are not measured any more.)

With --wrk, wrk sends the load (apt-get install wrk), on N connections that send the next request after each answer. The
servers take turns in rounds. One connection is a single client. "highest" is the highest of the rates at which all
requests were answered and the 99th percentile is within the target. Triton needs `pip install nvidia-pytriton`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks import record
from benchmarks.articles import ag_news_texts
from benchmarks.serve.stacks import OURS, STACKS, body_of, served

_SHARES = (0.1, 0.5, 0.8)
_STEPS, _FEW_STEPS = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 1.0), (0.3, 0.5, 0.7, 0.9)
"""The rates to try, as shares of the rate of the closed loop, until two in a row miss the target.

The first are for one text in a request; the others for many texts, and for tuning a peer.
"""

GRID = {
    "cpu": {"one": ((8, 2), (32, 5), (32, 20)), "many": ((2, 2),)},
    "cuda": {"one": ((16, 2), (64, 5)), "many": ((4, 2),)},
}
"""The pairs to try of requests in a batch and milliseconds to wait for more requests.

They depend on the device, and on whether a request has one text or many. Many texts are a batch already.
"""

_CLIENTS, _FEW_CLIENTS = 64, 4
"""The numbers of clients of the closed loop: the second for a CPU with many texts in a request."""

_ARROW_CLIENTS, _ARROW_TEXTS = 16, 1024
_OVERLOAD = 10.0
_WRK_BODIES = 100


def main() -> None:
    """Measure the servers, and write the results after each part."""
    parser = record.parser(__doc__, articles=True)
    parser.add_argument("--peers", type=Path, help="bin/ of the peer's environment")
    parser.add_argument("--stacks", nargs="+", default=STACKS[:2], choices=STACKS)
    parser.add_argument("--wrk", type=int, nargs="+", metavar="N", help="wrk in place of load.py, of N connections")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--each", type=_each, nargs="+", default=[(1, 100.0, 10.0)], help="TEXTS:TARGET_MS:SECONDS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tune", type=float, default=0.5, help="share of the seconds for tuning; 0: GRID's first")
    parser.add_argument("--overload", type=float, default=60.0, help="seconds at ten times the highest rate; 0: none")
    parser.add_argument("--client-cores", help="for the load, as taskset has them; servers get --server-cores")
    parser.add_argument("--server-cores")
    parser.add_argument("--load", type=int, default=1, metavar="N", help="processes of load.py")
    parser.add_argument("--arrow", action="store_true", help="Arrow streams of 1,024 texts")
    options = parser.parse_args()
    if "Triton" in options.stacks and not options.wrk:
        parser.error("Triton goes with --wrk: load.py does not speak its protocol")
    # Describe the machine, and keep the servers on their cores.
    about = record.about(options, rounds=options.rounds, grid=GRID[options.device])
    if options.server_cores:
        os.sched_setaffinity(0, _cores(options.server_cores))
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.json"
        texts.write_text(json.dumps(ag_news_texts(options.articles_csv)))
        bench = _Bench(options, texts)
        result: dict[str, Any] = {"about": about, "stacks": []}
        for more in bench.run():
            result["stacks"] += more.pop("stacks", [])
            result |= more
            record.write(result, options.output)


class _Bench:
    """Measures the servers.

    For each number of texts in a request, `_tuned` tunes a peer, `_highest` finds the highest rate in each round, and
    `_row` measures the latency below it. With wrk, `_by_wrk` does all of that.
    """

    def __init__(self, options: argparse.Namespace, texts: Path) -> None:
        self._options, self._texts = options, texts
        self._python = str(options.peers / "python")
        self._chosen: dict[str, tuple[int, float]] = {}
        self._target = self._seconds = 0.0

    def run(self) -> Iterator[dict[str, Any]]:
        """Yield the parts of the result, one after another."""
        options = self._options
        for size, self._target, self._seconds in options.each:
            if options.wrk:
                yield {"stacks": self._by_wrk(size)}
                continue
            rows = self._measured(size)
            yield {"stacks": rows}
            if OURS in options.stacks and options.overload and size == options.each[0][0]:
                yield {"overload": self._overload(rows[options.stacks.index(OURS)]["highest"], size)}
        _, self._target, self._seconds = options.each[0]
        if options.arrow and not options.wrk:
            yield {"arrow": self._arrow()}

    def _measured(self, size: int) -> list[dict[str, Any]]:
        """Measure all servers with `size` texts in a request, and return their rows of the result."""
        # Tune the peers.
        options, rows = self._options, []
        tuned = {stack: self._tuned(stack, size) for stack in options.stacks if stack != OURS}
        rounds: dict[str, list[dict[str, Any]]] = {stack: [] for stack in options.stacks}
        # Measure the highest rates in rounds, in which the servers take turns, and the latency below them.
        with ExitStack() as running:
            servers = {}
            for stack in options.stacks:
                servers[stack] = running.enter_context(self._served(stack, options.model))
                servers[stack].pause()
            for _ in range(options.rounds):
                for stack in options.stacks:
                    with servers[stack].awake() as url:
                        steps = _STEPS if size == 1 else _FEW_STEPS
                        rounds[stack].append(self._highest(url, size, steps, self._seconds))
                    print(stack, size, "a request:", rounds[stack][-1]["highest"], file=sys.stderr, flush=True)
            for stack in options.stacks:
                with servers[stack].awake() as url:
                    rows.append(self._row(stack, size, url, rounds[stack], tuned.get(stack)))
        # Measure each server without a model.
        for row in rows:
            with self._served(row["stack"], "no-op") as server:
                row["no_op"] = self._closed(server.url, size, self._seconds)
        return rows

    def _by_wrk(self, size: int) -> list[dict[str, Any]]:
        """Measure all servers with wrk, and return their rows: the medians for each number of connections."""
        # Start the servers, with the bodies of their requests in files, and measure in turns.
        options, texts = self._options, json.loads(self._texts.read_text())
        runs: dict[tuple[str, int], list[dict[str, Any]]] = {(s, n): [] for s in options.stacks for n in options.wrk}
        with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
            servers = {}
            for stack in options.stacks:
                bodies = [body_of(stack, texts[first : first + size]) for first in range(0, _WRK_BODIES * size, size)]
                (Path(folder) / stack).write_bytes(b"\n".join(bodies))
                if stack != OURS:
                    self._tune_by_wrk(stack, size, Path(folder) / stack)
                servers[stack] = running.enter_context(self._served(stack, options.model))
                servers[stack].pause()
            for _ in range(options.rounds):
                for stack, connections in runs:
                    with servers[stack].awake() as url:
                        result = self._wrk(url, Path(folder) / stack, connections)
                    runs[stack, connections].append(result)
                    print(stack, size, connections, result, file=sys.stderr, flush=True)
        # Describe the rounds.
        rows = []
        for stack in options.stacks:
            wrk = [{"connections": n, "rounds": runs[stack, n], **_medians(runs[stack, n])} for n in options.wrk]
            held = [row["rate"] for row in wrk if self._holds({"not_sent": 0, **row})]
            chosen = self._chosen.get(stack)
            about = {"stack": stack, "each": size, "target_ms": self._target, "seconds": self._seconds}
            rows.append({**about, "chosen": chosen, "highest": max(held, default=0.0), "wrk": wrk})
        return rows

    def _tune_by_wrk(self, stack: str, size: int, bodies: Path) -> None:
        """Choose the batch and the waiting time with which the most connections get answers at the highest rate."""
        grid, rates = GRID[self._options.device]["one" if size == 1 else "many"], []
        self._chosen[stack] = grid[0]
        if not self._options.tune:
            return
        for chosen in grid:
            self._chosen[stack] = chosen
            with self._served(stack, self._options.model) as server:
                rates.append((self._wrk(server.url, bodies, max(self._options.wrk))["rate"], chosen))
        self._chosen[stack] = max(rates)[1]

    def _wrk(self, url: str, bodies: Path, connections: int) -> dict[str, Any]:
        """Run wrk, and return its results with the rate of answers."""
        command = ["taskset", "-c", self._options.client_cores] if self._options.client_cores else []
        threads = min(connections, self._options.load)
        command += ["wrk", f"-t{threads}", f"-c{connections}", f"-d{self._seconds:g}s", "--timeout", "30s"]
        command += ["-s", str(Path(__file__).with_name("wrk.lua")), url, "--", str(bodies)]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        if completed.returncode:
            sys.exit(f"wrk of {url}: {completed.stdout}{completed.stderr}")
        result: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
        return {**result, "rate": result["answered"] / result["seconds"]}

    def _row(
        self, stack: str, size: int, url: str, rounds: list[dict[str, Any]], tuned: list[dict[str, Any]] | None
    ) -> dict[str, Any]:
        """Return a server's row of the result: its rates, and its latency below the highest of them.

        Parameters
        ----------
        stack : str
            The server, which is awake.
        size : int
            The number of texts in a request.
        url : str
            The URL of the server.
        rounds : list of dict
            What `_highest` measured in each round.
        tuned : list of dict or None
            What `_tuned` measured; None for a server that is not tuned.

        """
        # Collect the rates.
        highest = statistics.median(measured["highest"] for measured in rounds)
        row: dict[str, Any] = {"stack": stack, "each": size, "target_ms": self._target, "seconds": self._seconds}
        row |= {"highest": highest, "rounds": rounds}
        if tuned is not None:
            row |= {"batch": self._chosen[stack][0], "wait_ms": self._chosen[stack][1], "tuned": tuned}
        row["ceiling"] = statistics.median(measured["ceiling"] for measured in rounds)
        # Measure the latency.
        below = _SHARES if highest else ()
        row["below"] = [{"share": share, **self._open(url, share * highest, size, self._seconds)} for share in below]
        return row

    def _served(self, stack: str, model: str) -> Any:
        chosen = self._chosen.get(stack, (1, 0.0))  # our server ignores these
        return served(stack, self._python, model, self._options.device, self._target, *chosen)

    def _tuned(self, stack: str, size: int) -> list[dict[str, Any]]:
        """Measure the highest rate with each batch and waiting time of the grid, and choose the best pair."""
        tried: list[dict[str, Any]] = []
        grid = GRID[self._options.device]["one" if size == 1 else "many"]
        self._chosen[stack] = grid[0]
        for batch, wait in grid if self._options.tune and len(grid) > 1 else ():
            self._chosen[stack] = batch, wait
            with self._served(stack, self._options.model) as server:
                rates = self._highest(server.url, size, _FEW_STEPS, self._options.tune * self._seconds)
            tried.append({"batch": batch, "wait_ms": wait, "highest": rates["highest"], "ceiling": rates["ceiling"]})
        if tried:
            best = max(tried, key=lambda rates: (rates["highest"], rates["ceiling"]))
            self._chosen[stack] = best["batch"], best["wait_ms"]
        return tried

    def _highest(self, url: str, size: int, shares: tuple[float, ...], seconds: float) -> dict[str, Any]:
        """Find the highest rate that is within the target, in steps up to the rate of the closed loop."""
        ceiling = self._closed(url, size, seconds)
        highest, failed, steps = 0.0, 0, []
        for share in shares:
            rate = share * ceiling
            step = self._open(url, rate, size, seconds)
            steps.append({"rate": rate, **step})
            if self._holds(step):
                highest, failed = rate, 0
            else:
                failed += 1
                if failed == 2:
                    break
        return {"ceiling": ceiling, "highest": highest, "steps": steps}

    def _holds(self, step: dict[str, Any]) -> bool:
        """Whether all requests were answered, and the 99th percentile is within the target."""
        wrong = step["refused"] + step["failed"] + step["not_sent"]
        return bool(step["answered"] and not wrong and step["p99_ms"] <= self._target)

    def _closed(self, url: str, size: int, seconds: float) -> float:
        """Return the answers per second of clients that each send the next request after an answer."""
        few = size > 1 and self._options.device == "cpu"
        load = self._load(url, 0.0, size, _FEW_CLIENTS if few else _CLIENTS, seconds)
        return float(load["answered"] / load["seconds"])

    def _open(self, url: str, rate: float, size: int, seconds: float) -> dict[str, Any]:
        """Send requests at a rate, and return what load.py measures."""
        return self._load(url, rate, size, int(min(4000, max(_CLIENTS, 4 * rate))), seconds)

    def _load(
        self, url: str, rate: float, size: int, clients: int, seconds: float, arrow: bool = False
    ) -> dict[str, Any]:
        """Run load.py, and return what it measures.

        Parameters
        ----------
        url : str
            The URL of the server.
        rate : float
            Requests per second; 0 for a closed loop.
        size : int
            The number of texts in a request.
        clients : int
            The largest number of open connections.
        seconds : float
            How long requests are sent.
        arrow : bool
            Whether to send Arrow streams in place of JSON.

        """
        options = self._options
        command = ["taskset", "-c", options.client_cores] if options.client_cores else []
        given = (url, self._texts, size, rate, clients, seconds, int(arrow), options.load)
        command += [sys.executable, "-m", "benchmarks.serve.load", *map(str, given)]
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        if completed.returncode:
            sys.exit(completed.stderr)
        answer: dict[str, Any] = json.loads(completed.stdout)
        return answer

    def _overload(self, highest: float, size: int) -> dict[str, Any]:
        """Measure at ten times the highest rate, before and after it, with the memory of the server's processes."""
        memory: list[int] = []
        seconds = self._seconds
        with self._served(OURS, self._options.model) as server:
            url = server.url
            port = int(url.split(":")[2].split("/")[0])
            before = self._open(url, 0.5 * highest, size, seconds)
            memory.append(_memory(port))
            halves = []
            for _ in range(2):
                halves.append(self._open(url, _OVERLOAD * highest, size, self._options.overload / 2))
                memory.append(_memory(port))
            after = self._open(url, 0.5 * highest, size, seconds)
            memory.append(_memory(port))
        return {"rate": _OVERLOAD * highest, "before": before, "halves": halves, "after": after, "memory_bytes": memory}

    def _arrow(self) -> dict[str, Any]:
        """Measure the texts per second in Arrow streams."""
        with self._served(OURS, self._options.model) as server:
            load = self._load(server.url, 0.0, _ARROW_TEXTS, _ARROW_CLIENTS, self._seconds, arrow=True)
        rate = load["answered"] * _ARROW_TEXTS / load["seconds"]
        about = {"each": _ARROW_TEXTS, "clients": _ARROW_CLIENTS, "refused": load["refused"]}
        return {**about, "texts_per_second": rate, "pyarrow": pa.__version__}


def _medians(rounds: list[dict[str, Any]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in rounds) for name in rounds[0]}


def _memory(port: int) -> int:
    """Return the resident bytes of the server that listens at a port, with all its processes."""
    time.sleep(1)
    connections = psutil.net_connections("tcp")
    listening = next(c.pid for c in connections if c.status == "LISTEN" and c.laddr.port == port and c.pid)
    process = psutil.Process(listening)
    server = next(member for member in (*reversed(process.parents()), process) if "serve" in member.cmdline())
    return sum(member.memory_info().rss for member in (server, *server.children(recursive=True)))


def _each(given: str) -> tuple[int, float, float]:
    """Read a value of `--each`: texts, target in milliseconds, and seconds."""
    texts, target, seconds = given.split(":")
    return int(texts), float(target), float(seconds)


def _cores(given: str) -> set[int]:
    """Read a list of cores, such as 0-3,6."""
    cores: set[int] = set()
    for part in given.split(","):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores


if __name__ == "__main__":
    main()
