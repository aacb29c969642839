"""The file next to a params.bin for what the parameter file has no place for: class names, alphabet, frame, card."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ..errors import ModelError
from . import model_file
from .frame import Frame

_MOST_BYTES = model_file.MOST_HEADER_BYTES


class Sidecar(Struct, frozen=True, kw_only=True):
    """sha256: of the parameter file that it belongs to. Version 1 knew no frame but the dense one."""

    format: Literal["broadsheet-params/1", "broadsheet-params/2"] = "broadsheet-params/2"
    alphabet: str
    classes: list[str]
    frame: Frame = "dense"
    card: dict[str, Any] = {}
    sha256: str


def path_of(params: Path) -> Path:
    """The sidecar's path: that of the parameter file, and `.json`."""
    return params.with_name(f"{params.name}.json")


def read(params: Path, data: bytes) -> Sidecar | None:
    """The sidecar of a parameter file with this content; None where there is none.

    Raises ModelError where it is damaged, or belongs to another parameter file.
    """
    path = path_of(params)
    try:
        found = msgspec.json.decode(model_file.read_file(path, _MOST_BYTES), type=Sidecar)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}, which has the class names of {params.name}, is damaged ({str(error)[:200]}): remove it, and give "
            "--classes to broadsheet convert"
        ) from error
    if found.sha256 != hashlib.sha256(data).hexdigest():
        raise ModelError(f"{path} belongs to another {params.name}: one of the two was replaced. Remove {path.name}")
    return found


def to_json(alphabet: str, classes: list[str], frame: Frame, card: dict[str, Any], data: bytes) -> bytes:
    """The content of the sidecar of a parameter file with this content."""
    digest = hashlib.sha256(data).hexdigest()
    beside = Sidecar(alphabet=alphabet, classes=classes, frame=frame, card=card, sha256=digest)
    return msgspec.json.format(msgspec.json.encode(beside), indent=1) + b"\n"
