"""Recipes of published encoders: stand-ins in the same format give the scores that the authors' code gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import Command
from torch_folders import by_transformers, classifier

from broadsheet.pipeline import ModelError, label, load_model, prepared
from broadsheet.pipeline.model.recipes import recipes
from broadsheet.pipeline.source.rows.join import Join

pytest.importorskip("transformers")
ROWS = [
    {"url": "http://www.example.com", "text": "How to build a computer from scratch?"},
    {"url": "http://a.example/oil", "text": "Oil prices rise é\nand fall"},
    {"url": "", "text": "no address"},
]


def test_weborganizers_template_gives_the_text_that_its_page_shows(
    tmp_path: Path, broadsheet_in_process: Command
) -> None:
    folder, made = classifier(tmp_path / "topics", "modernbert"), tmp_path / "topics.safetensors"
    done = broadsheet_in_process("convert", str(folder), str(made), "--preparation", "weborganizer-topic")
    assert done.returncode == 0, done.stderr
    expected = by_transformers(folder, [f"{row['url']}\n\n{row['text']}" for row in ROWS])
    labelled = label(pa.Table.from_pylist(ROWS), model=made, scores=True, device="cpu").to_pylist()
    for row, scores in zip(labelled, expected, strict=True):
        found = {name: row[f"score_{name}"] for name in scores}
        np.testing.assert_allclose([*found.values()], [*scores.values()], atol=1e-5)


@pytest.mark.parametrize(
    "recipe", [recipe for recipe in recipes().values() if not recipe["steps"]], ids=lambda r: r["name"]
)
def test_a_recipe_without_steps_changes_no_score(recipe: dict, tmp_path: Path) -> None:
    model = load_model("ag-news")
    made = prepared(model, recipe["name"])
    assert made.digest == model.digest
    assert made.join == recipe.get("join", "")
    if made.join:
        assert str(Join.of(made.join)) == made.join


def test_finepdfs_heads_give_numbers_from_their_lowest_to_their_highest(tmp_path: Path) -> None:
    folder = classifier(tmp_path / "edu", "modernbert", 1, problem_type="regression")
    model = prepared(load_model(folder), "finepdfs-edu")
    table = pa.table({"text": [row["text"] * 90 for row in ROWS]})
    best = label(table, model=model, device="cpu", windows="first+last", window_score="best").column("score")
    alone = label(table, model=model, device="cpu").column("score")
    assert (np.array(best) >= np.array(alone) - 1e-6).all()


def test_a_head_that_is_a_class_of_its_authors_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """NVIDIA's classifiers are saved this way: config.json names the encoder, and transformers has no class for the
    head.
    """
    folder = classifier(tmp_path / "domain", "deberta-v2")
    about = {"base_model": "microsoft/deberta-v3-base", "fc_dropout": 0.2, "id2label": {"0": "Adult", "1": "News"}}
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(ModelError, match=r"its head is a class that its authors wrote.*on an encoder"):
        load_model(folder)


def test_recipes_are_printed_with_what_is_known_of_them(broadsheet_in_process: Command) -> None:
    told = " ".join(broadsheet_in_process("recipes").stdout.split())
    for text in (r"join {url}\n\n{text}", "licence NVIDIA Open Model License", "refused its heads are .ckpt files"):
        assert text in told
