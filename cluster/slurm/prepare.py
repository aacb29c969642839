"""For the batch scripts: choose the protocol and make certificates, and print both as lines of shell.

python -P -m cluster.slurm.prepare ASKED HOSTS TLS FOLDER   (TLS: 1 or 0; FOLDER: for certificates)
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from cluster.protocol import choose
from cluster.tls import as_environment, make_certificates
from pipeline.errors import BroadsheetError


def main(asked: str, hosts: str, tls: str, folder: str) -> None:
    """Print the lines; the reason for the protocol goes to stderr."""
    protocol, reason = choose(asked, int(hosts), tls == "1")
    print(reason, file=sys.stderr)
    print(f"protocol={protocol}")
    if protocol == "tls":
        make_certificates(Path(folder))
        for name, value in as_environment(Path(folder)).items():
            print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BroadsheetError as error:
        sys.exit(f"broadsheet: {error}")
