"""Folders of encoders as their libraries write them, with each key changed: the result is the original's, or a refusal.

The keys are those that the installed transformers and sentence-transformers write. If a new version adds a key,
`test_every_key_that_is_written_is_known` fails.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_folders import (
    TEXTS,
    VOCABULARY,
    Change,
    classifier,
    of_classifiers,
    of_tokenizers,
    of_vectors,
    scores_of_the_original,
    vectors,
    vectors_of_the_original,
)

from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import open_engine
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.model import encoder_file, encoder_keys
from broadsheet.pipeline.model.encoder_tokens import build
from broadsheet.pipeline.model.loading import load_model

torch, _, _ = map(pytest.importorskip, ("torch", "transformers", "sentence_transformers"))
torch.set_num_threads(1)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TOLERANCE = 1e-5
"""The tolerance that docs/encoders.md promises."""


def texts() -> Texts:
    return Texts.of([text.encode() for text in TEXTS])


def compare_scores(folder: Path) -> None:
    """Assert that a classifier's scores are those of transformers. Raises ModelError where we refuse the folder."""
    model = load_model(folder)
    engine = open_engine(model, "cpu", threads=1)
    found = engine.classify(texts(), all_scores=True)
    engine.close()
    assert found.all_scores is not None
    for row, expected in enumerate(scores_of_the_original(folder, TEXTS)):
        if expected is None:
            continue
        if model.levels is None:
            assert [*expected] == sorted(model.classes, key=lambda name: -expected[name])
            want, have = [expected[name] for name in model.classes], found.all_scores[row]
        else:
            want, have = [*expected.values()], found.scores[row, 0]
        np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=TOLERANCE, err_msg=f"{TEXTS[row]!r}")


def compare_vectors(folder: Path) -> None:
    """Assert that vectors are those of sentence-transformers. Raises ModelError where we refuse the folder."""
    encoder = encoder_file.read(folder, "it").encoder
    ids, ends, _ = encoder.tokens_of(texts().data, texts().offsets)
    ours = encoder.vectors(ids, ends)
    for row, expected in enumerate(vectors_of_the_original(folder, TEXTS)):
        if expected is not None:
            np.testing.assert_allclose(ours[row], expected, atol=TOLERANCE, rtol=TOLERANCE, err_msg=f"{TEXTS[row]!r}")


def compare_tokens(folder: Path) -> None:
    """Assert that tokens are those of transformers, and that our tokenizer is built from the same settings,
    key by key.
    """
    import transformers

    encoder = encoder_file.read(folder, "it").encoder
    library = transformers.AutoTokenizer.from_pretrained(folder)
    backend, ours = library.backend_tokenizer, build(folder, None, "it").tokenizer
    for one in (backend, ours):
        one.no_truncation()
        one.no_padding()
    assert json.loads(ours.to_str()) == json.loads(backend.to_str())
    ids, ends, _ = encoder.tokens_of(texts().data, texts().offsets)
    limit = encoder.settings.most_tokens
    expected = [library(text, truncation=True, max_length=limit)["input_ids"] for text in TEXTS]
    assert [ids[a:b].tolist() for a, b in pairwise(ends.tolist())] == expected
    assert limit == min(library.model_max_length, 48)


def hold(folder: Path, some: Sequence[Change], compare: Callable[[Path], None]) -> str:
    """Assert that a changed folder gives the original's results, or is refused by the name of a change.

    Returns what happened: "equal", "refused", or "the original fails".
    """
    for change in some:
        change.apply(folder)
    try:
        compare(folder)
    except ModelError as error:
        said = str(error)
    except AssertionError as error:
        raise AssertionError(f"{some}: {error}") from error
    except Exception as error:  # the original does not read the folder, so there is nothing to compare with
        print(f"{some}: {type(error).__name__}: {str(error)[:200]}")
        return "the original fails"
    else:
        return "equal"
    assert any(name in said for change in some for name in change.names), said
    assert "damaged" not in said
    return "refused"


