"""broadsheet push: a model to the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import typer

from ..report.console import say


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped model's name, or a file.")],
    repository: Annotated[str, typer.Argument(metavar="USER/NAME", help="The repository; made if it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Of a repository that is made: only you see it.")] = False,
    message: Annotated[str, typer.Option(metavar="TEXT", help="Of the commit.")] = "A model",
) -> None:
    """Upload a model to the Hugging Face Hub, with a card made from its own.

    Log in by `hf auth login` first. Afterwards `--model hf://USER/NAME` is the model, for every command.
    """
    from ..ecosystem.push import push

    say(push(model, repository, private=private, message=message))
