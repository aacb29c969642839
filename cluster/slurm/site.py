"""The settings of a Slurm site: `site.yaml`, and a user's changes to it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from ...pipeline.errors import UsageError

DEFAULTS = Path(__file__).with_name("site.yaml")
USERS = Path("~/.config/broadsheet/site.yaml")

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]

_WORDS = ("partition", "account", "time", "memory", "interface", "scheduler_interface", "folder")
"""The keys whose values must be one word, as they become part of a line of the script."""

_WORD = re.compile(r"[\w.,:;@%+=/*^~\[\]()-]+")
"""A value without spaces and quotes: a space would end a directive. Letters of any script are allowed."""

_NULLS = ("", "~", "null", "Null", "NULL")  # YAML's spellings of null


@dataclass(frozen=True)
class Site:
    """The settings of a site, with the keys of `site.yaml`.

    Attributes
    ----------
    partition, account : str or None
        Options of sbatch; None for the cluster's defaults.
    time : str
        The time limit of a job.
    stop_before : int
        The seconds before the limit at which a job stops starting chunks.
    gpus_per_node : int
        The GPUs of a node to use; 0 for one worker on each node's CPU cores.
    workers_per_gpu : int
        The number of workers that share a GPU in a submitted job: 1 or 2.
    cpus_per_node : int or None
        The option --cpus-per-task of sbatch; None for the cluster's default.
    memory : str or None
        The option --mem of sbatch; None for the cluster's default.
    directives : tuple of str
        More options of sbatch, one for each line at the head of the script.
    interface : str or None
        The network interface with which nodes reach each other; None for Dask's choice.
    scheduler_interface : str or None
        The interface on a notebook's machine, which has the scheduler, if its name differs there.
    protocol : str
        "auto", "tcp" or "ucx".
    tls : bool or None
        Whether Dask's traffic is encrypted; None to encrypt it unless the protocol is UCX.
    folder : str
        A folder that every node sees and only the user can write.
    setup : tuple of str or None
        Lines of shell that make the commands work on a node; None for the environment of the submitting user.

    Raises
    ------
    UsageError
        For a value that would be more than one word or line of the script.

    """

    partition: str | None
    account: str | None
    time: str
    stop_before: Positive
    gpus_per_node: NotNegative
    workers_per_gpu: Literal[1, 2]
    cpus_per_node: Positive | None
    memory: str | None
    directives: tuple[str, ...]
    interface: str | None
    scheduler_interface: str | None
    protocol: Literal["auto", "tcp", "ucx"]
    tls: bool | None
    folder: str
    setup: tuple[str, ...] | None

    def __post_init__(self) -> None:
        for key in _WORDS:
            value = getattr(self, key)
            if value is not None and not _WORD.fullmatch(value):
                raise UsageError(
                    f"{key} is {value!r}: it must be one word of letters, digits and .,:;@%+=/*^~[]()-, to be put "
                    "into a line of the job's script"
                )
        for key in ("directives", "setup"):
            for line in getattr(self, key) or ():
                if not line.isprintable():
                    raise UsageError(f"{key} has {line!r}: each item of the list is one line of the job's script")
        if os.path.expanduser(self.folder).startswith("~"):
            raise UsageError(f"folder is {self.folder!r}: there is no such user here")
        for line in self.directives:
            if not line.startswith("-"):
                raise UsageError(f"directives has {line!r}: each is an option of sbatch, for example --qos=long")

    @property
    def shared_folder(self) -> Path:
        """The folder of scheduler files, which every node sees."""
        return Path(self.folder).expanduser()

    def changed(self, **settings: Any) -> Site:
        """Return a copy with those of `settings` that are not None."""
        return replace(self, **{name: value for name, value in settings.items() if value is not None})


def load_site(file: Path | None = None) -> Site:
    """Load the shipped settings, changed by `file`, else by $BROADSHEET_SITE, else by ~/.config/broadsheet/site.yaml.

    Raises UsageError for a file that cannot be read, an unknown key, or a value of the wrong form.
    """
    settings = _read(DEFAULTS)
    if file is None and "BROADSHEET_SITE" in os.environ:
        file = Path(os.environ["BROADSHEET_SITE"])
    if file is None and USERS.expanduser().exists():
        file = USERS.expanduser()
    if file is not None:
        settings |= _read(file)
    unknown = sorted(set(settings) - {field.name for field in fields(Site)})
    if unknown:
        raise UsageError(f"{file}: unknown key {unknown[0]!r}; the keys are those of {DEFAULTS}")
    try:
        return msgspec.convert(settings, Site, strict=False)  # not strict, because all values are text
    except msgspec.ValidationError as error:
        problem, _, key = str(error).partition(" - at `$.")
        raise UsageError(f"{file}: {key.rstrip('`')}: {problem}; {DEFAULTS} shows the form of each key") from error
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}") from error


def _read(file: Path) -> dict[str, Any]:
    """Return the keys and values of a file, all as text.

    YAML would read the time 12:00:00 as the number 43200, and Slurm takes such a number as minutes.
    """
    try:
        settings = yaml.load(file.read_text("utf-8"), yaml.BaseLoader) or {}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(settings, dict):
        raise UsageError(f"{file} is not a list of settings; its form is that of {DEFAULTS}")
    return {key: None if value in _NULLS else value for key, value in settings.items()}
