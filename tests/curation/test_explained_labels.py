"""Why a text has a label: n-grams whose weights add up to the score, or words whose removal lowers it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Command, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_models import HOSTILE, KINDS, PIECES, branch, scored

from broadsheet.pipeline import explain, load
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.ngrams import Kinds
from broadsheet.pipeline.model.spelled import weighed

texts = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join) | st.sampled_from(HOSTILE)


@settings(max_examples=examples(200), deadline=None)
@given(texts.map(lambda text: text.decode(errors="ignore")), st.sampled_from(KINDS))
def test_n_grams_add_up_to_the_score(text: str, kinds: Kinds) -> None:
    ngrams = branch(kinds)
    found = weighed(text, ngrams)
    (expected,) = scored([text.encode()], ngrams)
    assert found.weights.sum(axis=0) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert (found.begins >= 0).all()
    assert (found.ends <= len(text)).all()
    spelled = [text[begin:end] for begin, end in zip(found.begins, found.ends, strict=True)]
    assert all(one == one.strip() or not one.strip() for one in spelled)


@pytest.fixture(scope="module")
def linear() -> Model:
    """The shipped model's n-grams alone."""
    return load_model("ag-news").asking("none")


def test_pieces_and_words_add_up_to_what_the_model_says(linear: Model) -> None:
    text = "Stocks fell on Monday as oil rose to a record, and the stocks of banks fell."
    with load(linear, device="cpu") as classifier:
        (probabilities,) = classifier.predict_proba([text])
    every = [explain(linear, text, label=label, device="cpu") for label in linear.classes]
    logits = [why.bias + sum(piece.weight for piece in why.pieces) for why in every]
    powers = np.exp(np.array(logits) - max(logits))
    assert powers / powers.sum() == pytest.approx(probabilities, abs=1e-4)
    best = explain(linear, text, device="cpu")
    assert (best.label, best.score) == ("Business", pytest.approx(probabilities.max()))
    assert sum(word.weight for word in best.words) == pytest.approx(sum(piece.weight for piece in best.pieces))
    assert [text[word.begin : word.end] for word in best.words] == text.split()
    weights = [piece.weight for piece in best.pieces]
    assert weights == sorted(weights, reverse=True)
    assert len({(piece.kind, piece.text.lower()) for piece in best.pieces}) == len(best.pieces)
    strongest = max(best.words, key=lambda word: word.weight)
    assert text[strongest.begin : strongest.end] in {"Stocks", "stocks", "oil", "banks"}


def test_of_a_network_words_are_left_out(linear: Model) -> None:
    whole = load_model("ag-news").asking("all")
    text = "The coach praised his team after the match"
    why = explain(whole, text, device="cpu")
    assert (why.label, why.bias) == ("Sports", None)
    with load(whole, device="cpu") as classifier:
        scores = classifier.predict_proba([text, "The   praised his team after the match"])
    odds = np.log(scores / (1 - scores))[:, whole.classes.index("Sports")]
    assert why.words[1].weight == pytest.approx(odds[0] - odds[1], abs=1e-3)
    assert {piece.text for piece in why.pieces} == {*text.split()}
    against = explain(whole, text, label="Business", device="cpu")
    assert against.score < why.score


def test_what_cannot_be_explained_is_refused(linear: Model) -> None:
    with pytest.raises(UsageError, match=r"'sports' is no label of .*World, Sports"):
        explain(linear, "a text", label="sports")
    with pytest.raises(UsageError, match="not a text"):
        explain(linear, [None])  # type: ignore[list-item]
    heads = replace(linear, classes=("a: x", "a: y", "b: x", "b: y"), heads=(("a", 2), ("b", 2)))
    with pytest.raises(UsageError, match="has the heads a, b, and here one is wanted"):
        explain(heads, "a text")
    assert explain(linear, ["", " \n"], device="cpu")[1].words == ()


def test_the_command_prints_the_same(broadsheet_in_process: Command, linear: Model, tmp_path: Path) -> None:
    linear.save(tmp_path / "m.safetensors")
    text = "Stocks fell on Monday as oil rose."
    made = broadsheet_in_process("explain", str(tmp_path / "m.safetensors"), text, "--device", "cpu", "--top", "3")
    assert made.returncode == 0, made.stderr
    why = explain(linear, text, device="cpu")
    assert f"{why.label}  {why.score:.3f}" in made.stdout
    for piece in why.pieces[:3]:
        assert f"{piece.weight:+.3f}" in made.stdout
        assert piece.text in made.stdout
    as_json = broadsheet_in_process("explain", str(tmp_path / "m.safetensors"), text, "--json", "--device", "cpu")
    printed = json.loads(as_json.stdout)
    assert sum(piece["weight"] for piece in printed["pieces"]) + printed["bias"] == pytest.approx(
        sum(piece.weight for piece in why.pieces) + why.bias
    )
    wrong = broadsheet_in_process("explain", str(tmp_path / "m.safetensors"), text, "--label", "x", "--device", "cpu")
    assert (wrong.returncode, "'x' is no label" in wrong.stderr) == (2, True)
