"""Clients of object stores: S3 and what is compatible with it, Google Cloud Storage, and Azure Blob Storage.

A client is made in the process that uses it, of a URL and that process's environment: no key or token is ever sent to
a worker, written to a file or named in a message.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ..errors import UsageError
from .names import as_url, without_secrets

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_S3, _GOOGLE, _AZURE = ("s3", "s3a"), ("gs", "gcs"), ("az", "azure", "adl", "abfs", "abfss")
_ENDPOINT = dict.fromkeys((*_S3, *_AZURE), "endpoint") | dict.fromkeys(_GOOGLE, "base_url")
"""What obstore calls the endpoint, by the scheme of the URL."""

_FIRST_ENDPOINT = "AWS_ENDPOINT_URL_S3"
_ENDPOINT_VARIABLES = (_FIRST_ENDPOINT, "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

_ENVIRONMENT = ("AWS_", "GOOGLE_", "AZURE_", "HOME")
"""How the names of variables begin that decide where a client connects to, and as whom."""

_CLIENT = {
    "allow_http": True,  # only where the endpoint says http://
    "connect_timeout": timedelta(seconds=5),
    "timeout": timedelta(seconds=60),  # for a whole request: the default of 30 s is short for a part over a slow line
}
_RETRY: dict[str, Any] = {  # what takes longer is repeated by `bucket_errors.patiently`, with new credentials
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
_CREDENTIALS_MINUTES = 5
"""After which boto3 is asked again: it renews what expires some minutes earlier than that."""


@dataclass(frozen=True)
class BucketPath:
    """A folder or an object in a bucket. bucket: its URL. key: within it, without slashes around it. endpoint: as of
    `bucket_client`. Its string is its URL.
    """

    bucket: str
    key: str
    endpoint: str | None = None

    def __truediv__(self, name: str) -> BucketPath:
        return BucketPath(self.bucket, "/".join(filter(None, (self.key, name))), self.endpoint)

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}" if self.key else self.bucket


def is_bucket(url: str) -> bool:
    """Whether a URL is one of an object store, rather than of the web or another file system."""
    return "://" in url and url.partition("://")[0] in _ENDPOINT


def split_bucket(url: str) -> tuple[str, str]:
    """The URL of the bucket, and the key within it, of such a URL. Raises UsageError where it names no bucket."""
    scheme, _, rest = (as_url(url) or url).partition("://")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise UsageError(f"{without_secrets(url)} names no bucket: write {scheme}://BUCKET/FOLDER")
    if ":" in bucket:
        raise UsageError(
            f"{without_secrets(url)}: a bucket's URL has no password or port: give keys by the environment, and the "
            "address of a server of your own by --endpoint"
        )
    return f"{scheme}://{bucket}", key


def bucket_client(bucket: str, endpoint: str | None = None) -> ObjectStore:
    """The client of a bucket, by its URL as `split_bucket` gives it, for keys from its root on.

    Clients are kept, with their connections, for as long as the environment is the same. endpoint: the URL of a server
    other than the provider's own; by default that of the environment, if it has one. Raises UsageError where the client
    cannot be made.
    """
    if endpoint is not None:
        check_endpoint(endpoint)
    for name in _ENDPOINT_VARIABLES:
        if name in os.environ:
            check_endpoint(os.environ[name], name)
    first = os.environ.get(_FIRST_ENDPOINT)
    if bucket.startswith("s3") and endpoint is not None and first is not None and first != endpoint:
        raise UsageError(f"--endpoint is not the one of {_FIRST_ENDPOINT}, which obstore prefers: unset that variable")
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT)))
    return _client(bucket, endpoint, environment)


def check_endpoint(endpoint: str, name: str = "--endpoint") -> None:
    """Raise UsageError for what is not the URL of a server, or holds a password. name: of the option or variable."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{name} is {without_secrets(endpoint)!r}: write a URL, for example http://localhost:9000")
    if "@" in parts.netloc:
        raise UsageError(f"{name} has a user or password in it: give credentials by the environment")


@lru_cache(maxsize=32)
def _client(bucket: str, endpoint: str | None, _environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    import obstore.store
    from obstore.exceptions import BaseError

    scheme, _, rest = bucket.partition("://")
    options: dict[str, Any] = {} if endpoint is None else {_ENDPOINT[scheme]: endpoint.rstrip("/")}
    if scheme in _S3:
        options["credential_provider"] = _profile_credentials()
    url = f"gs://{rest}" if scheme in _GOOGLE else bucket
    make: Any = obstore.store.from_url  # its type has an overload for each scheme
    try:
        client: ObjectStore = make(url, client_options=_CLIENT, retry_config=_RETRY, **options)
        return client
    except (BaseError, ValueError, OSError) as error:
        what = without_secrets(str(error).partition("\n\nDebug source:")[0])
        if "Account must be specified" in what:
            what = "set AZURE_STORAGE_ACCOUNT_NAME"
        raise UsageError(f"{bucket}: no client can be made for it: {what}") from error


def _profile_credentials() -> Callable[[], Any] | None:
    """Those of a profile, which obstore leaves to boto3: of AWS_PROFILE, or the default one of ~/.aws. None where the
    environment has keys, or there are no such files: then obstore finds those of a role.
    """
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_SKIP_SIGNATURE"):
        return None
    profile = os.environ.get("AWS_PROFILE")
    files = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
    if not profile and not any(os.path.exists(os.path.expanduser(os.environ.get(name, path))) for name, path in files):
        return None
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        if not profile:
            return None
        raise UsageError("AWS_PROFILE is set: profiles need boto3: pip install boto3") from error
    try:
        return Boto3CredentialProvider(ttl=timedelta(minutes=_CREDENTIALS_MINUTES))
    except ValueError:  # the files have none
        return None
    except BotoCoreError as error:
        raise UsageError(f"AWS_PROFILE, or ~/.aws, cannot be used: {without_secrets(str(error))}") from error
