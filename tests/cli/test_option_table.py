"""An option of training is one entry of its table: keyword, flag, help, documentation and check follow from it."""

from __future__ import annotations

import inspect
import re

import pytest
import typer

from broadsheet.pipeline.cli.commands import app
from broadsheet.pipeline.errors import UsageError
from broadsheet.pipeline.model.layers import FRAMES
from broadsheet.pipeline.options.training import TRAIN, TrainRequest
from broadsheet.pipeline.train import train


def test_an_option_of_training_is_one_entry_of_its_table() -> None:
    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    flags = {param.name: param for param in command.params}
    for name, option in TRAIN.items():
        assert inspect.signature(train).parameters[name].default == option.default
        assert re.search(rf"^{name} : \w", inspect.getdoc(train) or "", re.MULTILINE), name
        if option.panel:
            assert flags[name].help == TRAIN.help_of(name) != ""
            assert flags[name].opts == [f"--{option.flag or name.replace('_', '-')}"]
    assert TRAIN["frame"].choices == FRAMES


def test_a_request_is_checked_once_it_is_made() -> None:
    request = TrainRequest(label_column="kind", text_column=["title", "body"], classes=["a", "b"], checkpoint_every=0)
    assert (request.label_column, request.text_column, request.classes) == (("kind",), ("title", "body"), ("a", "b"))
    for options, message in (
        ({"device": "tpu"}, "device 'tpu': choose auto, cpu, cuda"),
        ({"gpus": 0}, "gpus is 0, it must be an integer of at least 1"),
        ({"hold_out_share": 0.6}, "at most half of them"),
        ({"label_column": ()}, "there is nothing to learn"),
        ({"resume": True}, "the checkpoint to continue from"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainRequest(**{"label_column": "kind", **options})  # type: ignore[typeddict-item]