Made = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A function that copies folders, each of which is written only once."""
    whole: dict[str, Path] = {}

    def copy(to: Path, write: Callable[..., Path], **how: Any) -> Path:
        name = f"{write.__name__} {how}"
        if name not in whole:
            whole[name] = write(tmp_path_factory.mktemp("folders") / "it", **how)
        shutil.copytree(whole[name], to)
        return to

    return copy


def each(
    made: Made, place: Path, some: Sequence[Change], compare: Callable[[Path], None], write: Any, **how: Any
) -> None:
    """Test each change on its own."""
    found: dict[str, list[Change]] = {}
    failures = []
    for number, change in enumerate(some):
        folder = made(place / str(number), write, **how)
        try:
            found.setdefault(hold(folder, [change], compare), []).append(change)
        except AssertionError as error:
            failures.append(str(error))
    print({what: len(them) for what, them in found.items()})
    assert not failures, "\n\n".join(failures)
    assert {"equal", "refused"} <= {*found}


in_parts = pytest.mark.parametrize("part", range(4))


@in_parts
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_every_key_of_a_classifier(made: Made, tmp_path: Path, kind: str, part: int) -> None:
    whole = made(tmp_path / "whole", classifier, kind=kind)
    compare_scores(whole)
    written = {*json.loads((whole / "config.json").read_text())}
    each(made, tmp_path, of_classifiers(kind, written)[part::4], compare_scores, classifier, kind=kind)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_classifier_with_one_output(made: Made, tmp_path: Path, kind: str) -> None:
    one = [
        Change("config.json", ("problem_type",), value) for value in (None, "regression", "multi_label_classification")
    ]
    for number, change in enumerate(one):
        folder = made(tmp_path / f"one{number}", classifier, kind=kind, classes=1)
        assert hold(folder, [change], compare_scores) == "equal"


@in_parts
@pytest.mark.parametrize("stored", [False, True])
def test_every_key_of_a_tokenizer(made: Made, tmp_path: Path, stored: bool, part: int) -> None:
    compare_tokens(made(tmp_path / "whole", classifier, stored=stored))
    each(made, tmp_path, of_tokenizers()[part::4], compare_tokens, classifier, stored=stored)


@in_parts
def test_every_key_of_modules(made: Made, tmp_path: Path, part: int) -> None:
    how: Any = {"more": ("Dense", "Normalize")}
    compare_vectors(made(tmp_path / "whole", vectors, **how))
    each(made, tmp_path, of_vectors()[part::4], compare_vectors, vectors, **how)


def test_the_limit_of_sentence_transformers_counts_before_the_tokenizers(made: Made, tmp_path: Path) -> None:
    limits = (
        Change("sentence_bert_config.json", ("max_seq_length",), 40),
        Change("tokenizer_config.json", ("model_max_length",), 16),
    )
    assert hold(made(tmp_path / "it", vectors), limits, compare_vectors) == "equal"


def test_an_empty_list_of_added_tokens_counts_before_those_that_are_stored(made: Made, tmp_path: Path) -> None:
    stored = Change("tokenizer.json", ("added_tokens", 4, "content"), "ferry")
    listed = Change("tokenizer_config.json", ("added_tokens_decoder",), {})
    assert hold(made(tmp_path / "it", classifier), [stored, listed], compare_tokens) == "equal"


def with_old_vocabulary(folder: Path, of_text: random.Random) -> None:
    """Replace tokenizer.json by a vocab.txt."""
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + of_text.choice(["", "\n"]), encoding="utf-8")


# Each seed draws other keys of the configuration.
@pytest.mark.parametrize("seed", range(60))
def test_several_keys_together(made: Made, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    kind, stored = chosen.choice(["bert", "distilbert"]), chosen.random() < 0.3
    is_classifier = chosen.random() < 0.5
    of_tokens = chosen.sample(of_tokenizers(), chosen.randint(1, 3))
    if is_classifier:
        folder = made(tmp_path / "it", classifier, kind=kind, stored=stored, classes=chosen.choice([1, 2, 3]))
        written = {*json.loads((folder / "config.json").read_text())}
        others = chosen.sample(of_classifiers(kind, written), chosen.randint(0, 2))
    else:
        folder = made(tmp_path / "it", vectors, kind=kind, stored=stored, more=("Dense", "Normalize"))
        others = chosen.sample(of_vectors(), chosen.randint(0, 2))
    if chosen.random() < 0.25 and not stored:
        with_old_vocabulary(folder, chosen)
        of_tokens = [change for change in of_tokens if change.file != "tokenizer.json"]
    some = [*of_tokens, *others]
    print(hold(folder, some, compare_scores if is_classifier else compare_vectors), some)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_weights_of_every_kind(made: Made, tmp_path: Path, dtype: str) -> None:
    import transformers

    folder = made(tmp_path / "it", classifier)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    model.bert.embeddings.register_buffer("odd", torch.arange(5, dtype=torch.int32))
    model.bert.embeddings.register_buffer("flags", torch.zeros(5, dtype=torch.bool))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    assert hold(folder, [], compare_scores) == "equal"


def test_every_key_that_is_written_is_known(made: Made, tmp_path: Path) -> None:
    """A new version of a library may write a new key, which this project must then decide about."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import Pooling

    def known(keys: encoder_keys.Keys) -> set[str]:
        return {*keys.read.split(), *keys.only, *" ".join(keys.unused.values()).split()}

    written = {
        "config.json": (encoder_keys.CONFIG["bert"], set()),
        "tokenizer_config.json": (encoder_keys.TOKENIZER_CONFIG, set()),
        "sentence_bert_config.json": (encoder_keys.TRANSFORMER, {*Transformer.config_keys}),
        "config_sentence_transformers.json": (encoder_keys.SENTENCE_TRANSFORMERS, {"truncate_dim"}),
        "1_Pooling/config.json": (encoder_keys.MODULES["Pooling"], {*Pooling.config_keys}),
        "2_Dense/config.json": (encoder_keys.MODULES["Dense"], {*Dense.config_keys}),
        "3_Normalize/config.json": (encoder_keys.MODULES["Normalize"], {*Normalize.config_keys}),
    }
    folder = made(tmp_path / "it", vectors, more=("Dense", "Normalize"))
    SentenceTransformer(str(folder), device="cpu", truncate_dim=8).save(str(folder), create_model_card=False)
    for file, (keys, more) in written.items():
        of_file = {*json.loads((folder / file).read_text())} | more
        assert {key for key in of_file if not key.endswith("_token")} <= known(keys), file
    for kind, config in (("bert", "BertConfig"), ("distilbert", "DistilBertConfig")):
        import transformers

        of_kind = {*getattr(transformers, config)(num_labels=3, problem_type="regression").to_dict()}
        assert of_kind <= known(encoder_keys.CONFIG[kind])
