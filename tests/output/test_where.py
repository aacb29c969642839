"""The expression of `where`: what it chooses, and what it says about one that is wrong."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import UsageError
from pipeline.output.where import Where

ROWS = pa.table(
    {
        "label": ["Sports", "World", "Sci/Tech", None],
        "truth": ["Sports", "Sports", None, None],
        "score": pa.array([0.9, 0.5, np.nan, None], pa.float32()),
        "score_Sci/Tech": pa.array([0.1, 0.2, 0.3, 0.4], pa.float32()),
        "n": [1, (1 << 60) + 1, -3, None],
        "id": pa.array([(1 << 64) - 1, 0, 1, None], pa.uint64()),
        "truncated": [True, False, True, None],
        "when": pa.array([dt.datetime(2020, 1, 1), dt.datetime(2024, 1, 1), None, None]),
        "local": pa.array([0, 10**9, None, 5], pa.timestamp("s", "Europe/Berlin")),
        "kind": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        "tags": [["a"], [], None, ["b"]],
        "a`b": [1, 2, 3, 4],
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('label == "Sports" and score >= 0.9', [0]),
        ("score == 0.9", [0]),  # the float32 that is shown as 0.9
        ("not score > 0.5", [1, 2]),  # a NaN is greater than nothing, a null neither is nor is not
        ('label != "Sports"', [1, 2]),
        ("label in ('Sports', \"World\")", [0, 1]),
        ('label not in ("Sports")', [1, 2]),
        ("label is null or truth is not null", [0, 1, 3]),
        ("label == truth", [0]),
        ("truncated", [0, 2]),
        ("truncated == false", [1]),
        ("0.05 < `score_Sci/Tech` <= 0.2", [0, 1]),
        ("n == 1152921504606846977 or n == -3", [1, 2]),
        ("n > .5", [0, 1]),
        ("1e0 < n", [1]),
        ("id > -1 and id < 5", [1, 2]),
        ("id == 18446744073709551615 and id != 18446744073709551614", [0]),
        (f"n < 99999999999999999999 and n > -{'9' * 5000} and score < {'9' * 400}", [0, 1]),
        ('when >= "2021-01-01 12:00"', [1]),
        ('local < "1970-01-01 00:59" or local > "2000-01-01T00:00:00Z"', [1]),
        ('kind == "x"', [0, 3]),
        ("`a``b` == 2 or not (`a``b` <= 3)", [1, 3]),
        ('label == "a \\"quote\\""', []),
        ("true", [0, 1, 2, 3]),
        (" or ".join(f"`a``b` == {i}" for i in range(500)), [0, 1, 2, 3]),
    ],
)
def test_it_chooses_the_rows_for_which_it_is_true(text: str, rows: list[int]) -> None:
    Where(text).check(ROWS.schema)
    assert np.flatnonzero(Where(text).mask(ROWS)).tolist() == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a column, a number or a text in quotes, at the end"),
        ('label = "x"', r"equality is written ==, at '= \"x\"' \(character 7\)"),
        ("truncated && truncated", r"write `and`, at '&& truncated' \(character 11\)"),
        ('(label == "x"', r"expected `\)`, at the end"),
        ('label == "x")', r"expected `and`, `or` or the end, at '\)' \(character 13\)"),
        ('label == "x', r"the quote is never closed.+\(character 10\)"),
        ("label == null", "write `is null` or `is not null`"),
        ("score_Sci/Tech > 1", r"stands between backticks, at '/Tech > 1' \(character 10\)"),
        ("truncated # and more", r"\(character 11\)"),
        ("Score > 1", r"there is no column 'Score' \(there are label, truth, score, `score_Sci/Tech`, n, .+ `a``b`\)"),
        ("score", "'score' is a number: compare it with something"),
        ("1 or truncated", "this is neither true nor false"),
        ("truncated == 1", "'truncated' is true or false and 1 is a number: they cannot be compared"),
        ("n in (1, 'a')", "'n' is a number and 'a' is text"),
        ("label < score", "'label' is text and 'score' is a number"),
        ("tags == 'a'", "'tags' is a list"),
        ("when > 'yesterday'", r"this is no timestamp\[us\], at \"'yesterday'\" \(character 8\)"),
        ("(" * 51 + "truncated" + ")" * 51, "more than 50 parentheses and `not` within one another"),
        ("not " * 5000 + "truncated", "more than 50 parentheses and `not` within one another"),
        ("label in (truth)", "expected a number or a text in quotes"),
        ("__import__('os')", "expected `and`, `or` or the end"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_without_a_row(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Where(text).check(ROWS.schema)


TOKENS = [
    *ROWS.column_names[:4],
    "`a``b`",
    "1",
    "-2.5",
    '"x"',
    "==",
    "<",
    "in",
    "is",
    "not",
    "null",
    "and",
    "or",
    "(",
    ")",
    ",",
]


@given(st.lists(st.sampled_from(TOKENS), max_size=9).map(" ".join) | st.text(max_size=20))
def test_whatever_is_given_it_is_an_expression_for_every_row_or_for_none(text: str) -> None:
    try:
        Where(text).check(ROWS.schema)
    except UsageError:
        return
    assert len(Where(text).mask(ROWS)) == len(ROWS)


def test_a_label_that_the_model_does_not_have_is_told() -> None:
    for text in ('score > 0.5 and label == "sports"', "label in ('World', 'sports')", "'sports' != truth"):
        with pytest.raises(UsageError, match=r"the model has no class 'sports' \(it has World, Sports\), at ."):
            Where(text).check_labels({"label": ("World", "Sports"), "truth": ("World", "Sports")})
    Where("label == 'Sports' or label == truth or kind == 'sports'").check_labels(
        {"label": ("World", "Sports"), "truth": ("World", "Sports")}
    )
