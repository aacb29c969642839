"""Whose output folder it is: a small file, created once, that only `--overwrite` replaces.

Every write of a job is checked against it (see `Store.add`), so that a job whose folder has been taken writes
nothing more there, however late it is.
"""

from __future__ import annotations

from ..errors import OutputError
from .layout import CLAIM
from .record import Claim, from_json, to_json
from .store import Store


def claim(store: Store, job: str) -> bool:
    """Claim a folder for a job unless it is claimed; return whether this call claimed it. Raises OutputError."""
    return store.create(CLAIM, to_json(Claim(job)))


def take_over(store: Store, job: str) -> None:
    """Claim a folder for a job, whosever it was. Raises OutputError."""
    store.put(CLAIM, to_json(Claim(job)))


def claimed_by(store: Store) -> str:
    """The id of the job that owns the folder. Raises OutputError where the claim is missing or damaged."""
    try:
        return from_json(store.read(CLAIM), Claim, store.root / CLAIM).job
    except OutputError as error:
        remedy = ". If no other job runs there, remove it, then" if store.has(CLAIM) else ":"
        raise OutputError(f"{error.message}{remedy} continue with --resume") from error


def is_claimed(store: Store) -> bool:
    """Whether a job, of any id, owns the folder by a claim that can be read."""
    try:
        claimed_by(store)
    except OutputError:
        return False
    return True


def check_claim(store: Store, job: str) -> None:
    """Raise OutputError where another job has taken the folder."""
    if claimed_by(store) != job:
        raise OutputError(f"another job has overwritten {store.root}: the labels of this one are lost")
