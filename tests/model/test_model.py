"""The layer table and the two formats of model files, right and damaged; and the weights that come with the package."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from conftest import ROOT, Command, CommandHere, examples, random_model
from hypothesis import given, settings
from hypothesis import strategies as st

from broadsheet.pipeline.cli.inspect import about_model, print_model
from broadsheet.pipeline.cli.models import to_params
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.model import reference
from broadsheet.pipeline.model.alphabet import Alphabet, encode
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.model.layers import layer_table
from broadsheet.pipeline.model.loading import load_model
from broadsheet.pipeline.model.params_file import from_params
from broadsheet.pipeline.report.console import PlainConsole, print_json, say
from broadsheet.pipeline.train.recipe import WITH_SPACE, Recipe


def test_the_layer_table_is_the_published_frame() -> None:
    layers = layer_table(70, 1014, 4)
    assert [layer.rows_pooled for layer in layers[:6]] == [336, 110, 108, 106, 104, 34]
    assert [round(layer.flop / 1e6, 1) for layer in layers] == [252.9, 302.8, 42.5, 41.7, 40.9, 40.1, 17.8, 2.1, 0.0]
    shapes = {name: shape for layer in layers for name, shape in layer.shapes.items()}
    assert shapes["conv1.weight"] == (256, 70, 7)
    assert shapes["norm1.bias"] == (256, 1008)
    assert shapes["fc1.weight"] == (1024, 8704)


def test_a_length_without_a_last_row_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(ModelError, match="at least 123 characters"):
        layer_table(70, 122, 4)
    assert layer_table(70, 123, 4)[5].rows_pooled == 1
    for length in (63, 4097):
        with pytest.raises(ModelError, match="64 to 4096"):
            layer_table(70, length, 4)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_model_file_comes_back_the_same(small_model: Model, tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "m.safetensors"
    small_model.save(path, dtype)
    loaded = load_model(path)
    assert loaded.to_bytes() == path.read_bytes()  # also shows that the same model is always the same file
    assert loaded.dtype == dtype
    for name, tensor in small_model.tensors.items():
        assert np.array_equal(loaded.tensors[name], tensor.astype(dtype))


def test_loading_says_which_tensor_is_wrong(small_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    data = small_model.to_bytes()
    tensors = safetensors.numpy.load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header["__metadata__"]

    def message(changed: dict[str, np.ndarray], about: dict[str, str] | None = None) -> str:
        path.write_bytes(safetensors.numpy.save(changed, about or metadata))
        with pytest.raises(ModelError) as caught:
            load_model(path)
        return str(caught.value)

    assert "conv3.weight is [256, 256, 2]" in message(
        {**tensors, "conv3.weight": tensors["conv3.weight"][..., :2].copy()}
    )
    assert "norm6.bias is missing" in message({k: v for k, v in tensors.items() if k != "norm6.bias"})
    assert "tensor stray" in message({**tensors, "stray": np.zeros(3, np.float32)})
    assert "fc2.bias is int32" in message({**tensors, "fc2.bias": np.zeros(1024, np.int32)})
    assert "fc2.bias holds" in message({**tensors, "fc2.bias": np.full(1024, np.nan, np.float32)})
    assert "fc3.weight is [4, 1024]" in message(tensors, {**metadata, "classes": '["a", "b"]'})
    assert "metadata is damaged" in message(tensors, {**metadata, "alphabet": "not json"})
    assert "Expected `array`, got `str`" in message(tensors, {**metadata, "classes": '"abcd"'})
    assert "class 2 has no name" in message(tensors, {**metadata, "classes": '["a", "", "c", "d"]'})
    assert "100000 classes" in message(tensors, {**metadata, "classes": json.dumps(list(map(str, range(100_000))))})
    assert "nested more than 50 deep" in message(tensors, {**metadata, "card": '{"a":' * 60 + "1" + "}" * 60})
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_model(path)
    path.write_bytes(b"")
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_model(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
BAD_JSON = st.sampled_from(
    ["", "nil", "NaN", '{"a": Infinity}', "1e999", "1" * 5000, "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900,
     '"broadsheet-charcnn/1"', '["frame"]', '["frame", "ngrams"]', '["frame", "x"]',
     '{"words": 2, "characters": [3, 5], "reads": 1014}', '{"words": 2, "characters": [9, 1], "reads": 64}',
     '"\\udc80"', '{"\\ud800": 1}', "{}", '"\x1b[31m"', json.dumps(["a"] * 4), json.dumps(["", "a", "b", "c"]),
     json.dumps([f"{i}" for i in range(100_000)]), json.dumps(["a\x1b", "[/b]", "\u202ec", "$x^"]), "\ud800"]
)  # fmt: skip
METADATA = st.dictionaries(
    st.sampled_from(
        ["format", "features", "frame", "scales", "ngrams", "alphabet", "classes", "length", "card", "other"]
    ),
    JSON.map(json.dumps) | BAD_JSON,
)


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text + data


@st.composite
def model_files(draw: st.DrawFn, read: Callable[[], bytes]) -> bytes:
    """Draw a model file in which the bytes, the header, the metadata or a tensor is replaced."""
    whole = read()
    size = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    tensor = draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
    replaced = draw(st.sampled_from(["bytes", "size", "cut", "header", "metadata", "values", "tensor", "weight"]))
    if replaced == "bytes":
        return draw(st.binary(max_size=60))
    if replaced == "size":
        return draw(st.integers(0, 2**64 - 1) | st.sampled_from([1 << 60])).to_bytes(8, "little") + whole[8:]
    if replaced == "cut":
        return whole[: draw(st.integers(0, len(whole)))]
    if replaced == "header":
        return with_header(draw(JSON | BAD_JSON.map(lambda text: text.encode("utf-8", "surrogatepass"))), data)
    if replaced == "metadata":
        header["__metadata__"] = draw(JSON | METADATA)
    elif replaced == "values":
        header["__metadata__"].update(draw(METADATA))
    elif replaced == "tensor":
        fields = st.sampled_from(["dtype", "shape", "data_offsets"])
        values = JSON | st.sampled_from(["F32", "F16", "BF16", "I8", "F8_E4M3"]) | st.lists(st.integers(0, 1 << 62))
        header[tensor].update(draw(st.dictionaries(fields, values)))
    else:
        begin = header[tensor]["data_offsets"][0]
        weight = np.float16(draw(st.floats(width=16))).tobytes()
        data = data[:begin] + weight + data[begin + 2 :]
    return with_header(header, data)


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(data=st.data())
def test_a_model_file_of_any_content_loads_or_is_refused_in_a_message(data: st.DataObject, small_model: Model) -> None:
    whole = small_model.to_bytes("float16")
    file = data.draw(model_files(lambda: whole))
    shown = io.StringIO()
    with redirect_stdout(shown):
        try:
            model = Model.from_bytes(file, "it")
        except ModelError as error:
            say(str(error))
        else:
            print_model(model, PlainConsole())
            print_json(about_model(model))
            again = pickle.loads(pickle.dumps(Model.from_bytes(model.to_bytes(), "it")))
            assert (again.digest, again.classes, again.card) == (model.digest, model.classes, model.card)
    assert all(line.isprintable() for line in shown.getvalue().split("\n"))
    assert " it" in shown.getvalue() or (shown.getvalue().startswith("it: ") and len(shown.getvalue()) < 500)


@given(st.binary(max_size=100) | st.integers(0, 3_000_000).map(lambda size: bytes(4 * size)))
def test_a_parameter_file_of_any_content_loads_or_is_refused_in_a_message(data: bytes) -> None:
    with suppress(ModelError):
        from_params(data)


def test_what_is_no_model_file_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "huge.bin").touch()
    os.truncate(tmp_path / "huge.bin", 1 << 40)
    os.mkfifo(tmp_path / "fifo.safetensors")
    for path, message in (
        (tmp_path / "huge.bin", "1,099,511,627,776 bytes, more than any model"),
        (tmp_path / "fifo.safetensors", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "neither a shipped one"),
        (Path("a\0b"), "neither a shipped one"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(path)


# The fewest classes, those of AG News, and more than a byte can count.
@pytest.mark.parametrize("classes", [2, 4, 1000])
def test_params_bin_goes_there_and_back(classes: int) -> None:
    data = to_params(random_model(seed=3, classes=classes))
    model = from_params(data)
    assert model.classes == tuple(str(i) for i in range(classes))
    assert to_params(model) == data
    with pytest.raises(ModelError, match="not a parameter file"):
        from_params(data[:-4])


def test_a_flipped_byte_is_noticed(small_model: Model) -> None:
    shipped = (resources.files("broadsheet_weights") / "ag_news.safetensors").read_bytes()
    for whole, places in ((replace(small_model, card={"by": "me"}).to_bytes("float16"), 40), (shipped, 4)):
        Model.from_bytes(whole, "it")
        size = int.from_bytes(whole[:8], "little")
        metadata = whole.index(b'"me') + 1 if b'"me' in whole[:size] else 8 + size
        for place in [metadata, *np.random.default_rng(5).integers(8 + size, len(whole), places)]:
            flipped = bytearray(whole)
            flipped[place] ^= 1
            with pytest.raises(ModelError, match=r"it: .*(damaged|not finite)"):
                Model.from_bytes(bytes(flipped), "it")


def test_files_of_earlier_versions_load(small_model: Model) -> None:
    """Version 1 had neither features nor a checksum, and the first files of version 2 had only a frame."""
    model = replace(small_model, card={"by": "me"})
    whole = model.to_bytes()
    size = int.from_bytes(whole[:8], "little")
    for frame, features in (("dense", {"format": '"broadsheet-charcnn/1"'}), ("text", {"features": '["frame"]'})):
        header = json.loads(whole[8 : 8 + size])
        about = header["__metadata__"]
        first = ("alphabet", "classes", "length", "card", "layers")
        header["__metadata__"] = {name: about[name] for name in (*first, "format")} | features | {"frame": f'"{frame}"'}
        found = Model.from_bytes(with_header(header, whole[8 + size :]), "it")
        assert (found.frame, found.ngrams, found.scales, dict(found.card)) == (frame, None, None, {"by": "me"})
        assert found.digest == replace(model, frame=frame).digest


def test_convert_keeps_what_a_params_bin_has_no_place_for(
    broadsheet_here: CommandHere, model: Model, tmp_path: Path
) -> None:
    symbols = model.alphabet.symbols.replace("^", " ")
    named = replace(model, alphabet=Alphabet(symbols), classes=("a", "b,c", "Ü", "d"), card={"note": "mine"})
    first, params, back = tmp_path / "m.safetensors", tmp_path / "params.bin", tmp_path / "back.safetensors"
    named.save(first)
    assert broadsheet_here("convert", first, params)[0] == 0
    assert broadsheet_here("convert", params, back)[0] == 0
    for found in (load_model(back), load_model(params)):
        assert (found.classes, found.alphabet, found.digest) == (named.classes, named.alphabet, named.digest)
        assert found.card == {"note": "mine", "origin": "converted from params.bin"}
    beside = tmp_path / "params.bin.json"
    whole = beside.read_text()
    beside.write_text(whole.replace("Ü", "U", 1)[:-20])
    code, said = broadsheet_here("inspect", params)
    assert (code, said.count("\n")) == (2, 1)
    assert f"{beside}, which has the class names of params.bin, is damaged" in said
    beside.write_text(whole)
    params.write_bytes(to_params(random_model(seed=9)))
    with pytest.raises(ModelError, match=r"belongs to another params\.bin"):
        load_model(params)


def test_params_bin_has_its_tensors_in_the_stated_order(model: Model) -> None:
    flat = np.frombuffer(to_params(model), "<f4")
    first = model.tensors["conv1.weight"]
    assert np.array_equal(flat[: first.size].reshape(first.shape), first)
    norm = first.size + 256
    assert np.array_equal(flat[norm : norm + 256 * 1008].reshape(256, 1008), model.tensors["norm1.weight"])
    assert np.array_equal(flat[-4 - 4096 : -4].reshape(4, 1024), model.tensors["fc3.weight"])


def test_convert_and_inspect(broadsheet: Command, broadsheet_in_process: Command, model: Model, tmp_path: Path) -> None:
    params, named, back = tmp_path / "params.bin", tmp_path / "m.safetensors", tmp_path / "back.bin"
    params.write_bytes(to_params(model))
    run = broadsheet("convert", params, named, "--classes", "World,Sports,Business,Sci/Tech")
    assert run.returncode == 0, run.stderr
    assert broadsheet_in_process("convert", named, back).returncode == 0
    assert back.read_bytes() == params.read_bytes()
    shown = broadsheet_in_process("inspect", named)
    assert shown.returncode == 0
    assert "World, Sports, Business, Sci/Tech" in shown.stdout
    assert "conv1d 256→256 k=7" in shown.stdout
    assert json.loads(broadsheet_in_process("inspect", named, "--json").stdout)["parameters"] == model.parameters
    refused = broadsheet_in_process("convert", params, tmp_path / "x.safetensors", "--classes", "a,b")
    assert refused.returncode == 2
    assert "has 4 classes, 2 names were given" in refused.stderr
    assert broadsheet_in_process("inspect", tmp_path / "none.safetensors").returncode == 2


# The weights that come with the package: their frame and their card (test_classify_command.py tests their accuracy).


TRAIN_SHA256 = "87191dd121ce6695b9bcae6cd65f6230abcbee432b94d3c8d0da7aaede2bbb8f"


def test_frame_and_card() -> None:
    model = load_model("ag-news")
    assert (model.frame, model.length, len(model.alphabet), model.dtype) == ("text", 1014, 70, "float16")
    assert model.alphabet.symbols == WITH_SPACE
    assert model.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert (ROOT / "broadsheet_weights" / "ag_news.safetensors").stat().st_size <= 40_000_000
    card = model.card
    assert model.scales is not None
    assert card["calibrated on"] == {"rows": 2048, "files": ["train.csv"]}
    assert card["data"]["files"] == [{"name": "train.csv", "sha256": TRAIN_SHA256}]
    assert card["data"]["rows"] == 48_800
    assert card["recipe"].items() <= Recipe().to_dict().items()  # the card lacks settings that were added later
    assert card["test"]["rows"] == 7_600
    assert card["test"]["accuracy"] >= 0.921


def test_pytorch_and_the_reference_agree() -> None:
    torch = pytest.importorskip("torch")
    from broadsheet.pipeline.train.network import CharCNN, predict

    model = load_model("ag-news")
    texts = [
        b"Stocks fell on Monday as oil rose to a record.",
        b"",
        "Zürich \U0001f600 won 3-1".encode(),
        bytes(range(256)) * 8,
        b"The probe entered orbit around the moon. " * 30,
    ]
    offsets = np.concatenate([[0], np.cumsum([len(t) for t in texts])]).astype(np.int64)
    ids = encode(np.frombuffer(b"".join(texts), np.uint8), offsets, model.alphabet, model.length).ids
    network = CharCNN(model.layers, model.frame)
    network.load_tensors(model.tensors)
    by_torch = predict(network, torch.from_numpy(ids)).numpy()
    assert np.abs(by_torch - reference.forward(ids, reference.prepare(model))).max() < 1e-5
