"""Prints lines of shell for the batch scripts: Dask's settings, the protocol, certificates, the dashboard's link.

python -P -m broadsheet.cluster.slurm.prepare PROTOCOL HOSTS TLS FOLDER

PROTOCOL is auto, tcp or ucx. HOSTS is the number of nodes. TLS is 1, 0 or empty (as null in `site.yaml`). FOLDER is
the job's own folder, which is made here.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from ...pipeline.errors import BroadsheetError
from ..private import make_private, new_token
from ..protocol import choose
from ..settings import WORKER_OPTIONS, dashboard_settings, export, worker_preloads
from ..tls import make_certificates, tls_settings

_LOG_LEVEL = "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED"


def main(requested: str, hosts: str, tls: str, folder: str) -> None:
    """Print the lines for `eval`; the reason for the protocol goes to stderr."""
    protocol, reason = choose(requested, int(hosts), bool(int(tls)) if tls else None)
    print(reason, file=sys.stderr)
    make_private(Path(folder))
    token = new_token()
    more: dict[str, str | bool] = {**dashboard_settings(token)}
    if _LOG_LEVEL not in os.environ:
        more["distributed.logging.distributed"] = "warning"  # the job's own log reports what matters
    if protocol == "tls":
        certificates = Path(folder) / "tls"
        make_certificates(certificates)
        more |= tls_settings(certificates)
    print(*export(more), sep="\n")
    print(f"preloads=({shlex.join(part for name in worker_preloads() for part in ('--preload', name))})")
    print(f"protocol={protocol}\nworker_options=({shlex.join(WORKER_OPTIONS)})\ndashboard_token={token}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BroadsheetError as error:
        sys.exit(f"broadsheet: {error.message}")
