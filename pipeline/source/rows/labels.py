"""Reads labels: what a cell of a label column says, which labels are one class, and which class of a model a label
names.

Training, evaluation, calibration and the truth of a job all use these functions, so a file that a model was trained on
has the same labels when the model is evaluated on it.

Tools write one value in several ways. pandas writes the integers of a column as ``0.0`` and ``1.0`` once a value is
missing, and booleans as ``True`` and ``False``, which other tools write as ``true`` and ``false``. Such spellings are
always one label. Spellings that differ by case, spaces or Unicode form (``Sports``, ``sports ``) stay different labels
unless the user folds them.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...errors import UsageError
from .layouts import LIST_VIEWS, LISTS, is_one_of, plain_values

NO_TRUTH = -1

_WHOLE_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
"""Matches a whole number as tools write it: ``7`` or ``7.0``. It does not match ``007``, which is a code that a number
would damage.
"""

_CODE = re.compile(r"[-+]?[0-9.,]*[0-9][0-9.,]*([eE][-+]?[0-9]+)?")
"""Matches a name that is written in digits: a number of any kind, or a code such as ``007``."""

_BOOLEANS = {"true": "true", "True": "true", "TRUE": "true", "false": "false", "False": "false", "FALSE": "false"}
_NUMBER_OF_BOOLEAN = {"true": "1", "false": "0"}

_MISSING = pa.array(["", "nan", "NaN", "<NA>"], pa.large_string())
"""What CSV files hold for a missing label: nothing, or what pandas and NumPy print for it. There may be spaces around
it.
"""

_DEFAULT_NAME = re.compile(r"LABEL_([0-9]+)")
"""Matches the names that transformers gives the classes of a model whose author named none. They count from 0."""

_SHORTEST, _SHARE_OF_TYPOS = 4, 0.2
"""The smallest number of letters in names that are compared letter by letter; and the largest number of rows of a
misspelled name, as a share of the rows of the right one.
"""

_SHOWN = 8
"""The largest number of labels that a message names."""


def label_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a label column's labels: strings, or lists of strings if its cells hold lists."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.list_(pa.string()) if _is_list(kind) else pa.string()


def labels_of(cells: pa.Array, names: Sequence[str] | None = None) -> pa.Array:
    """Turn the cells of a label column into labels.

    Parameters
    ----------
    cells : pyarrow.Array
        [N], strings, numbers, booleans, or lists of these.
    names : sequence of str, optional
        The names of the classes, as the file has them, if the cells hold the numbers of classes, from 0. A negative
        number stands for no label. Cells that are not numbers are labels themselves.

    Returns
    -------
    pyarrow.Array
        [N], strings, or lists of strings for lists; null if a cell has no label.

    Raises
    ------
    UsageError
        If the cells are of another type, or hold a number for which `names` has no name.

    """
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if _is_list(cells.type):
        plain = plain_values(cells)
        lists = plain.cast(pa.list_(plain.type.value_type))
        values = labels_of(lists.flatten(), names)
        lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=lists.is_null())
    if names is not None and (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        return _named(cells, names)
    is_scalar = not pa.types.is_nested(cells.type) and not isinstance(cells.type, pa.BaseExtensionType)
    try:
        texts = cells.cast(pa.string()) if is_scalar else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = None
    if texts is None:
        raise UsageError(f"a column of {cells.type} holds no labels: labels are strings, numbers or booleans")
    bare = pc.utf8_trim_whitespace(texts.cast(pa.large_string()))
    is_missing = pc.or_kleene(texts.is_null(), pc.is_in(bare, value_set=_MISSING))
    return pc.if_else(is_missing, pa.scalar(None, pa.string()), texts)


def _is_list(kind: pa.DataType) -> bool:
    return is_one_of(kind, (*LISTS, *LIST_VIEWS, pa.types.is_fixed_size_list))


def _named(numbers: pa.Array, names: Sequence[str]) -> pa.Array:
    """Return the name for each class number; null for a negative number, a NaN or a null. Raises UsageError."""
    if pa.types.is_floating(numbers.type):
        numbers = pc.if_else(pc.is_nan(numbers), pa.scalar(None, numbers.type), numbers)
        if not pc.all(pc.equal(numbers, pc.round(numbers))).as_py() and numbers.null_count < len(numbers):
            raise UsageError(f"a label is no whole number, but the file numbers {len(names)} classes: {_shown(names)}")
        numbers = numbers.cast(pa.int64())
    known = pc.if_else(pc.less(numbers, 0), pa.scalar(None, numbers.type), numbers)
    highest = pc.max(known).as_py()
    if highest is not None and highest >= len(names):
        raise UsageError(f"a label is {highest}, but the file names {len(names)} classes, from 0: {_shown(names)}")
    return pc.take(pa.array(names, pa.string()), known)


def class_names_in(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of the classes that a file of Hugging Face's `datasets` has for its columns of class numbers.

    `datasets` writes its features into the metadata of Parquet and Arrow schemas, as JSON under the key
    ``huggingface``. A feature ``ClassLabel`` has the names in the order of their numbers, from 0. It may be within a
    list or within another column.
    """
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return dict(_named_features(features))
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # no such metadata, or it is damaged: then the column holds numbers


