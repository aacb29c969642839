#!/usr/bin/env bash
# distributed 2026.7.1: once anybody has scattered with broadcast=True, or called replicate, `Client.get_events("all")`
# raises CommClosedError; and a client that is subscribed to "all" loses its connection at that moment.
#
# The scheduler logs an event "replicate" whose "workers" are objects of its own, which cannot be sent.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q distributed==2026.7.1 dask==2026.7.1
cd "$folder"
cat > trial.py <<'END'
import logging

from distributed import Client, LocalCluster
from distributed.comm import CommClosedError


def told(client: Client) -> str:
    try:
        return str({event["action"] for _, event in client.get_events("all")} >= {"gather", "add-client"})
    except CommClosedError as error:
        return type(error).__name__


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        print(client.submit(sum, [1, 2]).result(), told(client))
        assert told(client) == "True"
        numbers = client.scatter([1, 2], broadcast=True, hash=False)
        print("after scatter with broadcast=True:", told(client))
        assert told(client) == "CommClosedError"
END
venv/bin/python trial.py
