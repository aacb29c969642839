"""Several encoders in one pass: heads of one trunk compute it once, and encoders of one vocabulary make tokens once.
The scores are those of each model alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch_folders import body, classifier

from broadsheet.pipeline import classify, label
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.open import opened
from broadsheet.pipeline.labelling.scored import Scoring, score
from broadsheet.pipeline.labelling.windows import Windows
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.preparation import Lower, Preparation
from broadsheet.pipeline.model.trunk import trunk_of, vocabulary_of
from broadsheet.pipeline.telemetry.spans import Span

pytest.importorskip("transformers")
TEXTS = [f"The {i} team won at {'home, ' * (i % 9)}and the market fell é {i * i}." for i in range(40)] + ["", "x"]
BY = {"roberta": "own kernels", "modernbert": "own kernels", "deberta-v2": "own kernels", "electra": "PyTorch"}


def heads(folder: Path, family: str, counts: tuple[int, ...] = (3, 2, 1)) -> list[Path]:
    """Save classifiers of one trunk, of which one predicts a number."""
    found = []
    for classes in counts:
        more: dict[str, Any] = {"problem_type": "regression"} if classes == 1 else {}
        more |= {"hidden_act": "gelu"} if family == "roberta" else {}
        found.append(classifier(folder / f"{family}-{classes}", family, classes, **more))
    return found


def passed(models: list[Model], texts: list[str] = TEXTS, **asked: Any) -> tuple[list[np.ndarray], dict[str, int]]:
    """Return the scores of each model in one pass, and how often each step was done."""
    spans: list[Span] = []
    with opened(models, "cpu") as engines:
        given = Texts.of([text.encode() for text in texts])
        wanted = [Scoring(all_scores=True, **asked) for _ in models]
        found = score(given, engines, wanted, spans, each_kernel=True)
    names = [span.name for span in spans]
    return [np.concatenate([one.scores, one.all_scores], axis=1) for one in found], {n: names.count(n) for n in names}


@pytest.mark.parametrize("family", BY)
def test_heads_of_one_trunk_compute_it_once(family: str, tmp_path: Path) -> None:
    models = [load_model(folder) for folder in heads(tmp_path, family)]
    assert {model.encoder.runs_in for model in models} == {BY[family]}
    alone = [passed([model]) for model in models]
    together, steps = passed(models)
    for (own, _), found in zip([(scores[0], steps) for scores, steps in alone], together, strict=True):
        np.testing.assert_array_equal(own, found)
    assert alone[0][1]["encoder"] == 1
    assert (steps["encoder"], steps["tokens"]) == (1, 1)
    assert not np.array_equal(together[0][:, :2], together[1][:, :2])


def test_encoders_of_other_trunks_share_the_tokens(tmp_path: Path) -> None:
    folders = [classifier(tmp_path / f"{layers}", "modernbert", num_hidden_layers=layers) for layers in (2, 3)]
    models = [load_model(folder) for folder in folders]
    assert len({trunk_of(model.encoder) for model in models}) == 2
    assert len({vocabulary_of(model.encoder) for model in models}) == 1
    alone = [passed([model])[0][0] for model in models]
    together, steps = passed(models)
    assert (steps["encoder"], steps["tokens"]) == (2, 1)
    for own, found in zip(alone, together, strict=True):
        np.testing.assert_array_equal(own, found)


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_windows_of_heads_are_computed_once(family: str, tmp_path: Path) -> None:
    models = [load_model(folder) for folder in heads(tmp_path, family, (3, 2))]
    long = [text * 40 for text in TEXTS]
    alone = [passed([model], long, windows=Windows.of("first+last:60", 0, "mean"))[0][0] for model in models]
    one, steps_of_one = passed(models[:1], long, windows=Windows.of("first+last:60", 0, "mean"))
    together, steps = passed(models, long, windows=Windows.of("first+last:60", 0, "mean"))
    assert steps["encoder"] == steps_of_one["encoder"] > 0
    for own, found in zip(alone, together, strict=True):
        np.testing.assert_array_equal(own, found)
    assert len(one) == 1


def test_a_head_that_prepares_its_texts_shares_nothing_with_one_that_does_not(tmp_path: Path) -> None:
    from dataclasses import replace

    plain, other = (load_model(folder) for folder in heads(tmp_path, "roberta", (3, 2)))
    lowered = replace(other, preparation=Preparation((Lower(),)))
    alone = [passed([model])[0][0] for model in (plain, lowered)]
    together, steps = passed([plain, lowered])
    assert steps["encoder"] == 2
    for own, found in zip(alone, together, strict=True):
        np.testing.assert_array_equal(own, found)


def test_a_changed_weight_makes_another_trunk(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for family in ("roberta", "modernbert"):
        same, changed = heads(tmp_path, family, (3, 2))
        first = trunk_of(load_model(same).encoder)
        assert trunk_of(load_model(changed).encoder) == first
        weights = load_file(changed / "model.safetensors")
        name = next(name for name in weights if name.endswith(("output.dense.weight", "mlp.Wo.weight")))
        weights[name][0, 0] += 1
        save_file(weights, changed / "model.safetensors", {"format": "pt"})
        assert trunk_of(load_model(changed).encoder) != first


def test_a_job_with_several_heads_has_the_scores_of_jobs_of_their_own(tmp_path: Path) -> None:
    folders = heads(tmp_path, "modernbert", (3, 2))
    table = pa.table({"text": TEXTS})
    both = label(table, model=folders, scores=True, device="cpu")
    for folder in folders:
        alone = label(table, model=folder, scores=True, device="cpu")
        for name in alone.column_names:
            if "score" in name or name == "label":
                assert both.column(f"{folder.name}_{name}").equals(alone.column(name)), name


def test_heads_that_were_trained_here_share_the_encoder(tmp_path: Path) -> None:
    """`train --encoder` fits only a last product to the vectors of an encoder."""
    from broadsheet.pipeline.train import train

    folder = body(tmp_path / "body", "modernbert")
    table = pa.table({"text": TEXTS * 3, "a": [f"{i % 2}" for i in range(126)], "b": [f"{i % 3}" for i in range(126)]})
    made = [train(table, label_column=name, encoder=folder, device="cpu").model for name in ("a", "b")]
    _, steps = passed(made)
    assert steps["encoder"] == 1


def test_a_profile_shows_one_pass_of_the_encoder(tmp_path: Path) -> None:
    folders = heads(tmp_path, "roberta", (3, 2))
    table = pa.table({"text": TEXTS})
    steps = []
    for name, models in (("one", folders[:1]), ("both", folders)):
        trace = tmp_path / f"{name}.json"
        classify(table, model=models, device="cpu", profile=True, trace=trace)
        steps.append([event["name"] for event in json.loads(trace.read_text())["traceEvents"]])
    assert steps[0].count("encoder") == steps[1].count("encoder") == 1