def _named_features(features: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each column that has names of classes, with these names. A column within another has a name with dots."""
    for column, feature in features.items():
        if (names := _class_names(feature)) is not None:
            yield f"{before}{column}", names
        elif isinstance(feature, dict) and "_type" not in feature:
            yield from _named_features(feature, f"{before}{column}.")


def _class_names(feature: Any) -> tuple[str, ...] | None:
    if isinstance(feature, list) and len(feature) == 1:
        return _class_names(feature[0])
    if not isinstance(feature, dict):
        return None
    if feature.get("_type") == "ClassLabel":
        names = feature.get("names")
        is_usable = isinstance(names, list) and all(isinstance(name, str) for name in names)
        return tuple(names) if is_usable and names else None
    return _class_names(feature.get("feature"))


def _value(label: str) -> str:
    """Return the value that a label spells. All spellings of one number, or of one boolean, have the same value."""
    if label in _BOOLEANS:
        return _BOOLEANS[label]
    number = _WHOLE_NUMBER.fullmatch(label)
    if number is None:
        return label
    return "0" if number[1] == "-0" else number[1]


def folded(label: str) -> str:
    """Return the label without the differences that `--fold-labels` ignores: case, spaces, and Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", label).casefold().split())


def _folded_value(label: str) -> str:
    """Return the value that a label spells once it is folded."""
    return _value(folded(label))


def _same_value(labels: Iterable[str]) -> dict[str, str]:
    """Return the value of each label. In a column that holds nothing else, 1 and true are one value, and so are 0 and
    false.
    """
    values = {label: _value(label) for label in labels}
    if {*values.values()} <= {"0", "1", "true", "false"}:
        values = {label: _NUMBER_OF_BOOLEAN.get(value, value) for label, value in values.items()}
    return values


def class_of_each(counts: Mapping[str, int], fold: bool = False) -> dict[str, str]:
    """Return the class of each label that occurs: the commonest spelling of its value.

    Parameters
    ----------
    counts : mapping of str to int
        How many rows have each label.
    fold : bool
        Whether labels that differ only by case, spaces or Unicode form are one class.

    Returns
    -------
    dict of str to str
        The name of the class of each label.

    """
    spelled = {label: folded(label) if fold else label for label in counts}
    values = _same_value(spelled.values())
    keys = {label: values[spelling] for label, spelling in spelled.items()}
    name_of: dict[str, str] = {}
    for label in sorted(counts, key=lambda label: (-counts[label], label)):
        name_of.setdefault(keys[label], " ".join(label.split()) if fold else label)
    return {label: name_of[key] for label, key in keys.items()}


def spelled_alike(counts: Mapping[str, int]) -> list[list[str]]:
    """Return the classes that look like spellings of one class: each group of names that folding would make one class.

    counts: how many rows have each class. The names of a group are in the order of their counts, the commonest first.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        groups.setdefault(_folded_value(name), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def one_letter_off(counts: Mapping[str, int]) -> list[list[str]]:
    """Return the classes that may be one, because one letter of their names is missing, added, changed, or swapped with
    the next.

    Parameters
    ----------
    counts : mapping of str to int
        How many rows have each class.

    Returns
    -------
    list of list of str
        Groups of names, the commonest first. When folded, each other name is one letter away from the first. It has at
        most a fifth of the first one's rows, and no digit differs: names that are different on purpose are mostly
        commoner, or numbered.

    """
    by_count = sorted(counts, key=lambda name: (-counts[name], name))
    groups: list[list[str]] = []
    taken: set[str] = set()
    lengths: dict[int, list[str]] = {}
    for name in by_count:
        lengths.setdefault(len(folded(name)), []).append(name)
    for name in by_count:
        spelling = folded(name)
        if name in taken or len(spelling) < _SHORTEST:
            continue
        near = [other for size in range(len(spelling) - 1, len(spelling) + 2) for other in lengths.get(size, ())]
        typos = [
            other
            for other in near
            if other not in taken
            and 0 < counts[other] <= counts[name] * _SHARE_OF_TYPOS
            and _is_one_off(spelling, folded(other))
        ]
        if typos:
            groups.append([name, *sorted(typos, key=lambda other: (-counts[other], other))])
            taken |= {name, *typos}
    return groups


def _is_one_off(one: str, other: str) -> bool:
    """Whether two names differ by one letter that is missing, added, changed, or swapped with the next."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    rest, other_rest = one[same:], other[same:]
    changed = (rest[1:], other_rest[1:]), (rest[1:], other_rest), (rest, other_rest[1:])
    is_swap = rest[:2] == other_rest[:2][::-1] and rest[2:] == other_rest[2:]
    differing = rest[:2] + other_rest[:2] if is_swap else rest[:1] + other_rest[:1]
    return one != other and not any(map(str.isdigit, differing)) and (is_swap or any(a == b for a, b in changed))


@dataclass(frozen=True)
class LabelRules:
    """How labels name the classes of a model.

    Attributes
    ----------
    numbers_from : int or None
        The number of the first class, 0 or 1, in a column of class numbers; None if no label is a class number.
    fold : bool
        Whether a label that differs from a class only by case, spaces or Unicode form names that class.
    classes_of : mapping of str to str
        The class for which a label stands, if that is not the label itself; "" for no class.

    """

    numbers_from: int | None = None
    fold: bool = False
    classes_of: Mapping[str, str] = field(default_factory=dict)

    def indices(self, labels: Iterable[str], classes: Sequence[str]) -> dict[str, int]:
        """Return the index of the class that each label names, and NO_TRUTH for a label that names none.

        A class number names its class. Any other label names the class that is spelled like it, or else the class of
        the same value, or else, with `fold`, the class that is equal once both are folded. If two classes fit, it names
        none.
        """
        spellings = {name: i for i, name in enumerate(classes)}
        values = _positions(_value(name) for name in classes)
        booleans = _positions(_same_value(classes).values()) if len(classes) == len(_NUMBER_OF_BOOLEAN) else {}
        alike = _positions(_folded_value(name) for name in classes) if self.fold else {}
        numbers = self._numbers(classes)

        def index(label: str) -> int:
            label = self.classes_of.get(label, label)
            value = _value(label)
            ways = (
                (numbers, value),
                (spellings, label),
                (values, value),
                (booleans, _NUMBER_OF_BOOLEAN.get(value, value)),
                (alike, _folded_value(label)),
            )
            return next((positions[key] for positions, key in ways if key in positions), NO_TRUTH)

        return {label: index(label) for label in labels}

    def _numbers(self, classes: Sequence[str]) -> dict[str, int]:
        """Return the index of the class for which each class number stands. `numbers_from` has priority over default
        names.
        """
        if self.numbers_from is not None:
            return {str(self.numbers_from + i): i for i in range(len(classes))}
        return {match[1]: i for i, name in enumerate(classes) if (match := _DEFAULT_NAME.fullmatch(name))}


NAMES_ONLY = LabelRules()
"""The rules for labels that are names, spelled like those of the classes."""


def _positions(keys: Iterable[str]) -> dict[str, int]:
    """Return the position of each key that occurs once."""
    every = [*keys]
    counts = Counter(every)
    return {key: i for i, key in enumerate(every) if counts[key] == 1}


def has_numbers(classes: Iterable[str]) -> bool:
    """Whether a class has a number or a code as its name, so that a number in a label column is a name.

    This holds for ``007`` as well: a tool may have made the number 7 of that code.
    """
    return any(_CODE.fullmatch(name) for name in classes)


def first_class_number(labels: Iterable[str], classes: Sequence[str], column: str) -> int | None:
    """Return the number, 0 or 1, from which on a column numbers the classes of a model, or None if its labels are
    names.

    A negative number stands for no label.

    Parameters
    ----------
    labels : iterable of str
        The labels that occur.
    classes : sequence of str
        The classes of the model, in order.
    column : str
        The name of the column, for messages.

    Raises
    ------
    UsageError
        If the labels are numbers that may count from 0 or from 1, or that are more than the classes.

    """
    given = {*labels}
    if has_numbers(classes) or any(i != NO_TRUTH for i in NAMES_ONLY.indices(given, classes).values()):
        return None
    numbers = {int(value) for label in given if _WHOLE_NUMBER.fullmatch(value := _value(label))}
    numbers = {number for number in numbers if number >= 0}
    if not numbers:
        return None
    lowest, highest = min(numbers), max(numbers)
    if lowest == 0 and highest < len(classes):
        return 0
    if lowest > 0 and highest == len(classes):
        return 1
    found = f"column {column!r} holds numbers ({_shown(map(str, sorted(numbers)))})"
    remedy = "give --label-numbers-from 0 or --label-numbers-from 1, or a column with the names of the classes"
    if highest >= len(classes):
        raise UsageError(f"{found}, which are more than the {len(classes)} classes {_shown(classes)}: {remedy}")
    raise UsageError(f"{found}, and they may count {_shown(classes)} from 0 or from 1: {remedy}")


def class_numbers_line(first: int, classes: Sequence[str]) -> str:
    """Return a line that tells the user how a label column numbers the classes. first: the number of the
    first class.
    """
    return f"labels are class numbers: {first} is {classes[0]}, {first + len(classes) - 1} is {classes[-1]}"


def _shown(names: Iterable[str]) -> str:
    first = [*names]
    return ", ".join(first[:_SHOWN]) + (", …" if len(first) > _SHOWN else "")


def one_label_each(labels: pa.Array, column: str) -> pa.Array:
    """Return the labels of rows that have one label each, as `labels_of` returns them. Raises UsageError for lists of
    labels.
    """
    if _is_list(labels.type):
        raise UsageError(f"column {column!r} holds lists: several labels a row need a model trained with --multi-label")
    return labels


def class_indices(
    labels: pa.Array, classes: Sequence[str], rules: LabelRules
) -> tuple[NDArray[np.int32], dict[str, int]]:
    """Return which class each label names, and the labels that name none.

    Parameters
    ----------
    labels : pyarrow.Array
        [N], strings as `labels_of` returns them.
    classes : sequence of str
        The names of the classes.
    rules : LabelRules
        How labels name classes.

    Returns
    -------
    indices : ndarray
        int32 [N], NO_TRUTH if there is no label or it names no class.
    unknown : dict of str to int
        The number of rows with each label that names no class.

    """
    distinct = labels.dictionary_encode()
    index_of = rules.indices(distinct.dictionary.to_pylist(), classes)
    of_value = np.array([*index_of.values(), NO_TRUTH], np.int32)
    positions = distinct.indices.fill_null(len(index_of)).to_numpy(zero_copy_only=False)
    counts = np.bincount(positions, minlength=len(index_of) + 1)
    unknown = {
        label: int(count)
        for (label, index), count in zip(index_of.items(), counts[:-1], strict=True)
        if index == NO_TRUTH and count
    }
    return of_value[positions], unknown
