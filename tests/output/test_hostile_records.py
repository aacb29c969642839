"""Records of an output folder with any content: a message, and no row is lost."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from conftest import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import contents
from test_damaged_output import Finished, give_hash, undisturbed

from pipeline import BroadsheetError, verify

__all__ = ["undisturbed"]  # a fixture of the test here too

RECORDS = [
    "_manifest",
    "_plan",
    "_claim",
    "_entries/part-000000-0000001",
    "_entries/part-000001-0000002",
    "_entries/group-000000",
    "_entries/group-000001",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["../../x", "\0"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every value within one, as its container and its key or index."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def disturbed(data: st.DataObject, text: bytes) -> bytes:
    """A JSON file with one value replaced, removed or doubled, cut short, or replaced as a whole."""
    whole = data.draw(st.none() | st.binary(max_size=20) | VALUES.map(lambda v: json.dumps(v).encode()), "the whole")
    if whole is not None:
        return whole
    value = json.loads(text)
    container, key = data.draw(st.sampled_from(places(value)))
    match data.draw(st.sampled_from(["replace", "remove", "double", "cut", "nest"])):
        case "replace":
            container[key] = data.draw(VALUES)
        case "remove":
            del container[key]
        case "double" if isinstance(container, list):
            container.insert(key, container[key])
        case "cut":
            return text[: data.draw(st.integers(0, len(text)))]
        case _:
            return text.replace(b": ", b": " + b"[" * 5000, 1)
    return json.dumps(value).encode()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_record_whatever_it_holds_ends_in_a_traceback_or_loses_a_row(
    undisturbed: Finished, tmp_path: Path, data: st.DataObject
) -> None:
    """verify and --resume end with a message, or the output is whole; a plan is forged together with its hash."""
    out = tmp_path / "within" / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(undisturbed.out, out)
    path = min(out.glob(data.draw(st.sampled_from(RECORDS)) + "*.json"))
    path.write_bytes(disturbed(data, path.read_bytes()))
    if path.name == "_plan.json":
        give_hash(out)
    parts = {name: content for name, content in undisturbed.files.items() if name.startswith("parts/")}
    for call in (verify, partial(undisturbed.run, resume=True)):
        message = ""
        try:
            result = call(out)
        except BroadsheetError as error:
            message = str(error)
        assert "Traceback" not in message
        told = message or getattr(result, "exit_code", 0)
        assert told or parts == {name: content for name, content in contents(out).items() if name.startswith("parts/")}
    assert [path.name for path in tmp_path.rglob("*") if out not in path.parents] == ["within", "out"]
