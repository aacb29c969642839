"""Exports a model as an ONNX graph, for ONNX Runtime, Triton, browsers and phones, and makes its inputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine.base import Texts
from ..engine.cpu import CpuEngine
from ..errors import BroadsheetError, ModelError, UsageError, install
from ..model.alphabet import encode
from ..model.charcnn import Model
from ..model.layers import BIAS, NORM_EPSILON, Layer
from ..model.ngrams import Grams, NGrams, counted, find, of_network
from ..model.several import load_one
from ..processes.threads import available_cores
from ..storage.disk import write_file

OPSET = 17
"""The first opset with LayerNormalization."""

_IR = 8  # from the same release as that opset
_CHECKED = 1_000  # texts on which the scores are compared
_BATCH = 100  # texts at once

_NO_GRAPH = "there is no ONNX graph of it"

TOLERANCE = 1e-3
"""The largest allowed difference of a score. ONNX Runtime and our engine sum in fp32, but in different orders. The
scores of a wrong graph differ far more."""


def onnx_inputs(model: str | Path | Model, texts: Iterable[str | bytes]) -> dict[str, NDArray[Any]]:
    """Encode texts as the inputs of an exported model.

    A program in another language makes ``ids`` in a few lines: decode UTF-8, lower-case A to Z, and look each of the
    first `length` characters up in the alphabet. With an alphabet of S characters, the id of any other character is S,
    and a shorter text is filled up with S + 1. Alphabet and length are in the metadata of the ONNX file. The n-grams of
    a model that has them are hashed to buckets as `pipeline/model/ngrams.py` specifies.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    texts : iterable of str or bytes
        N texts; bytes are UTF-8.

    Returns
    -------
    dict of str to ndarray
        The inputs by name. ``ids``, uint8 [N, length], is always there. A model with n-grams has two more inputs.
        ``ngrams``, int32 [N, 2, G], holds the buckets of each text: those of its n-grams of words, then those of its
        n-grams of characters, each bucket once. G is the length of the longest such row; shorter rows are filled up
        with the number of all buckets. ``ngram_times``, float32 [N, 2, G], holds the weight of each of these: the
        number of binary digits of how often it occurs, and 0 where a row is filled up.

    Raises
    ------
    ModelError
        For a model that cannot be loaded.

    Examples
    --------
    >>> inputs = broadsheet.onnx_inputs("ag-news", ["Stocks fell on Monday."])
    >>> inputs["ids"].shape
    (1, 1014)

    If ``session`` is an ``onnxruntime.InferenceSession`` of the exported file, ``session.run(["scores"], inputs)``
    returns the scores.

    """
    articles = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]
    loaded = load_one(model)
    return _inputs(loaded, Texts.of(articles).as_read_by(loaded))


def _inputs(model: Model, texts: Texts) -> dict[str, NDArray[Any]]:
    ngrams = of_network(model.ngrams, model.name, _NO_GRAPH)
    inputs: dict[str, NDArray[Any]] = {"ids": encode(texts.data, texts.offsets, model.alphabet, model.length).ids}
    if ngrams is not None:
        bits, count = ngrams.bits, len(texts)
        some = find(texts.data, texts.offsets, ngrams.kinds, bits)
        none = [Grams(np.empty(0, np.uint32), np.zeros(count + 1, np.int64))]
        by_kind = [counted(grams or none, count, bits) for grams in some]
        longest = max(int(np.diff(kind.offsets).max(initial=0)) for kind in by_kind)
        buckets = np.full((count, len(by_kind), longest), 1 << bits, np.int32)
        times = np.zeros((count, len(by_kind), longest), np.float32)
        for number, kind in enumerate(by_kind):
            sizes = np.diff(kind.offsets)
            text = np.repeat(np.arange(count), sizes)
            place = np.arange(len(text)) - np.repeat(kind.offsets[:-1], sizes)
            buckets[text, number, place] = kind.buckets
            times[text, number, place] = kind.times
        inputs |= {"ngrams": buckets, "ngram_times": times}
    return inputs


def export_onnx(model: str | Path | Model, path: str | Path) -> float:
    """Write a model as an ONNX file, and compare its scores with our own.

    The graph takes ``ids``, uint8 [N, length], and for a model with n-grams ``ngrams`` and ``ngram_times``
    (`onnx_inputs` makes them all). It returns ``scores``, float32 [N, classes]. It takes ids and not strings, since no
    ONNX operator splits a string into characters. Weights are fp32; activation scales for int8 are left out. The
    metadata has the alphabet, the classes, the length, the kinds of n-grams, the digest and the card, each as JSON.

    Parameters
    ----------
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    path : str or Path
        The file. If it exists, it is replaced after the new one is verified.

    Returns
    -------
    float
        The largest difference between a score of ONNX Runtime and one of ours, on 1,000 texts.

    Raises
    ------
    UsageError
        Without the packages ``onnx`` and ``onnxruntime``.
    ModelError
        For a model that cannot be loaded.
    OutputError
        For a file that cannot be written.
    BroadsheetError
        If a score differs by more than `TOLERANCE`. Then nothing is written.

    Examples
    --------
    >>> broadsheet.export_onnx("topics.safetensors", "topics.onnx") < 1e-3
    True

    """
    loaded = load_one(model).asking("all")
    data = to_onnx(loaded)
    difference = _difference(loaded, data)
    if not difference <= TOLERANCE:
        raise BroadsheetError(
            f"{loaded.name}: a score of the ONNX graph differs from ours by {difference:.2g}, more than "
            f"{TOLERANCE:.0e}: nothing is written. Please report this"
        )
    write_file(path, data)
    return difference


def to_onnx(model: Model) -> bytes:
    """Return the ONNX file of a model. Raises UsageError without the package ``onnx``."""
    onnx = _package("onnx")
    graph = _Graph(onnx, model)
    made = onnx.helper.make_model(
        graph.made(), opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=_IR, producer_name="broadsheet"
    )
    about = {
        "alphabet": model.alphabet.symbols,
        "classes": list(model.classes),
        "length": model.length,
        "frame": model.frame,
        "thresholds": model.thresholds,
        "ngrams": None if model.ngrams is None else model.ngrams.about,
        "digest": model.digest,
        "card": dict(model.card),
    }
    onnx.helper.set_model_props(made, {name: json.dumps(value, ensure_ascii=False) for name, value in about.items()})
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


class _Graph:
    """The nodes of a model's graph, added one after the other. Each is named by its output."""

    def __init__(self, onnx: Any, model: Model) -> None:
        if model.encoder is not None:
            remedy = "export the folder that it is from with optimum-cli export onnx"
            raise ModelError(f"{model.name} is an encoder, for which there is no graph here: {remedy}")
        if model.levels is not None:
            raise ModelError(f"{model.name} gives a text a number, for which there is no graph")
        if model.by_class is not None:
            raise ModelError(f"{model.name} has scores by class, for which there is no graph: calibrate it without")
        self._onnx, self._model = onnx, model
        self._ngrams = of_network(model.ngrams, model.name, _NO_GRAPH)
        self._nodes: list[Any] = []
        self._constants: dict[str, NDArray[Any]] = {}
        for name, tensor in model.tensors.items():
            self._constants[name] = np.ascontiguousarray(tensor, np.float32)

    def made(self) -> Any:
        helper, kinds, model = self._onnx.helper, self._onnx.TensorProto, self._model
        x = BIAS
        if model.has_network:
            ids = self._node("Cast", ["ids"], "ids int32", to=kinds.INT32)
            x = self._one_hot(ids)
            for layer in model.layers:
                x = self._convolution(x, ids, layer) if layer.kind == "conv1d" else self._linear(x, layer)
        if self._ngrams is not None:
            x = self._node("Add", [x, self._branch(self._ngrams)], "logits")
        if model.temperature != 1:
            temperature = self._constant("temperature", np.float32(model.temperature))
            x = self._node("Div", [x, temperature], "logits at temperature")
        if model.is_multi_label:
            self._node("Sigmoid", [x], "scores")
        else:
            self._node("Softmax", [x], "scores", axis=1)
        constants = [self._onnx.numpy_helper.from_array(value, name) for name, value in self._constants.items()]
        given = [helper.make_tensor_value_info("ids", kinds.UINT8, ["articles", model.length])]
        if model.ngrams is not None:
            shape = ["articles", 2, "ngrams"]
            given.append(helper.make_tensor_value_info("ngrams", kinds.INT32, shape))
            given.append(helper.make_tensor_value_info("ngram_times", kinds.FLOAT, shape))
        scores = helper.make_tensor_value_info("scores", kinds.FLOAT, ["articles", len(model.classes)])
        return helper.make_graph(self._nodes, "broadsheet", given, [scores], constants)

    def _one_hot(self, ids: str) -> str:
        """Return [N, symbols, length], in which the columns of unknown characters and of padding are zero."""
        symbols = len(self._model.alphabet)
        rows = self._constant("columns", np.eye(symbols + 2, symbols, dtype=np.float32))
        columns = self._node("Gather", [rows, ids], "one-hot rows", axis=0)
        return self._node("Transpose", [columns], "one-hot", perm=[0, 2, 1])

    def _convolution(self, x: str, ids: str, layer: Layer) -> str:
        name = layer.name
        x = self._node("Conv", [x, f"{name}.weight", f"{name}.bias"], f"{name} sums", kernel_shape=[layer.kernel])
        if layer.norm:
            given = [x, f"{layer.norm}.weight", f"{layer.norm}.bias"]
            x = self._node("LayerNormalization", given, f"{layer.norm} rows", axis=1, epsilon=NORM_EPSILON)
        x = self._node("Relu", [x], f"{name} relu")
        if layer.is_lookup and self._model.frame == "text":
            zero = self._constant("zero", np.float32(0))
            x = self._node("Where", [self._of_text(ids, layer.rows_out), x, zero], f"{name} of text")
        if layer.pool > 1:
            x = self._node("MaxPool", [x], f"{name} pool", kernel_shape=[layer.pool], strides=[layer.pool])
        return x

    def _of_text(self, ids: str, rows: int) -> str:
        """Return whether each row of block 1 comes before the end of the text, [N, 1, rows]."""
        kinds = self._onnx.TensorProto
        padding = self._constant("padding", np.int32(self._model.alphabet.padding))
        places = self._constant("places", np.arange(1, self._model.length + 1, dtype=np.int32))
        padded = self._node("Equal", [ids, padding], "is padding")
        inside = self._node("Cast", [self._node("Not", [padded], "is text")], "is text int32", to=kinds.INT32)
        ends = self._node("ReduceMax", [self._node("Mul", [inside, places], "text places")], "ends", axes=[1])
        before = self._node("Less", [self._constant("rows", np.arange(rows, dtype=np.int32)), ends], "rows of text")
        return self._node("Unsqueeze", [before, self._constant("one", np.array([1]))], "channels of text")

    def _linear(self, x: str, layer: Layer) -> str:
        if layer.name == "fc1":
            x = self._node("Flatten", [x], "flat", axis=1)
        x = self._node("Gemm", [x, f"{layer.name}.weight", f"{layer.name}.bias"], f"{layer.name} sums", transB=1)
        return self._node("Relu", [x], f"{layer.name} relu") if layer.relu else x

    def _branch(self, ngrams: NGrams) -> str:
        """Return what the n-grams add to the logits, [N, classes], as in `model/ngrams.py`."""
        classes = len(self._model.classes)
        padded = np.concatenate([ngrams.table, np.zeros((1, classes + 1), np.int16)])  # the last is for no n-gram
        rows = self._node("Gather", [self._constant("table", padded), "ngrams"], "table rows", axis=0)
        rows = self._node("Cast", [rows], "table rows fp32", to=self._onnx.TensorProto.FLOAT)
        times = self._node("Unsqueeze", ["ngram_times", self._constant("last axis", np.array([-1]))], "times")
        rows = self._node("Mul", [rows, times], "rows that count")
        sizes, split = self._constant("split sizes", np.array([classes, 1])), ["weights", "squares_over_times"]
        self._nodes.append(self._onnx.helper.make_node("Split", [rows, sizes], split, "split", axis=3))
        squares = self._node("Mul", [split[1], times], "squares")
        axis = self._constant("axis of n-grams", np.array([2]))
        sums = self._node("ReduceSum", [split[0], axis], "sums", keepdims=0)
        norms = self._node("ReduceSum", [squares, axis], "norms", keepdims=0)
        zero, one = self._constant("zero", np.float32(0)), self._constant("one square", np.float32(1))
        roots = self._node("Sqrt", [self._node("Max", [norms, one], "norms from one")], "roots")
        scaled = self._node("Mul", [sums, self._constant("scale", ngrams.scale)], "scaled sums")
        kinds = self._node("Div", [scaled, roots], "quotients")
        kinds = self._node("Where", [self._node("Greater", [norms, zero], "is there"), kinds, zero], "of kinds")
        return self._node("ReduceSum", [kinds, self._constant("axis of kinds", np.array([1]))], "branch", keepdims=0)

    def _node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        output = output.replace(" ", "_")
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def _constant(self, name: str, value: NDArray[Any] | np.generic) -> str:
        name = name.replace(" ", "_")
        self._constants[name] = np.asarray(value)
        return name


