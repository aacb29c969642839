"""In a checkout the folders `pipeline` and `cluster` can be imported by their own names, too: as the same modules."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType


class _Same(MetaPathFinder, Loader):
    """Finds `pipeline.x` as `broadsheet.pipeline.x`, which it leaves as it is."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        ours = name.startswith(f"{self._package}.") and not name.endswith(".__main__")  # which `python -m` runs itself
        return spec_from_loader(name, self) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"broadsheet.{spec.name}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # the import system has put the second name there


def alias(package: str) -> None:
    """Let `package` be another name of `broadsheet.package`, with all its modules."""
    sys.meta_path.insert(0, _Same(package))
    sys.modules[package] = import_module(f"broadsheet.{package}")
