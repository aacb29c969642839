"""Computes encoders that our kernels do not know in PyTorch.

It uses the models of transformers and the modules of sentence-transformers. Texts are sorted by length, and computed in
batches of as many tokens as there is room for. Families that are tested with padding have padded batches. For other
families, only texts of equal length are computed together, so that no model sees a token that is not in its text. A
text without tokens is read as the token that ends texts.

The other texts of a batch can change the last bits of a text's scores, since PyTorch chooses its products by the shape
of a batch: in fp32 by less than 1e-5, in 16 bits by less than 2e-3.
"""

from __future__ import annotations

import importlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import BroadsheetError, ModelError, NoRoom, UsageError, install
from ..model.stored_tokenizer import strings
from ..model.torch_encoder import ACTIVATION, CONFIG, TorchEncoder
from ..model.trunk import base_of, vocabulary_of
from ..processes.threads import one_ahead
from ..telemetry.spans import Span, span
from .base import TORCH, Backend, Texts

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

PADDED = (
    "albert", "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
    "eurobert", "gte", "jina_embeddings_v3", "modernbert", "mpnet", "nomic_bert", "roberta", "roformer", "xlm-roberta",
)  # fmt: skip
"""The families that a test computes in padded batches."""

_IN_FP32 = ("fnet",)
"""The families that a GPU computes only in fp32: cuFFT has no bf16, and fp16 only for lengths of powers of two."""

_TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 1 << 15}
"""The most tokens in a batch, including padding."""

_TEXTS_AT_ONCE = {"cpu": 512, "cuda": 8192}
"""The most texts that become tokens and are sorted together, while the tokens of earlier texts are computed."""

_T5 = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel", "longt5": "LongT5EncoderModel"}
"""The class of the encoder alone, which makes vectors, for models with an encoder and a decoder."""

_STORED_AS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I64": "int64", "I32": "int32"}
_PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_MODULES = {
    "Pooling": "sentence_transformer.modules.pooling",
    "LayerNorm": "sentence_transformer.modules.layer_norm",
    "Dense": "base.modules.dense",
    "Normalize": "base.modules.normalize",
}


class _Group(NamedTuple):
    """Texts that become tokens together.

    Attributes
    ----------
    encoded : list of tokenizers.Encoding
        The tokens of the texts.
    is_cut : bool [texts]
        Whether each text has more tokens than the encoder reads.

    """

    encoded: list[Any]
    is_cut: NDArray[np.bool_]


