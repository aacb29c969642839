"""Reads object stores: S3 and compatible stores, Google Cloud Storage and Azure Blob Storage.

This module makes clients, opens and lists objects, repeats requests through an outage, and explains errors in one line
with the remedy. It also defines `Origin`, the interface of every kind of remote file.

A process makes its own clients from a URL and its environment. No key or token is ever sent to a worker, written to a
file or named in a message.
"""

from __future__ import annotations

import errno
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from ..errors import UsageError
from ..processes.threads import threads
from .driver import AlreadyExistsError, BaseError, InvalidPathError, PreconditionError, check_driver, obstore
from .names import as_url, without_secrets
from .requests import FIRST_PATIENCE, PATIENCE, Fault, repeated

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_STATUS = re.compile(r"status code: (\d{3})|status client error \((\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>|\"code\": ?\"?(\w+)|\(code: (\w+)\)")
_CODES_THAT_MAY_PASS = (
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "OperationAborted",
    "ServerBusy",
)
_WHOLE = "non-partial response"  # obstore says so if it asked for a range and got a whole object
_SERVER = re.compile(r"https?://[^/\s]+")
_METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254")
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_EXPIRED = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired", "ExpiredTokenException")
_UNKNOWN_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthenticationFailed")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "InvalidBucketName")
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")

_Result = TypeVar("_Result")


def patiently(call: Callable[[], _Result], url: str, seconds: float = PATIENCE, clock: Any = time) -> _Result:
    """Make a request and return its result. Repeat it for `seconds`, with growing pauses, while its error may pass.

    Each repetition is signed anew with the present credentials. The request must be one that may be carried out twice.

    url: the URL of the object or bucket, for messages. clock: see `repeated`. Raises FileNotFoundError if the object is
    missing, and other OSErrors that say what is wrong and the remedy. AlreadyExistsError, PreconditionError and
    InvalidPathError of obstore are raised as they are.
    """

    def judge(error: Exception) -> Fault:
        if isinstance(error, (AlreadyExistsError, PreconditionError, InvalidPathError)):
            return Fault(error)
        if isinstance(error, FileNotFoundError) and _code(error) not in _NO_BUCKET:
            return Fault(FileNotFoundError(errno.ENOENT, "there is no such object"))
        if not isinstance(error, (BaseError, OSError, ValueError)):
            return Fault(error)
        return Fault(_explained(error, url), patience(seconds, _status(error)) if may_pass(error) else 0.0)

    return repeated(call, judge, without_secrets(url), clock)


def patience(seconds: float, status: int | None) -> float:
    """Return the seconds for which a request is repeated after an answer with this status.

    If a server answers that it is overloaded, its address is right. Then even the first request is repeated for
    `PATIENCE`, because an array of jobs sends all of its first requests at once.
    """
    return PATIENCE if seconds == FIRST_PATIENCE and status in (429, 503) else seconds


def may_pass(error: BaseException) -> bool:
    """Return whether an error may be gone the next time: the server is overloaded, or cannot be reached."""
    if isinstance(error, ValueError) or _asked_metadata(error) or _WHOLE in str(error):
        return False
    status, code = _status(error), _code(error)
    if status is None:  # there is no answer, or it is about several objects, each with a code
        return not code or code in _CODES_THAT_MAY_PASS
    return status in (408, 409, 429) or status >= 500


def explain(error: BaseException, url: str) -> str:
    """Return what is wrong and the remedy in one line, without secrets."""
    # Missing or refused credentials, and wrong buckets.
    scheme, _, rest = url.partition("://")
    kind = "s3" if scheme.startswith("s3") else "gs" if scheme.startswith("g") else "az"
    bucket, code, status = rest.partition("/")[0], _code(error), _status(error)
    if _asked_metadata(error):
        return f"no credentials were found: set {_KEYS[kind]}, or run where a role gives them"
    if code in _NO_BUCKET:
        return f"there is no bucket {bucket!r}: create it, or correct the URL"
    if code in _EXPIRED:
        return f"the credentials have expired: renew them ({_KEYS[kind]})"
    if code in _UNKNOWN_KEYS or status == 401:
        return f"the server does not accept the credentials ({code or status}): check {_KEYS[kind]}"
    if code in _ELSEWHERE or status == 301:
        return f"the bucket {bucket!r} is in another region: set AWS_REGION"
    if status == 403 or code == "AccessDenied":
        return f"the credentials do not allow this ({code or 'status 403'}): give them the right to it in {bucket!r}"
    # Other answers of the server, and servers that do not answer.
    if _WHOLE in str(error):
        return "its server sends the whole object where a part is asked for: download it first"
    if status is not None or code:
        return f"its server answers {' '.join(filter(None, (str(status or ''), code)))}"
    first = str(error).partition("\n\nDebug source:")[0]
    if "builder error" in first or "dns error" in first or "error sending request" in first:
        server = _SERVER.search(first)
        named = f"its server {server[0]}" if server else "its server"
        return f"{named} cannot be reached: check the network, and the endpoint (--endpoint, AWS_ENDPOINT_URL)"
    return without_secrets(" ".join(first.split()))


