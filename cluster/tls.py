"""The certificates of one job. Only processes that hold them can join its Dask cluster."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from distributed.security import Security

from ..pipeline.errors import UsageError, cause
from .private import make_private

_KEY, _CERTIFICATE = "key.pem", "certificate.pem"
_BEFORE, _AFTER = timedelta(days=1), timedelta(days=365)
"""A certificate is valid for this long before and after it is made: clocks are set back, and differ between hosts."""


def make_certificates(folder: Path) -> Security:
    """Write a new key and its certificate to `folder` (mode 0700). Raises UsageError if they cannot be written."""
    make_private(folder)
    try:
        for name, text in zip((_KEY, _CERTIFICATE), _key_and_certificate(), strict=True):
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"no certificates can be written to {folder}: {cause(error)}. Free space there") from error
    return load_certificates(folder)


def _key_and_certificate() -> tuple[bytes, bytes]:
    """Return an elliptic-curve key and its certificate, as PEM.

    This takes a millisecond. (Dask's RSA takes 50 to 500.)
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broadsheet")]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        # OpenSSL's strict mode, the default of Python 3.13, requires this of a self-signed certificate.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return secret, certificate.public_bytes(Encoding.PEM)


def load_certificates(folder: Path) -> Security:
    """Load the files of `make_certificates`. The certificate is self-signed: only holders of its key are trusted.

    Raises UsageError if the key cannot be read.
    """
    key, certificate = str(folder / _KEY), str(folder / _CERTIFICATE)
    if not os.access(key, os.R_OK):
        raise UsageError(f"the cluster requires TLS, and its certificates in {folder} cannot be read")
    roles = {f"tls_{role}_key": key for role in ("client", "scheduler", "worker")}
    roles |= {f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")}
    return Security(require_encryption=True, tls_ca_file=certificate, **roles)


def tls_settings(folder: Path) -> dict[str, str | bool]:
    """Return Dask's settings for the certificates in `folder`."""
    files = {"ca-file": folder / _CERTIFICATE}
    for role in ("client", "scheduler", "worker"):
        files |= {f"{role}.key": folder / _KEY, f"{role}.cert": folder / _CERTIFICATE}
    settings = {f"distributed.comm.tls.{name}": str(path) for name, path in files.items()}
    return {**settings, "distributed.comm.require-encryption": True}
