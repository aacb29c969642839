"""Object stores: S3 and what is compatible with it, Google Cloud Storage, and Azure Blob Storage: their clients and
their objects; what their errors mean, in one line with the remedy, and requests that outlast an outage; and what every
kind of server of remote files can do.

A client is made in the process that uses it, of a URL and that process's environment: no key or token is ever sent to
a worker, written to a file or named in a message.
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
_MAY_PASS = ("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "ServerBusy")
_WHOLE = "non-partial response"  # of obstore, where a range was asked for
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
    """The result of a request, which is repeated for `seconds`, with growing pauses, while its error may pass.

    Each time it is signed anew, with credentials as they are then; so a request must be one that may be carried out
    twice. url: of the object or bucket, for messages. clock: as of `repeated`. Raises FileNotFoundError
    where the object is not there, other OSErrors with what is wrong and the remedy; AlreadyExistsError,
    PreconditionError and InvalidPathError of obstore as they are.
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
    """Seconds for which a request is repeated after an answer of that status.

    An answer that the server is overloaded shows that its address is right. Then the first request, too, is repeated
    for `PATIENCE`: an array of jobs sends all of its first requests at once.
    """
    return PATIENCE if seconds == FIRST_PATIENCE and status in (429, 503) else seconds


def may_pass(error: BaseException) -> bool:
    """Whether an error may be gone the next time: the server is overloaded, or cannot be reached."""
    if isinstance(error, ValueError) or _asked_metadata(error) or _WHOLE in str(error):
        return False
    status, code = _status(error), _code(error)
    if status is None:  # no answer; or one about several objects, of which each has a code
        return not code or code in _MAY_PASS
    return status in (408, 409, 429) or status >= 500


def explain(error: BaseException, url: str) -> str:
    """What is wrong and the remedy, in one line, without what might be secret."""
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
    """By its number: what may pass, or with other credentials; what is not allowed; anything else."""
    denied = _status(error) in (401, 403) or _code(error) == "AccessDenied"
    number = errno.EACCES if denied else errno.EIO
    if _code(error) in _EXPIRED or may_pass(error):
        number = errno.ETIMEDOUT
    return OSError(number, explain(error, url))


def _asked_metadata(error: BaseException) -> bool:
    """Whether it was the address which gives a machine's own credentials that failed: there are no others."""
    return any(address in str(error) for address in _METADATA)


def _status(error: BaseException) -> int | None:
    match = _STATUS.search(str(error))
    return None if match is None else int(match[1] or match[2])