def _explained(error: BaseException, url: str) -> OSError:
    """Return an OSError with the explanation, whose number tells the kind of the error.

    ETIMEDOUT is an error that may pass, or that new credentials solve; EACCES is a refusal; EIO is any other error.
    """
    denied = _status(error) in (401, 403) or _code(error) == "AccessDenied"
    number = errno.EACCES if denied else errno.EIO
    if _code(error) in _EXPIRED or may_pass(error):
        number = errno.ETIMEDOUT
    return OSError(number, explain(error, url))


def _asked_metadata(error: BaseException) -> bool:
    """Return whether the request for a machine's own credentials failed, which is made if there are no others."""
    return any(address in str(error) for address in _METADATA)


def _status(error: BaseException) -> int | None:
    match = _STATUS.search(str(error))
    return None if match is None else int(match[1] or match[2])


def _code(error: BaseException) -> str:
    match = _CODE.search(str(error))
    return "" if match is None else next(filter(None, match.groups()))


_S3, _GOOGLE, _AZURE = ("s3", "s3a"), ("gs", "gcs"), ("az", "azure", "adl", "abfs", "abfss")
_ENDPOINT = dict.fromkeys((*_S3, *_AZURE), "endpoint") | dict.fromkeys(_GOOGLE, "base_url")
"""The name that obstore has for the endpoint, by the scheme of the URL."""

