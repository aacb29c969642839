"""An option of training is one entry of its table, from which its keyword, flag, help, documentation and
check follow.
"""

from __future__ import annotations

import inspect
import random
import re
from pathlib import Path

import pytest
import typer
from conftest import CommandHere

from broadsheet.pipeline.cli.commands import application
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.layers import FRAMES
from broadsheet.pipeline.options import READ
from broadsheet.pipeline.options.training import TRAIN, TrainRequest
from broadsheet.pipeline.train import train


def test_an_option_of_training_is_one_entry_of_its_table() -> None:
    command = typer.main.get_command(application()).commands["train"]  # type: ignore[attr-defined]
    flags = {param.name: param for param in command.params}
    for name, option in TRAIN.items():
        assert inspect.signature(train).parameters[name].default == option.default
        assert re.search(rf"^{name} : \w", inspect.getdoc(train) or "", re.MULTILINE), name
        if option.panel:
            assert flags[name].help == option.line != ""
            assert flags[name].opts == [f"--{option.flag or name.replace('_', '-')}"]
    assert TRAIN["frame"].choices == FRAMES


def test_what_is_to_be_learned_is_asked_for_by_its_flag(broadsheet_here: CommandHere, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,kind\nStocks fell,money\n")
    code, told = broadsheet_here("train", tmp_path / "a.csv", "-o", tmp_path / "m.safetensors")
    assert (code, "give --label-column and the column with the classes: text, kind" in told) == (2, True), told


def test_a_request_is_checked_once_it_is_made() -> None:
    request = TrainRequest(label_column="kind", text_column=["title", "body"], classes=["a", "b"], checkpoint_every=0)
    assert (request.label_column, request.text_column, request.classes) == (("kind",), ("title", "body"), ("a", "b"))
    for options, message in (
        ({"device": "tpu"}, "device 'tpu': choose auto, cpu, cuda"),
        ({"gpus": 0}, "gpus is 0, it must be an integer of at least 1"),
        ({"hold_out_share": 0.6}, "at most half of them"),
        ({"resume": True}, "the checkpoint to continue from"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainRequest(**{"label_column": "kind", **options})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("name", ["train", "evaluate", "calibrate"])
def test_commands_of_labelled_data_read_files_as_classify_does(name: str) -> None:
    every = typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    flags, theirs = ({param.name: param for param in every[one].params} for one in ("classify", name))
    of_files = {"columns", "delimiter", "encoding", "endpoint", "escape", "input_format", "join", "quote"}
    assert of_files | {"fold_labels", "label_numbers_from", "map_labels"} == set(READ)
    assert [(theirs[one].opts, theirs[one].help) for one in READ] == [
        (flags[one].opts, flags[one].help) for one in READ
    ]


def test_a_csv_of_another_encoding_is_learned_and_measured(broadsheet_here: CommandHere, tmp_path: Path) -> None:
    """Spreadsheets of western Europe write this encoding. A label with a letter outside ASCII stays the same."""
    choose = random.Random(0).choice
    words = {"Käse": ("brie", "crème", "lait"), "Auto": ("moteur", "roue", "vitesse")}
    rows = [
        f"{name};{' '.join(choose(of_name) for _ in range(9))}" for name, of_name in words.items() for _ in range(99)
    ]
    data, model = tmp_path / "data.csv", tmp_path / "model.safetensors"
    data.write_bytes("\r\n".join(["Sujet;Texte", *rows]).encode("cp1252"))
    reading = ["--text-column", "Texte", "--label-column", "Sujet", "--delimiter", ";", "--encoding", "cp1252"]
    code, told = broadsheet_here("train", data, "-o", model, *reading, "--device", "cpu", "--vectors", "none")
    assert (code, "198 texts of 2 classes" in told) == (0, True), told
    code, told = broadsheet_here("evaluate", model, data, *reading, "--device", "cpu")
    assert (code, "of 198 right" in told, "Käse" in told) == (0, True, True), told
    code, told = broadsheet_here("train", data, "-o", tmp_path / "none", *reading[:-2], "--vectors", "none")
    assert (code, "99 rows cannot be read as UTF-8: name the encoding" in told) == (2, True), told