def _code(error: BaseException) -> str:
    match = _CODE.search(str(error))
    return "" if match is None else next(filter(None, match.groups()))


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
_RETRY: dict[str, Any] = {  # what takes longer is repeated by `patiently`, with new credentials
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=10),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
_CREDENTIALS_MINUTES = 5
"""After which boto3 is asked again: it renews what expires some minutes earlier than that."""


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
        As of `bucket_client`.

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
    cannot be made, or obstore is not installed.
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
    """Raise UsageError for what is not the URL of a server, or holds a password. name: of the option or variable."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{name} is {without_secrets(endpoint)!r}: write a URL, for example http://localhost:9000")
    if "@" in parts.netloc:
        raise UsageError(f"{name} has a user or password in it: give credentials by the environment")


def refuse_useless(endpoint: str | None, names: Iterable[str]) -> None:
    """Raise UsageError for the server of object stores where none of these paths and URLs is in one."""
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


_PAGE = 1000  # objects that a store lists in one answer
_AT_ONCE = 32  # requests


class State(NamedTuple):
    """What a file is compared by. size: None where its server does not report it. modified: its time in ns; of a remote
    file, an ETag or the like.
    """

    size: int | None
    modified: str

    def differs(self, other: State) -> bool:
        """Whether two states are not of the same content, by what is known of both."""
        sizes, times = (self.size, other.size), (self.modified, other.modified)
        return (None not in sizes and sizes[0] != sizes[1]) or ("" not in times and times[0] != times[1])


class Origin(ABC):
    """A remote file that is open for reading.

    state: as its server last reported it. ranges: whether it can be read from any byte on. at_once: how many requests
    for it are worth having under way; 0 where the driver itself reads ahead.
    """

    state: State
    ranges: bool = True
    at_once: int = 8

    @abstractmethod
    def get(self, start: int, stop: int) -> memoryview:
        """Bytes `start` to `stop`, all of them, where it has ranges; called from several threads at once. Raises
        OSError, after which `state` is another where that is the reason.
        """

    def next(self, size: int) -> bytes:
        """Up to `size` of the next bytes, where it has no ranges; none at its end. Raises OSError."""
        raise NotImplementedError("it has ranges")

    @abstractmethod
    def close(self) -> None:
        """End what is under way."""


class BucketObject(Origin):
    """An object, by its URL. expected: its state as it was listed, which spares a request; None to ask for it."""

    def __init__(self, url: str, expected: State | None = None, endpoint: str | None = None) -> None:
        self._url = url
        bucket, self._key = split_bucket(url)
        self._client = bucket_client(bucket, endpoint)
        self._closed = False
        self.state = state_of_object(url, endpoint, PATIENCE) if expected is None else expected

    def get(self, start: int, stop: int) -> memoryview:
        options: Any = {"range": (start, stop)}
        if self.state.modified.startswith('"'):  # a time is none, nor is a weak tag, which no request may ask for
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
    """Nobody waits for the request any more."""


def state_of_object(url: str, endpoint: str | None, seconds: float, client: Any = None) -> State:
    """Raises FileNotFoundError where there is none, and other OSErrors."""
    bucket, key = split_bucket(url)
    client = client or bucket_client(bucket, endpoint)
    try:
        return _state_in(patiently(lambda: obstore.head(client, key), url, seconds))
    except PermissionError:  # only an answer with a body says why
        return _state_in(patiently(lambda: obstore.get(client, key), url, seconds).meta)


def objects_below(
    bucket: str, folder: str, endpoint: str | None, unlisted: list[tuple[str, str]]
) -> Iterator[tuple[str, State]]:
    """Key and state of each object below a folder of a bucket, at any depth.

    Parameters
    ----------
    bucket : str
        The URL of the bucket.
    folder : str
        The folder, without slashes around it; empty for the whole bucket.
    endpoint : str or None
        As of `bucket_client`.
    unlisted : list of (str, str)
        URLs of folders with objects that cannot be listed, each with the reason, are appended.

    Raises
    ------
    OSError
        Where the bucket cannot be listed.

    """
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
    except InvalidPathError:  # of one object, for which the whole page is lost: look folder by folder
        here, folders = objects_in(bucket, folder, endpoint, unlisted)
        yield from ((key, state) for key, state in here if key not in listed)
        for below in folders:
            yield from (found for found in objects_below(bucket, below, endpoint, unlisted) if found[0] not in listed)


def objects_in(
    bucket: str, folder: str, endpoint: str | None, unlisted: list[tuple[str, str]]
) -> tuple[list[tuple[str, State]], list[str]]:
    """The objects in a folder of a bucket itself, each with its state; and the folders in it. Parameters, and what is
    raised, as of `objects_below`.
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
    """The same of a folder in S3 in which there are keys that obstore refuses: PyArrow lists the others."""
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
    with threads(_AT_ONCE) as pool:  # Arrow does not report tags
        states = list(pool.map(lambda key: state_of_object(f"{bucket}/{key}", endpoint, PATIENCE), keys))
    folders = [about.path.removeprefix(f"{name}/") for about in inside if about.type == arrow_fs.FileType.Directory]
    return list(zip(keys, states, strict=True)), folders


def _has_path(key: str) -> bool:
    """Whether obstore opens the object with such a key."""
    return not {"", ".", ".."} & set(key.split("/"))


def _state_in(about: Any) -> State:
    tag = about["e_tag"] or about["last_modified"].isoformat()
    if about["e_tag"] and not tag.startswith(("W/", '"')):
        tag = f'"{tag}"'  # Azure lists tags without the quotes that they have in its other answers
    return State(about["size"], tag)
