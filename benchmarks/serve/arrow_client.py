"""python -m benchmarks.serve.arrow_client URL TEXTS.json SECONDS EACH: Arrow streams, four requests at a time."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

_AT_A_TIME = 4
_HEADERS = {"content-type": "application/vnd.apache.arrow.stream"}


def main() -> None:
    url, file, seconds, each = sys.argv[1:]
    texts = json.loads(Path(file).read_text())[: int(each)]
    table, sink = pa.table({"text": texts}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body, address = bytes(sink.getvalue()), urlsplit(url)
    counts = {200: 0, 503: 0}
    began = time.perf_counter()

    def ask() -> None:
        connection = http.client.HTTPConnection(address.netloc)
        while time.perf_counter() - began < float(seconds):
            connection.request("POST", address.path, body, _HEADERS)
            answer = connection.getresponse()
            answer.read()
            counts[answer.status] += 1

    threads = [threading.Thread(target=ask) for _ in range(_AT_A_TIME)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds_taken = time.perf_counter() - began
    print(json.dumps({"texts": counts[200] * len(texts), "refused": counts[503], "seconds": seconds_taken}))


if __name__ == "__main__":
    main()
