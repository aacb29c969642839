"""For the batch scripts: Dask's settings, the protocol and the certificates, printed as lines of shell.

python -P -m cluster.slurm.prepare ASKED HOSTS TLS FOLDER   (TLS: 1 or 0; FOLDER: for certificates)
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from cluster.protocol import choose
from cluster.settings import WORKER_OPTIONS, export
from cluster.tls import make_certificates, tls_settings
from pipeline.errors import BroadsheetError


def main(asked: str, hosts: str, tls: str, folder: str) -> None:
    """Print the lines for `eval`; the reason for the protocol goes to stderr."""
    protocol, reason = choose(asked, int(hosts), tls == "1")
    print(reason, file=sys.stderr)
    if protocol == "tls":
        make_certificates(Path(folder))
    print(*export(tls_settings(Path(folder)) if protocol == "tls" else {}), sep="\n")
    print(f"protocol={protocol}\nworker_options=({shlex.join(WORKER_OPTIONS)})")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BroadsheetError as error:
        sys.exit(f"broadsheet: {error}")
