"""Certificates of one job: only processes that hold them can join its Dask cluster."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from distributed.security import Security

from pipeline.errors import UsageError

_KEY, _CERTIFICATE = "key.pem", "certificate.pem"


def make_certificates(folder: Path) -> Security:
    """Write a new key and its certificate to `folder` (mode 0700). Raises UsageError without cryptography."""
    if find_spec("cryptography") is None:
        raise UsageError("TLS needs the library cryptography: pip install 'broadsheet[cluster]'")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    made = Security.temporary()
    for name, text in ((_KEY, made.tls_client_key), (_CERTIFICATE, made.tls_client_cert)):
        with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    return load_certificates(folder)


def load_certificates(folder: Path) -> Security:
    """Load what `make_certificates` wrote. The certificate is self-signed: only holders of its key are trusted.

    Raises UsageError where the key cannot be read.
    """
    key, certificate = str(folder / _KEY), str(folder / _CERTIFICATE)
    if not os.access(key, os.R_OK):
        raise UsageError(f"the cluster requires TLS, and its certificates in {folder} cannot be read")
    roles = {f"tls_{role}_key": key for role in ("client", "scheduler", "worker")}
    roles |= {f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")}
    return Security(require_encryption=True, tls_ca_file=certificate, **roles)


def tls_settings(folder: Path) -> dict[str, str | bool]:
    """Dask's settings for the certificates in `folder`."""
    files = {"ca-file": folder / _CERTIFICATE}
    for role in ("client", "scheduler", "worker"):
        files |= {f"{role}.key": folder / _KEY, f"{role}.cert": folder / _CERTIFICATE}
    found = {f"distributed.comm.tls.{name}": str(path) for name, path in files.items()}
    return {**found, "distributed.comm.require-encryption": True}
