"""A server whose engines are on the workers of a Dask cluster."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from jobs import Processes, start_scheduler, start_worker, wait_until
from serving import serving

from broadsheet import pipeline


@pytest.mark.slow
def test_a_lost_worker_costs_no_request_and_another_takes_its_place(
    processes: Processes, small_model_file: Path, tmp_path: Path
) -> None:
    texts = [f"text number {i} " * random.Random(i).choice([0, 1, 20]) for i in range(12)]
    options = {"model": small_model_file, "scores": True, "device": "cpu"}
    expected = pipeline.classify(texts, **options).to_arrow().drop_columns(["file", "row", "reason"])
    _, file = start_scheduler(processes, tmp_path)
    workers = [start_worker(processes, file) for _ in range(2)]
    with serving("--scheduler-file", file, "--model", f"small={small_model_file}", "--target-ms", 20_000) as server:
        ready = f"{server.url}/readyz"
        while list(httpx.get(ready, timeout=240).json()["engines"].values()) != ["ready", "ready"]:
            time.sleep(0.05)
        stop = threading.Event()

        answered = [0, 0]

        def ask(number: int) -> None:
            with server.client() as client:
                while not stop.is_set():
                    assert client.classify_arrow(column, scores=True).equals(wanted)
                    answered[number] += 1
                    time.sleep(0.02)  # leaves the cores to others

        column = pa.array(texts)
        wanted = server.client().classify_arrow(column, scores=True)
        assert wanted.equals(expected.cast(wanted.schema).combine_chunks())
        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(ask, number) for number in range(2)]
            try:
                workers[0].send_signal(signal.SIGKILL)
                server.wait_for("engine lost")
                before = answered[:]  # each client's current request and the next one wait for no other worker
                wait_until(lambda: all(now >= then + 2 for now, then in zip(answered, before, strict=True)))
                start_worker(processes, file)
                server.wait_for("engine ready")
            finally:
                stop.set()
            for each in asking:
                each.result()
        assert set(httpx.get(ready, timeout=240).json()["engines"].values()) == {"ready"}
        assert server.stop() == 0
