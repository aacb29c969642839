"""The text frame: texts of every length, alone and among others, overflows, and the files that name the frame. On a
GPU, packed rows equal the rows of the whole frame, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import exact
import numpy as np
import pytest
from conftest import CommandHere, random_model
from gpu import (
    LIMITS,
    STACKS,
    blocks_of,
    error,
    logits_of,
    needs_gpu,
    opened_for,
    poison,
    random_texts,
    texts_of_every_kind,
)
from numpy.typing import NDArray

from broadsheet.pipeline.cli.models import to_params
from broadsheet.pipeline.engine.base import Engine, Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.kernels.memory_plan import most_units, units_by_length
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import PUBLISHED, encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model

LENGTHS = [*range(21), *range(1000, 1031), 235, 77, 500, 3, 1014]


@pytest.fixture(scope="module")
def text_model(model: Model) -> Model:
    return replace(model, frame="text")


def texts(lengths: list[int], seed: int = 0) -> list[bytes]:
    """Return texts of known and unknown characters, some with several bytes. A text may end with unknown ones."""
    symbols = [*PUBLISHED, "é", "\U0001f600", " "]
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(symbols, length)).encode() for length in lengths]


def scores(model: Model, *groups: list[bytes], threads: int = 2) -> list[NDArray[np.float32]]:
    """Return the scores of each group of articles, computed by one engine."""
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
    """So spaces outside the alphabet count at the end of a text, although the dense frame cannot tell them from
    padding.
    """
    both = [b"stocks fell", b"stocks fell" + " é".encode() * 40]
    (dense,) = scores(replace(text_model, frame="dense"), both)
    (found,) = scores(text_model, both)
    assert np.array_equal(dense[0], dense[1])
    assert np.abs(found[0] - found[1]).max() > 1e-3
    assert np.abs(found[0] - dense[0]).max() > 1e-3


@pytest.mark.parametrize("tensor", ["conv1.weight", "conv2.bias", "conv4.weight", "conv4.bias", "conv6.bias"])
def test_an_overflow_is_told_of_the_same_articles_as_by_the_reference(tensor: str) -> None:
    """The overflow is in rows of the text, or in the constant rows, which a text of full length does not have."""
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


# The text frame on a GPU: packed rows equal the rows of the whole frame, bit for bit, whatever is beside them.


@pytest.fixture(scope="module", params=STACKS, ids="-".join)
def engine(request: pytest.FixtureRequest, model: Model) -> Iterator[Engine]:
    opened = opened_for(replace(model, frame="text"), *request.param)
    yield opened
    opened.close()


@needs_gpu
def test_packed_rows_have_the_bits_of_the_whole_frame(engine: Engine) -> None:
    texts = Texts.of(texts_of_every_kind(1))
    packed, first = blocks_of(engine, texts)
    network, layers = engine.network, engine.model.layers
    units, of_text = engine._units, np.diff(first)
    ids = encode(texts.data, texts.offsets, engine.model.alphabet, engine.model.length).ids
    ends = np.where(ids == engine.model.alphabet.padding, 0, np.arange(1, ids.shape[1] + 1)).max(axis=1)
    assert np.array_equal(of_text, units[ends])
    engine._units, network.whole = units_by_length(layers, "dense"), True
    try:
        whole, whole_first = blocks_of(engine, texts)
    finally:
        engine._units, network.whole = units, False
    most = most_units(layers)
    assert np.array_equal(whole_first, np.arange(len(texts) + 1) * most)
    assert list(packed) == list(whole) == [layer.name for layer in layers if layer.kind == "conv1d"]
    for layer in (layer for layer in layers if layer.kind == "conv1d"):
        name = layer.name
        rows = layer.rows_out // layer.product_pool  # rows of the frame, before a norm's pool
        constant = np.zeros(256, packed[name].dtype)
        if not layer.is_lookup:
            constant = network._constants[name].get().view(packed[name].dtype)
        for article, begin in enumerate(first[:-1]):
            reach = of_text[article] - 2
            alone = packed[name][begin : begin + of_text[article]].reshape(-1, 256)
            every = whole[name][article * most : (article + 1) * most].reshape(-1, 256)[: layer.rows_pooled]
            if not layer.is_lookup:
                alone, every = alone[: min(reach, rows)], whole[name][article * most :][:rows, 0]
            kept = min(len(alone), len(every))
            assert np.array_equal(alone[:kept], every[:kept]), (name, article)
            assert (every[kept:] == constant).all(), (name, article)


@needs_gpu
def test_every_length_among_any_neighbours(engine: Engine) -> None:
    """The result is compared with float64. Alone, shuffled or beside full articles the bits are the same, over poisoned
    buffers.
    """
    articles, model = texts_of_every_kind(2), engine.model
    texts = Texts.of(articles)
    ids = encode(texts.data, texts.offsets, model.alphabet, model.length).ids
    poison(engine)
    found = engine.classify(texts, all_scores=True).all_scores
    true = exact.logits(model, ids, "cuda")
    logits = logits_of(engine, texts)
    assert error(logits, true) <= LIMITS[engine.backend.precision]
    short = np.array([len(text) <= 20 for text in articles])
    assert error(logits[short], true[short]) <= LIMITS[engine.backend.precision]
    rng, filler = np.random.default_rng(3), random_texts(4, 500)
    for neighbours in ([], filler[:100], [b""] * 200, [b"x" * 2000] * 70):
        order = rng.permutation(len(articles) + len(neighbours))
        together = [[*articles, *neighbours][i] for i in order]
        poison(engine)
        again = engine.classify(Texts.of(together), all_scores=True).all_scores
        assert np.array_equal(again[np.argsort(order)[: len(articles)]], found)
    for i in (0, 1, 4, 20, 21, 35, 60):
        poison(engine)
        assert np.array_equal(engine.classify(Texts.of([articles[i]]), all_scores=True).all_scores[0], found[i])


@needs_gpu
def test_short_texts_make_larger_batches(engine: Engine, model: Model) -> None:
    """The work per batch is equal: a batch holds several times as many news articles, and as many full ones as the
    dense frame.
    """
    dense = opened_for(model, engine.backend.kernels, engine.backend.precision)
    batches = [
        [sum(1 for _ in opened.batches(Texts.of([b"x" * length] * 100_000))) for opened in (engine, dense)]
        for length in (235, 1100)
    ]
    dense.close()
    assert batches[0][0] * 2 < batches[0][1]
    assert batches[1][0] == batches[1][1]
