"""Models in repositories of the Hugging Face Hub: ``hf://user/name``, ``hf://user/name@revision``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import ModelError, UsageError

SCHEME = "hf://"
FILE = "model.safetensors"
"""The model in a repository."""


class Fetched(NamedTuple):
    """A file in the cache, and what it is called: with the commit that it is of."""

    path: Path
    name: str


def repository_of(url: str) -> tuple[str, str | None]:
    """The repository and the revision, if one is named. Raises UsageError for anything else."""
    repository, _, revision = url.removeprefix(SCHEME).partition("@")
    if repository.count("/") != 1 or not all(repository.split("/")) or url.endswith("@"):
        raise UsageError(
            f"{url!r:.200} names no repository of the Hub: write hf://user/name or hf://user/name@revision"
        )
    return repository, revision or None


def fetch(url: str) -> Fetched:
    """Download a model, or find it in the cache of huggingface_hub, without which UsageError is raised.

    Raises ModelError where the repository, the revision or the file is not there, or the Hub is out of reach and the
    cache lacks it.
    """
    repository, revision = repository_of(url)
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise UsageError("huggingface_hub is not installed: pip install 'broadsheet[hub]'") from error
    try:
        path = Path(hf_hub_download(repository, FILE, revision=revision, library_name="broadsheet"))
    except Exception as error:  # of HTTP, the name or the cache, each of another library
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{url}: no {FILE} is to be had there: {reason[:200]}") from error
    return Fetched(path, f"{SCHEME}{repository}@{path.parent.name}")