def _difference(model: Model, data: bytes) -> float:
    """Return the largest difference of a score between ONNX Runtime and the CPU engine.

    The comparison takes 1,000 texts of any kind, or stops at the first difference that is too large.
    """
    runtime = _package("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = available_cores()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # our engine runs in between
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    texts = sample_texts(model)
    engine = CpuEngine(model, available_cores(), "fp32")
    greatest = 0.0
    try:
        for first in range(0, len(texts), _BATCH):
            part = Texts.of(texts[first : first + _BATCH])
            ours = engine.classify(part, all_scores=True).all_scores
            (theirs,) = session.run(["scores"], _inputs(model, part))
            greatest = float(np.maximum(greatest, np.abs(theirs - ours).max()))  # NaN if one of them is
            if not greatest <= TOLERANCE:
                break
    finally:
        engine.close()
    return greatest


def sample_texts(model: Model, count: int = _CHECKED) -> list[bytes]:
    """Return texts for a comparison, which are always the same.

    They have every length up to a little more than the model reads, but most are short. Their characters are within and
    outside the alphabet. One text is empty.
    """
    rng = np.random.default_rng(0)
    symbols = np.array([*model.alphabet.symbols, *"AZé漢🎈\x00"])
    lengths = (rng.random(count) ** 3 * (model.length + 20)).astype(int)
    lengths[:2] = 0, model.length
    return ["".join(rng.choice(symbols, length)).encode() for length in lengths]


def _package(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise UsageError(f"{name} is not installed: {install('onnx')}") from error
