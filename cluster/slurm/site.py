"""The settings of a Slurm site: `site.yaml`, and a user's changes to it."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UsageError

DEFAULTS = Path(__file__).with_name("site.yaml")
USERS = Path("~/.config/broadsheet/site.yaml")


@dataclass(frozen=True)
class Site:
    """The keys of `site.yaml`, which documents them. stop_before: seconds."""

    partition: str | None
    account: str | None
    time: str
    stop_before: int
    gpus_per_node: int
    cpus_per_node: int | None
    memory: str | None
    directives: tuple[str, ...]
    interface: str | None
    scheduler_interface: str | None
    protocol: str
    tls: bool
    folder: str
    setup: str | None

    @property
    def shared_folder(self) -> Path:
        """The folder of scheduler files, which every node sees."""
        return Path(self.folder).expanduser()

    def changed(self, **settings: Any) -> Site:
        """A copy with those of `settings` that are not None."""
        return replace(self, **{name: value for name, value in settings.items() if value is not None})


def load_site(file: Path | None = None) -> Site:
    """The shipped settings, changed by `file`, else by $BROADSHEET_SITE, else by ~/.config/broadsheet/site.yaml.

    Raises UsageError for a file that cannot be read or holds an unknown key.
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
    settings["directives"] = tuple(settings["directives"])
    settings["time"] = str(settings["time"])
    return Site(**settings)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{file} is not a list of settings; its form is that of {DEFAULTS}")
    return found
