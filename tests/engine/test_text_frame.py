"""The text frame on a CPU: texts of every length, alone and in company, overflows, and the files that say the frame."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CommandHere, random_model
from numpy.typing import NDArray

from pipeline.cli.models import to_params
from pipeline.engine.base import Texts
from pipeline.engine.open import open_engine
from pipeline.errors import ModelError
from pipeline.model import reference
from pipeline.model.alphabet import PUBLISHED, encode
from pipeline.model.charcnn import Model, load_model

LENGTHS = [*range(21), *range(1000, 1031), 235, 77, 500, 3, 1014]


@pytest.fixture(scope="module")
def text_model(model: Model) -> Model:
    return replace(model, frame="text")


def texts(lengths: list[int], seed: int = 0) -> list[bytes]:
    """Known and unknown characters, some of them of several bytes; a text may end with unknown ones."""
    symbols = [*PUBLISHED, "é", "\U0001f600", " "]
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(symbols, length)).encode() for length in lengths]


def scores(model: Model, *groups: list[bytes], threads: int = 2) -> list[NDArray[np.float32]]:
    """Of each group of articles, by one engine."""
    engine = open_engine(model, "cpu", threads=threads)
    found = [engine.classify(Texts.of(articles), all_scores=True).all_scores for articles in groups]
    engine.close()
    return found


def by_reference(model: Model, articles: list[bytes]) -> NDArray[np.float32]:
    given = Texts.of(articles)
    ids = encode(given.data, given.offsets, model.alphabet, model.length).ids
    return reference.softmax(reference.forward(ids, reference.prepare(model)))


def test_every_length_is_the_reference_and_the_same_bits_in_any_company(text_model: Model) -> None:
    articles = texts(LENGTHS)
    order = np.random.default_rng(1).permutation(len(articles))
    few = [0, 1, 20, 51, 55]
    alone = [[articles[i]] for i in few]
    together, shuffled, *found = scores(text_model, articles, [articles[i] for i in order], *alone)
    assert np.abs(together - by_reference(text_model, articles)).max() < 2e-6
    assert np.array_equal(shuffled, together[order])
    assert np.array_equal(np.concatenate(found), together[few])


def test_a_text_ends_with_its_last_character_known_or_not(text_model: Model) -> None:
    """So spaces outside the alphabet at the end count, and the dense frame cannot tell them from none."""
    both = [b"stocks fell", b"stocks fell" + " é".encode() * 40]
    (dense,) = scores(replace(text_model, frame="dense"), both)
    (found,) = scores(text_model, both)
    assert np.array_equal(dense[0], dense[1])
    assert np.abs(found[0] - found[1]).max() > 1e-3
    assert np.abs(found[0] - dense[0]).max() > 1e-3


@pytest.mark.parametrize("tensor", ["conv1.weight", "conv2.bias", "conv4.weight", "conv4.bias", "conv6.bias"])
def test_an_overflow_is_told_of_the_same_articles_as_by_the_reference(tensor: str) -> None:
    """In rows of the text, or in the constant ones, which a text of full length has none of."""
    model = replace(random_model(seed=4, length=123), frame="text")
    hostile = replace(model, tensors={**model.tensors, tensor: model.tensors[tensor] * np.float32(3e38)})
    articles = texts([0, 1, 5, 60, 116, 117, 123, 200])
    (found,), expected = scores(hostile, articles), by_reference(hostile, articles)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(found[1:]).all()


def test_a_model_file_says_its_frame_and_an_unknown_feature_is_refused(small_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    in_text = replace(small_model, frame="text")
    in_text.save(path)
    assert load_model(path).frame == "text"
    assert load_model(path).digest == in_text.digest != small_model.digest

    def changed(**values: object) -> str:
        data = in_text.to_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        for name, value in values.items():
            header["__metadata__"][name] = json.dumps(value)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
        with pytest.raises(ModelError) as caught:
            load_model(path)
        return str(caught.value)

    assert "the model uses 'wings', which this version does not know" in changed(features=["frame", "wings"])
    assert "its metadata says format 'broadsheet-charcnn/3'" in changed(format="broadsheet-charcnn/3")
    assert "its metadata is damaged" in changed(frame="tight")
    assert "the file is damaged" in changed(frame="dense")
    assert "the file is damaged" in changed(features=[])
    with pytest.raises(ModelError, match="a model has one of text, dense"):
        replace(small_model, frame="tight")


def test_files_of_version_1_are_dense(small_model: Model) -> None:
    data = small_model.to_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for name in ("features", "frame", "checksum"):
        del header["__metadata__"][name]
    header["__metadata__"]["format"] = '"broadsheet-charcnn/1"'
    text = json.dumps(header).encode()
    old = Model.from_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    assert (old.frame, old.digest) == ("dense", small_model.digest)


def test_convert_keeps_the_frame_beside_a_params_bin_and_says_so(
    broadsheet_here: CommandHere, text_model: Model, tmp_path: Path
) -> None:
    named, params, back = tmp_path / "m.safetensors", tmp_path / "params.bin", tmp_path / "back.safetensors"
    text_model.save(named)
    code, said = broadsheet_here("convert", named, params)
    assert code == 0
    assert "text frame, which only params.bin.json records" in said
    assert params.read_bytes() == to_params(text_model)
    assert load_model(params).frame == "text"
    assert broadsheet_here("convert", params, back)[0] == 0
    assert load_model(back).digest == text_model.digest
    assert "frame  text" in broadsheet_here("inspect", back)[1]
    (tmp_path / "params.bin.json").unlink()
    assert load_model(params).frame == "dense"
    dense = replace(text_model, frame="dense")
    dense.save(named)
    assert "text frame" not in broadsheet_here("convert", named, params)[1]