_FIRST_ENDPOINT = "AWS_ENDPOINT_URL_S3"
_ENDPOINT_VARIABLES = (_FIRST_ENDPOINT, "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

_ENVIRONMENT = ("AWS_", "GOOGLE_", "AZURE_", "HOME")
"""The beginnings of the names of variables that decide where a client connects to, and as which user."""

_CLIENT = {
    "allow_http": True,  # used only if the endpoint says http://
    "connect_timeout": timedelta(seconds=5),
    "timeout": timedelta(seconds=60),  # for a whole request, as the default of 30 s is short on a slow line
}
_RETRY: dict[str, Any] = {  # `patiently` repeats what takes longer, with new credentials
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
_CREDENTIALS_MINUTES = 5
"""The interval after which boto3 is asked again. It renews credentials some minutes before they expire."""


@dataclass(frozen=True)
class BucketPath:
    """A folder or an object in a bucket. `str` gives its URL.

    Attributes
    ----------
    bucket : str
        The URL of the bucket.
    key : str
        The path within the bucket, without slashes around it.
    endpoint : str or None
        See `bucket_client`.

    """

    bucket: str
    key: str
    endpoint: str | None = None

    def __truediv__(self, name: str) -> BucketPath:
        return BucketPath(self.bucket, "/".join(filter(None, (self.key, name))), self.endpoint)

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}" if self.key else self.bucket


def is_bucket(url: str) -> bool:
    """Return whether a URL is one of an object store, rather than of the web or another file system."""
    return "://" in url and url.partition("://")[0] in _ENDPOINT


def split_bucket(url: str) -> tuple[str, str]:
    """Return the URL of the bucket and the key within it. Raises UsageError if the URL names no bucket."""
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
    """Return the client of a bucket, for keys from its root on.

    Clients and their connections are kept as long as the environment is the same.

    bucket: the URL of the bucket, as `split_bucket` gives it. endpoint: the URL of a server other than the provider's
    own. Default: that of the environment, if it has one. Raises UsageError if the client cannot be made, or if obstore
    is not installed.
    """
    check_driver(bucket)
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
    """Raise UsageError if the endpoint is not the URL of a server, or holds a user or password.

    name: the name of the option or variable.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{name} is {without_secrets(endpoint)!r}: write a URL, for example http://localhost:9000")
    if "@" in parts.netloc:
        raise UsageError(f"{name} has a user or password in it: give credentials by the environment")


def refuse_useless(endpoint: str | None, names: Iterable[str]) -> None:
    """Raise UsageError if an endpoint is given but none of these paths and URLs is in an object store."""
    parts = (as_url(part) or part for name in names for part in name.split("::"))
    if endpoint is not None and not any(map(is_bucket, parts)):
        raise UsageError("--endpoint is for URLs such as s3://bucket/key, and none is given: leave it out")


@lru_cache(maxsize=32)
def _client(bucket: str, endpoint: str | None, _environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    scheme, _, rest = bucket.partition("://")
    options: dict[str, Any] = {} if endpoint is None else {_ENDPOINT[scheme]: endpoint.rstrip("/")}
    if scheme in _S3:
        options["credential_provider"] = _profile_credentials()
    url = f"gs://{rest}" if scheme in _GOOGLE else bucket
    make: Callable[..., ObjectStore] = obstore.store.from_url  # its type has an overload for each scheme
    try:
        return make(url, client_options=_CLIENT, retry_config=_RETRY, **options)
    except (BaseError, ValueError, OSError) as error:
        what = without_secrets(str(error).partition("\n\nDebug source:")[0])
        if "Account must be specified" in what:
            what = "set AZURE_STORAGE_ACCOUNT_NAME"
        raise UsageError(f"{bucket}: no client can be made for it: {what}") from error


def _profile_credentials() -> Callable[[], Any] | None:
    """Return the credentials of a profile, which obstore leaves to boto3.

    The profile is that of AWS_PROFILE or the default one of ~/.aws. Return None if the environment has keys, or if
    there are no such files. Then obstore finds the credentials of a role.
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


_PAGE = 1000  # objects that a store lists in one answer
_AT_ONCE = 32  # requests


class State(NamedTuple):
    """The size and the time of a file, which show whether it has changed.

    size: in bytes; None if the server does not report it. modified: the time of modification in ns; for a remote file,
    an ETag or a similar mark.
    """

    size: int | None
    modified: str

    def differs(self, other: State) -> bool:
        """Return whether two states belong to different content, as far as both are known."""
        sizes, times = (self.size, other.size), (self.modified, other.modified)
        return (None not in sizes and sizes[0] != sizes[1]) or ("" not in times and times[0] != times[1])


class Origin(ABC):
    """A remote file that is open for reading.

    state: the state that its server last reported. ranges: whether it can be read from any byte on. at_once: how many
    parallel requests for it pay off; 1 if the driver itself reads ahead.
    """

    state: State
    ranges: bool = True
    at_once: int = 8

    @abstractmethod
    def get(self, start: int, stop: int) -> memoryview:
        """Return all bytes from `start` to `stop` of a file with ranges. Several threads may call this at once.

        Raises OSError. If the file has changed, `state` is the new state afterwards.
        """

    def next(self, size: int) -> bytes:
        """Return up to `size` of the next bytes of a file without ranges; none at its end. Raises OSError."""
        raise NotImplementedError("it has ranges")

    @abstractmethod
    def close(self) -> None:
        """Close the file, and end the requests that are under way."""


class BucketObject(Origin):
    """An object, by its URL. expected: the listed state of the object, which saves a request; None to ask for it."""

    def __init__(self, url: str, expected: State | None = None, endpoint: str | None = None) -> None:
        self._url = url
        bucket, self._key = split_bucket(url)
        self._client = bucket_client(bucket, endpoint)
        self._closed = False
        self.state = state_of_object(url, endpoint, PATIENCE) if expected is None else expected

    def get(self, start: int, stop: int) -> memoryview:
        options: Any = {"range": (start, stop)}
        if self.state.modified.startswith('"'):  # a time is no tag, and a request must not ask for a weak tag
            options["if_match"] = self.state.modified

        def request() -> memoryview:
            if self._closed:
                raise _Closed
            result = obstore.get(self._client, self._key, options=options)
            now = _state_in(result.meta)
            if now.differs(self.state):
                raise PreconditionError
            data = memoryview(result.bytes())
            if len(data) != stop - start:
                raise ConnectionError(errno.ECONNRESET, f"{len(data):,} bytes came of {stop - start:,}")
            return data

        try:
            return patiently(request, self._url)
        except PreconditionError:
            self.state = state_of_object(self._url, None, PATIENCE, self._client)
            raise OSError(errno.ESTALE, "it has changed while it was read") from None

    def close(self) -> None:
        self._closed = True


class _Closed(Exception):
    """Raised to end a request whose result is no longer needed."""


def state_of_object(url: str, endpoint: str | None, seconds: float, client: Any = None) -> State:
    """Return the state of an object. Raises FileNotFoundError if it is missing, and other OSErrors."""
    bucket, key = split_bucket(url)
    client = client or bucket_client(bucket, endpoint)
    try:
        return _state_in(patiently(lambda: obstore.head(client, key), url, seconds))
    except PermissionError:  # only the answer to a GET has a body that says why
        return _state_in(patiently(lambda: obstore.get(client, key), url, seconds).meta)


def objects_below(
    bucket: str, folder: str, endpoint: str | None, unlisted: list[tuple[str, str]]
) -> Iterator[tuple[str, State]]:
    """Yield the key and the state of each object below a folder of a bucket, at any depth.

    Parameters
    ----------
    bucket : str
        The URL of the bucket.
    folder : str
        The folder, without slashes around it; empty for the whole bucket.
    endpoint : str or None
        See `bucket_client`.
    unlisted : list of (str, str)
        The function appends the URLs of folders with objects that cannot be listed, each with the reason.

    Raises
    ------
    OSError
        If the bucket cannot be listed.

    """
    # After an error, a new list begins after the last object.
    client, last, pages = bucket_client(bucket, endpoint), None, None

    def page() -> Any:
        nonlocal pages
        try:
            if pages is None:
                pages = obstore.list(client, folder or None, offset=last, chunk_size=_PAGE)
            return next(pages, None)
        except BaseException:
            pages = None  # begin again, after the last object
            raise

    seconds = FIRST_PATIENCE
    listed: set[str] = set()
    try:
        while objects := patiently(page, f"{bucket}/{folder}", seconds):
            for about in objects:
                listed.add(about["path"])
                yield about["path"], _state_in(about)
            last, seconds = objects[-1]["path"], PATIENCE
    except InvalidPathError:  # one object has such a path, and the whole page is lost: list folder by folder
        here, folders = objects_in(bucket, folder, endpoint, unlisted)
        yield from ((key, state) for key, state in here if key not in listed)
        for below in folders:
            yield from (found for found in objects_below(bucket, below, endpoint, unlisted) if found[0] not in listed)


def objects_in(
    bucket: str, folder: str, endpoint: str | None, unlisted: list[tuple[str, str]]
) -> tuple[list[tuple[str, State]], list[str]]:
    """Return the objects directly in a folder of a bucket, each with its state, and the folders in it.

    See `objects_below` for the parameters and the errors.
    """
    client, url = bucket_client(bucket, endpoint), f"{bucket}/{folder}".rstrip("/")
    try:
        page = patiently(lambda: obstore.list_with_delimiter(client, folder or None), url, FIRST_PATIENCE)
    except InvalidPathError:
        if not bucket.startswith(_S3):
            unlisted.append((url, f"{_NO_PATH} cannot be listed; {_OTHER_KEYS}"))
            return [], []
        unlisted.append((f"{url}//", f"{_NO_PATH} are not read; {_OTHER_KEYS}"))
        return _listed_by_arrow(bucket, folder, endpoint)
    return [(about["path"], _state_in(about)) for about in page["objects"]], list(page["common_prefixes"])


_NO_PATH = "objects whose keys have two slashes in a row, or a part that is . or .."
_OTHER_KEYS = "copy them to other keys"


def _listed_by_arrow(bucket: str, folder: str, endpoint: str | None) -> tuple[list[tuple[str, State]], list[str]]:
    """List a folder in S3 as `objects_in` does, with PyArrow, because the folder has keys that obstore refuses."""
    import pyarrow.fs as arrow_fs

    address = endpoint or next(filter(None, map(os.environ.get, _ENDPOINT_VARIABLES)), None)
    is_anonymous = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true")
    name = bucket.partition("://")[2]
    above = f"{name}/{folder}".rstrip("/")

    def look() -> Any:
        store = arrow_fs.S3FileSystem(anonymous=is_anonymous, endpoint_override=address)
        return store.get_file_info(arrow_fs.FileSelector(above))

    found = patiently(look, f"{bucket}/{folder}", FIRST_PATIENCE)
    inside = [about for about in found if about.path.startswith(f"{above}/") and _has_path(about.path)]
    keys = [about.path.removeprefix(f"{name}/") for about in inside if about.type == arrow_fs.FileType.File]
    with threads(_AT_ONCE) as pool:  # ask for each state, because Arrow does not report tags
        states = list(pool.map(lambda key: state_of_object(f"{bucket}/{key}", endpoint, PATIENCE), keys))
    folders = [about.path.removeprefix(f"{name}/") for about in inside if about.type == arrow_fs.FileType.Directory]
    return list(zip(keys, states, strict=True)), folders


def _has_path(key: str) -> bool:
    """Return whether obstore can open an object with this key."""
    return not {"", ".", ".."} & set(key.split("/"))


def _state_in(about: Any) -> State:
    tag = about["e_tag"] or about["last_modified"].isoformat()
    if about["e_tag"] and not tag.startswith(("W/", '"')):
        tag = f'"{tag}"'  # Azure lists tags without the quotes that they have in its other answers
    return State(about["size"], tag)
