"""Imports obstore, the driver of object stores, and its errors. The extra `object-stores` installs it.

Without obstore everything but object stores works. If a bucket is named, `check_driver` says what to install.
"""

from __future__ import annotations

from ..errors import UsageError, install

try:
    import obstore
    import obstore.store
    from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, PreconditionError
except ModuleNotFoundError:
    obstore = None  # type: ignore[assignment]

    class _NeverRaised(Exception):
        """Stands in for obstore's errors, so that handlers can name them."""

    AlreadyExistsError = BaseError = InvalidPathError = PreconditionError = _NeverRaised  # type: ignore[misc, assignment]

__all__ = ["AlreadyExistsError", "BaseError", "InvalidPathError", "PreconditionError", "check_driver", "obstore"]


def check_driver(bucket: str) -> None:
    """Raise UsageError if obstore is not installed. bucket: the URL that needs it, for the message."""
    if obstore is None:
        raise UsageError(f"{bucket} is in an object store, which needs obstore: {install('object-stores')}")
