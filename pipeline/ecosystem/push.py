"""Uploads a model to a repository of the Hugging Face Hub, with a card made from the model's own."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import OutputError, UsageError, install
from ..model.charcnn import Model
from ..model.layers import WHOLE
from ..model.model_file import HUB, HUB_FILE, repository_of
from ..model.several import load_one

_MOST_CLASSES = 50


def push(model: str | Path | Model, repository: str, *, private: bool = False, message: str = "A model") -> str:
    """Upload a model to the Hugging Face Hub, in one commit with its card. Needs the extra ``hub``.

    The repository is created if it does not exist. Afterwards ``hf://user/name`` is the model, for every command. Log
    in with ``hf auth login``, or have a token in the environment, as for other Hugging Face programs.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    repository : str
        ``user/name``.
    private : bool
        Whether a repository that is created is private, so that only you see it.
    message : str
        The message of the commit.

    Returns
    -------
    str
        The model by its commit, ``hf://user/name@…``. Use this name where the model must never change.

    Raises
    ------
    UsageError
        For an invalid name, and without the package ``huggingface_hub``.
    ModelError
        For a model that cannot be loaded.
    OutputError
        If the Hub refuses the upload, or is out of reach.

    Examples
    --------
    >>> broadsheet.push("topics.safetensors", "user/topics")
    'hf://user/topics@...'

    """
    repository, revision = repository_of(f"{HUB}{repository.removeprefix(HUB)}")
    if revision is not None:
        raise UsageError("a push is a new commit: leave out @ and what follows it")
    loaded = load_one(model)
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
    except ImportError as error:
        raise UsageError(f"huggingface_hub is not installed: {install('hub')}") from error
    api = HfApi(library_name="broadsheet")
    files = {
        HUB_FILE: loaded.to_bytes(),
        "README.md": model_card(loaded, repository).encode("utf-8", "backslashreplace"),
    }
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(
            repository, [CommitOperationAdd(name, data) for name, data in files.items()], commit_message=message
        )
    except Exception as error:  # errors of HTTP, the name and the cache come from several libraries
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise OutputError(f"{repository} could not be pushed: {reason[:200]}") from error
    return f"{HUB}{repository}@{commit.oid}"


def model_card(model: Model, repository: str) -> str:
    """Return the page of a repository, in Markdown: what the model reads and returns, how to use it, and its card."""
    # Collect the facts about the model.
    names = ", ".join(model.classes[:_MOST_CLASSES]) + (", …" if len(model.classes) > _MOST_CLASSES else "")
    facts = {"classes": f"{len(model.classes)}: {names}", "reads": _reads(model)}
    if model.meant_for:
        facts["meant for"] = model.meant_for
    facts |= {"weights": f"{model.parameters:,}, {model.dtype}", "digest": model.digest}
    kind = "An encoder" if model.encoder else "A character-level CNN" if model.has_network else "A model of n-grams"
    about = json.dumps(dict(model.card), indent=2, ensure_ascii=False)
    # Write the page, with a header that the hub reads.
    lines = [
        "---",
        "library_name: broadsheet",
        "pipeline_tag: text-classification",
        "tags:",
        "- text-classification",
        *(["- character-level-cnn"] if model.has_network else []),
        "---",
        "",
        f"# {repository.partition('/')[2]}",
        "",
        f"{kind} for [Broadsheet](https://github.com/broadsheet/broadsheet).",
        "",
        *(_indented(f"{name:<10} {value}") for name, value in facts.items()),
        "",
        "To label a file:",
        "",
        _indented(f"broadsheet classify articles.csv -o labels --model {HUB}{repository}"),
        "",
        "From Python:",
        "",
        _indented(f'broadsheet.load("{HUB}{repository}")(["A text.", "Another."])'),
        "",
        "How it was made:",
        "",
        *(_indented(line) for line in about.splitlines()),
        "",
    ]
    return "\n".join(lines)


def _reads(model: Model) -> str:
    if model.encoder is not None:
        return f"the first {model.encoder.settings.most_tokens:,} tokens of a text, with the two that frame it"
    return "whole texts" if model.reads == WHOLE else f"the first {model.reads:,} characters of a text"


def _indented(line: str) -> str:
    """Return the line indented as code, so that nothing in a card or a class is read as Markdown."""
    return "    " + " ".join(line.splitlines())