class OnTorch:
    """An encoder that PyTorch computes on a GPU or the CPU.

    Raises UsageError if PyTorch or its CUDA is missing, ModelError if weights do not fit the model, and NoRoom if the
    GPU is full.

    Parameters
    ----------
    encoder : TorchEncoder
        The encoder.
    device : str
        "cpu" or "cuda".
    precision : str
        "auto", "fp32", "fp16" or "bf16"; on a CPU only the first two.
    threads : int
        The number of compute threads on a CPU.

    """

    reads_gpu_texts = False

    def __init__(self, encoder: TorchEncoder, device: str, precision: str, threads: int) -> None:
        try:
            import torch
            import transformers
        except ImportError as error:
            by = f"{encoder.settings.family} is computed by PyTorch and transformers"
            raise UsageError(f"{by}, and {error.name} is not installed: {install('torch')}") from error
        self.encoder, self._threads = encoder, threads
        self.device_name, self._device = "cpu", torch.device("cpu")
        if device == "cuda":
            self.device_name, self._device = _gpu()
        is_in_fp32 = device == "cpu" or encoder.settings.family in _IN_FP32
        if precision == "auto":
            precision = "fp32" if is_in_fp32 else "fp16"
        elif precision != "fp32" and encoder.settings.family in _IN_FP32:
            raise UsageError(f"{encoder.settings.family} is computed in fp32 alone: leave --precision {precision} out")
        self._budget, self._group = _TOKENS_AT_ONCE[device], _TEXTS_AT_ONCE[device]
        with self._failures("the encoder"):
            self._model = Forward(encoder, getattr(torch, _PRECISIONS[precision]), self._device)
        self._exact = self._model if precision == "fp32" else None
        versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
        versions += f", tokenizers {version('tokenizers')}, {_chip(device)}"
        self._tokenizing = ThreadPoolExecutor(1, "broadsheet-tokens")
        self.backend = Backend(device, TORCH, versions, precision)

    @cached_property
    def vocabulary(self) -> str:
        """See `Compute`."""
        return vocabulary_of(self.encoder)

    def of_texts(self, texts: Texts, is_logits: bool, spans: list[Span] | None) -> tuple[Floats, NDArray[np.bool_]]:
        """See `Compute`."""
        (found,), is_cut = self._of_models(texts, [self], spans)
        return (self._logits(found) if is_logits else found), is_cut

    def _logits(self, found: Floats) -> Floats:
        """Return the results after the last product, if there is one."""
        last = self.encoder.weights.get("last")
        return found if last is None else found @ last

    def of_heads(
        self, texts: Texts, others: Sequence[object], spans: list[Span] | None
    ) -> tuple[list[Floats], NDArray[np.bool_]]:
        """See `Compute`."""
        same = [other for other in others if isinstance(other, OnTorch)]
        if self.encoder.settings.task == "vectors":  # their heads are only last products
            (found,), is_cut = self._of_models(texts, [self], spans)
            return [other._logits(found) for other in same], is_cut
        every, is_cut = self._of_models(texts, same, spans)
        return [other._logits(outputs) for other, outputs in zip(same, every, strict=True)], is_cut

    def _of_models(
        self, texts: Texts, models: Sequence[OnTorch], spans: list[Span] | None
    ) -> tuple[list[Floats], NDArray[np.bool_]]:
        """Return the results of several models with one trunk, [texts, outputs] each, and which texts are cut."""
        import torch

        if self._device.type == "cpu":
            torch.set_num_threads(self._threads)
        parts = [[np.empty((0, model.encoder.outputs), np.float32)] for model in models]
        cut = [np.empty(0, np.bool_)]
        with self._failures(f"a batch of {len(texts):,} texts"), torch.inference_mode():
            for group in self._groups(texts, spans):
                with span("encoder", spans, "compute", self.device_name):
                    found = self._computed(self._model, group.encoded, models)
                    for of_model, model, part in zip(parts, models, found, strict=True):
                        of_model.append(model._of_overflowed(part, group.encoded))
                cut.append(group.is_cut)
        return [np.concatenate(of_model) for of_model in parts], np.concatenate(cut)

    def _groups(self, texts: Texts, spans: list[Span] | None) -> Iterator[_Group]:
        """Yield the tokens of groups of texts. Those of the next group are made while one is computed."""
        settings, offsets, sharing = self.encoder.settings, texts.offsets, texts.sharing
        data = texts.data if isinstance(texts.data, np.ndarray) else texts.data.get()  # CuPy's

        def tokens_of(first: int) -> _Group:
            places = offsets[first : first + self._group + 1]

            def make() -> _Group:
                with span("tokens", spans, "compute", self.device_name):
                    prompted = [settings.prompt + text for text in strings(data, places)]
                    encoded = self.encoder.tokens.encoded(prompted, settings.most_tokens)
                    return _Group(encoded, np.array([bool(one.overflowing) for one in encoded], np.bool_))

            return make() if sharing is None else sharing.tokens(self.vocabulary, data, places, make)

        return one_ahead(self._tokenizing, tokens_of, range(0, len(offsets) - 1, self._group))

    def _computed(self, model: Forward, encoded: list[Any], models: Sequence[OnTorch]) -> list[Floats]:
        """Return the results of models with one trunk, float32 [texts, outputs] each, in the order of the texts.

        Parameters
        ----------
        model : Forward
            The model that computes the trunk.
        encoded : list of tokenizers.Encoding
            The texts.
        models : sequence of OnTorch
            The models whose results are wanted. If this object is among them, its head is that of `model`.

        """
        import torch

        heads = [model if other is self else other._model for other in models]
        sizes = np.array([len(one.ids) for one in encoded], np.int64)
        order = np.argsort(-sizes, kind="stable")
        results_of_batches: list[list[Any]] = []
        for rows in self._batches(sizes[order]):
            results_of_batches += self._in_halves(model, heads, [encoded[row] for row in order[rows]])
        results = []
        for place, other in enumerate(models):
            out = np.empty((len(encoded), other.encoder.outputs), np.float32)
            if results_of_batches:
                found = torch.cat([batch[place] for batch in results_of_batches]).float().cpu().numpy()
                if found.shape != out.shape:
                    raise ModelError(
                        f"{other.encoder.settings.family} gives {found.shape[1:]} values for a text, not "
                        f"{out.shape[1:]}: save its folder again"
                    )
                out[order] = found
            results.append(out)
        return results

    def _batches(self, sizes: Integers) -> Iterator[slice]:
        """Yield batches of texts, which are sorted by falling number of tokens."""
        first = 0
        while first < len(sizes):
            longest = max(int(sizes[first]), 1)
            last = first + max(1, self._budget // longest)
            if not self._model.is_padded:
                last = min(last, first + int(np.searchsorted(-sizes[first:], -sizes[first], side="right")))
            if not self._model.takes_several:
                last = first + 1
            yield slice(first, last)
            first = last

    def _in_halves(self, model: Forward, heads: Sequence[Forward], encoded: list[Any]) -> list[list[Any]]:
        """Return the result of each head for a batch. The batch is divided if the GPU has no room for it."""
        import torch

        try:
            return [model.of_heads(encoded, heads)]
        except torch.cuda.OutOfMemoryError:
            if len(encoded) == 1:
                raise
        torch.cuda.empty_cache()
        self._budget = max(self._budget // 2, 1)
        middle = len(encoded) // 2
        return self._in_halves(model, heads, encoded[:middle]) + self._in_halves(model, heads, encoded[middle:])

    def _of_overflowed(self, found: Floats, encoded: list[Any]) -> Floats:
        """Return the results, after computing texts that overflow in 16 bits again in fp32."""
        import torch

        rows = np.flatnonzero(~np.isfinite(found).all(axis=1))
        if len(rows) and self._exact is not self._model:
            if self._exact is None:
                self._exact = Forward(self.encoder, torch.float32, self._device)
            (found[rows],) = self._computed(self._exact, [encoded[row] for row in rows], [self])
        return found

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Raise NoRoom if the GPU has no memory for the block, and BroadsheetError for its other errors."""
        import torch

        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            said = str(error).partition(".")[0]
            raise NoRoom(f"{self.device_name} has no room for {what}: {said}. Stop other programs on it") from error
        except (RuntimeError, ValueError, IndexError) as error:
            said = " ".join(str(error).split())[:300]
            raise BroadsheetError(f"{self.device_name} failed with {what} in PyTorch: {said}") from error

    def close(self) -> None:
        import torch

        self._tokenizing.shutdown()
        del self._model, self._exact
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


class Forward:
    """A model of transformers and the modules that follow it, on a device.

    Attributes
    ----------
    is_padded : bool
        Whether texts of several lengths are computed together.
    takes_several : bool
        Whether more than one text is computed at once.
    device : torch.device
        The device that computes.
    body, modules : torch.nn.Module, list of torch.nn.Module
        The model of transformers, and the modules that follow it.

    """

    def __init__(self, encoder: TorchEncoder, dtype: Any, device: Any) -> None:
        import transformers

        self.device, self._inputs = device, encoder.settings.inputs
        self._is_classifier = encoder.settings.task == "classifier"
        self._base = base_of(encoder)
        about = encoder.config
        config = transformers.CONFIG_MAPPING[encoder.settings.family].from_dict(about)
        self.is_padded = encoder.settings.family in PADDED and config.pad_token_id is not None
        # Some classifiers read the last token of a text. They find it by padding or, in models with a decoder, by the
        # tokens that end texts, of which all texts of a batch must then have the same number.
        finds_ends = config.pad_token_id is not None and not config.is_encoder_decoder
        self.takes_several = finds_ends or not self._is_classifier
        self._pad = config.pad_token_id or 0
        ends = config.eos_token_id
        self._of_nothing = [(ends[0] if isinstance(ends, list) else ends) or self._pad]
        with _quiet():
            self.body = _loaded(_class_of(encoder, config), encoder, config, dtype).to(device).eval()
            self.modules = [] if self._is_classifier else [one.to(device, dtype) for one in _modules(encoder)]
        self._outputs, self._is_normalised = encoder.settings.outputs, encoder.settings.is_normalised

    def of_heads(self, encoded: list[Any], heads: Sequence[Forward]) -> list[Any]:
        """Return the results of models with this model's trunk, tensors [texts, outputs] on the device.

        Parameters
        ----------
        encoded : list of tokenizers.Encoding
            The texts.
        heads : sequence of Forward
            The models, which may have this one among them.

        """
        has_trunk = self._base == self.body.base_model_prefix and hasattr(self.body, self._base)
        if len(heads) == 1 or not has_trunk:
            return [head(encoded) for head in heads]
        tensors = self._given(encoded)
        given: dict[str, Any] = {name: tensors[name] for name in self._inputs}
        trunk = getattr(self.body, self.body.base_model_prefix)
        with _noting_result(trunk) as noted:
            logits = self.body(**given).logits
        return [logits if head is self else head._of_trunk(noted[0], given) for head in heads]

    def _of_trunk(self, computed: Any, given: dict[str, Any]) -> Any:
        """Return the head's result from the trunk's result: the model runs with that in place of its trunk."""
        import torch

        class Computed(torch.nn.Module):
            def forward(self, *args: Any, **options: Any) -> Any:
                return computed

        name = self.body.base_model_prefix
        trunk = getattr(self.body, name)
        setattr(self.body, name, Computed())
        try:
            return self.body(**given).logits
        finally:
            setattr(self.body, name, trunk)

    def __call__(self, encoded: list[Any]) -> Any:
        """Return the result for texts, a tensor [texts, outputs] on the device."""
        import torch

        tensors = self._given(encoded)
        computed = self.body(**{name: tensors[name] for name in self._inputs})
        if self._is_classifier:
            return computed.logits
        mask = tensors["attention_mask"]
        features = {"token_embeddings": computed.last_hidden_state, "attention_mask": mask}
        for module in self.modules:
            features = module(features)
        vectors = features["sentence_embedding"][:, : self._outputs].float()
        return torch.nn.functional.normalize(vectors, dim=1) if self._is_normalised else vectors

    def _given(self, encoded: list[Any]) -> dict[str, Any]:
        """Return the tokens of texts with their mask and types, tensors [texts, longest] on the device."""
        import torch

        ids = [one.ids or self._of_nothing for one in encoded]
        longest = max(map(len, ids))
        given = {"input_ids": np.full((len(encoded), longest), self._pad, np.int64)}
        given |= {name: np.zeros_like(given["input_ids"]) for name in ("attention_mask", "token_type_ids")}
        for row, (row_ids, one) in enumerate(zip(ids, encoded, strict=True)):
            given["input_ids"][row, : len(row_ids)] = row_ids
            given["attention_mask"][row, : len(row_ids)] = 1
            given["token_type_ids"][row, : len(one.type_ids)] = one.type_ids
        return {name: torch.from_numpy(array).to(self.device, non_blocking=True) for name, array in given.items()}


def _class_of(encoder: TorchEncoder, config: Any) -> Any:
    import transformers

    if encoder.settings.task == "classifier":
        return transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    if encoder.settings.family in _T5:
        return getattr(transformers, _T5[encoder.settings.family])
    found = transformers.MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _loaded(kind: Any, encoder: TorchEncoder, config: Any, dtype: Any) -> Any:
    """Return a model of transformers with its weights. Raises ModelError if one is missing, which would be random."""
    import torch

    # Turn the stored tensors into those of PyTorch.
    state = {}
    for name, one in encoder.stored().items():
        if one.dtype not in _STORED_AS:
            raise ModelError(f"its tensor {name!r} is of {one.dtype}; known are {', '.join(_STORED_AS)}")
        values = torch.from_numpy(np.array(one.data)).view(getattr(torch, _STORED_AS[one.dtype]))
        state[name] = values.reshape(one.shape)
    # Load them, with the fastest attention that the model has.
    config._attn_implementation = None  # a file may name kernels that would be downloaded
    ways = ("sdpa", "eager") if getattr(kind, "_supports_sdpa", False) else ("eager",)
    try:
        model, loading_info = kind.from_pretrained(
            None, config=config, state_dict=state, dtype=dtype, attn_implementation=ways[0], output_loading_info=True
        )
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        said = " ".join(str(error).split())[:300]
        raise ModelError(f"transformers does not load this {encoder.settings.family}: {said}") from error
    # Refuse a model with missing weights.
    is_needed = encoder.settings.task == "classifier"
    missing = sorted(name for name in loading_info["missing_keys"] if is_needed or not name.startswith("pooler."))
    if missing:
        raise ModelError(
            f"the weights of this {encoder.settings.family} lack {missing[0]!r}, which would be drawn at random "
            f"({len(missing)} in all): download or save the folder again"
        )
    return model


def _modules(encoder: TorchEncoder) -> list[Any]:
    """Return the modules of sentence-transformers that follow a model. By default, the mean of all tokens' vectors."""
    import json

    # Without a list of modules, the vector of a text is the mean of its tokens' vectors.
    try:
        importlib.import_module("sentence_transformers")
    except ImportError as error:
        raise UsageError(f"sentence-transformers is not installed: {install('torch')}") from error
    files = {name: data for name, data in encoder.files.items() if "/" in name}
    listed = encoder.files.get("modules.json")
    if listed is None:
        return [_module_class("Pooling")(encoder.settings.width, "mean")]
    # Load each module from its own folder.
    made = []
    with tempfile.TemporaryDirectory(prefix="broadsheet-") as folder:
        for name, data in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.tobytes())
        for one in json.loads(listed.tobytes())[1:]:
            kind = one["type"].rpartition(".")[2]
            if kind == "Dropout":  # it acts in training alone
                continue
            about = json.loads(files.get(f"{one['path']}/{CONFIG}", np.frombuffer(b"{}", np.uint8)).tobytes())
            function = str(about.get("activation_function", "torch.nn.Tanh"))
            if kind == "Dense" and not ACTIVATION.fullmatch(function):
                raise ModelError(f"the activation_function of a Dense module is {function!r:.60}, not one of torch.nn")
            made.append(_module_class(kind).load(str(Path(folder, one["path"]))))
    return [module.eval() for module in made]


def _module_class(kind: str) -> Any:
    """Return a class of sentence-transformers, from its module in version 6, or from the one in all versions."""
    try:
        return getattr(importlib.import_module(f"sentence_transformers.{_MODULES[kind]}"), kind)
    except ImportError:
        return getattr(importlib.import_module("sentence_transformers.models"), kind)


@contextmanager
def _noting_result(module: Any) -> Iterator[list[Any]]:
    """Yield a list to which the results of a module are appended during the block."""
    noted: list[Any] = []
    hook = module.register_forward_hook(lambda _module, _given, result: noted.append(result))
    try:
        yield noted
    finally:
        hook.remove()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the reports and progress bars of transformers during the block. Important reports are errors here."""
    from transformers.utils import logging as of_library

    logger = logging.getLogger("transformers")
    level, had_bars = logger.level, of_library.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    of_library.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if had_bars:
            of_library.enable_progress_bar()


def _gpu() -> tuple[str, Any]:
    """Return the name and the device of the GPU that this process uses. Raises UsageError if PyTorch has no CUDA."""
    import cupy as cp
    import torch

    from .cuda import number_on_host

    if not torch.cuda.is_available():
        build = "is a build without CUDA" if torch.version.cuda is None else "finds no GPU"
        raise UsageError(
            f"there is a GPU, and PyTorch {torch.__version__} {build}: install one with CUDA (docs/encoders.md), or "
            "add --device cpu"
        )
    number = cp.cuda.Device().id
    return f"cuda:{number_on_host(number)}", torch.device("cuda", number)


def _chip(device: str) -> str:
    """Return the hardware and software that decide the bits of a result."""
    import torch

    if device == "cpu":
        return str(torch.backends.cpu.get_cpu_capability())
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}, CUDA {torch.version.cuda}"
