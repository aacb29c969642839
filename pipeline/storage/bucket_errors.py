"""What an error of an object store means, in one line with the remedy; and requests that outlast an outage."""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from .names import without_secrets

PATIENCE = 300.0
"""Seconds for which a request is repeated while its error may pass."""

FIRST_PATIENCE = 5.0
"""The same for the first request of a job: an address that is wrong should not take minutes to be told."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
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


def patiently(call: Callable[[], _Result], url: str, seconds: float = PATIENCE) -> _Result:
    """The result of a request, which is repeated for `seconds`, with growing pauses, while its error may pass.

    Each time it is signed anew, with credentials as they are then; so a request must be one that may be carried out
    twice. url: of the object or bucket, for messages. Raises FileNotFoundError where the object is not there, other
    OSErrors with what is wrong and the remedy; AlreadyExistsError and PreconditionError of obstore as they are.
    """
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        try:
            return call()
        except (AlreadyExistsError, PreconditionError):
            raise
        except FileNotFoundError as error:
            if _code(error) not in _NO_BUCKET:
                raise FileNotFoundError(errno.ENOENT, "there is no such object") from error
            raise _explained(error, url) from error
        except (BaseError, OSError, TimeoutError, ValueError) as error:
            if not may_pass(error) or time.monotonic() + pause > deadline:
                raise _explained(error, url) from error
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)


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
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1] or found[2])


def _code(error: BaseException) -> str:
    found = _CODE.search(str(error))
    return "" if found is None else next(filter(None, found.groups()))
