"""Text that is on a GPU already: how it is described, and that it is labelled there as from the host."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pipeline
from pipeline import SourceError, UsageError
from pipeline.ecosystem.rows import labels_of
from pipeline.engine import on_gpu
from pipeline.engine.base import Texts
from pipeline.engine.on_gpu import OnGpu, column_of, texts_on_gpu
from pipeline.engine.open import why_no_gpu
from pipeline.model.charcnn import Model
from pipeline.options import Options

ARTICLES = ["Stocks fell on Monday.", "", "é漢", None, "a" * 150, "The striker scored twice."] * 20


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_arrow_says_where_a_column_is(kind: pa.DataType) -> None:
    """On the host, whose buffers can be read here: also a slice, and a column of a batch."""
    array = pa.array(ARTICLES, kind)
    for given in (array[5:], pa.record_batch({"n": range(len(array)), "text": array}).slice(5)):
        found = column_of(given.__arrow_c_device_array__())
        assert (found.rows, found.offset) == (len(array) - 5, 5)
        size = (found.offset + found.rows + 1) * found.wide.itemsize
        offsets = np.frombuffer(ctypes.string_at(found.offsets, size), found.wide)[found.offset :]
        text = ctypes.string_at(found.data, int(offsets[-1]))
        pieces = [text[a:b].decode() for a, b in pairwise(offsets.tolist())]
        assert pieces == [article or "" for article in ARTICLES[5:]]
        assert texts_on_gpu(given) is None
    with pytest.raises(UsageError, match="no column 'body'"):
        column_of(pa.record_batch({"text": array}).__arrow_c_device_array__(), "body")
    with pytest.raises(UsageError, match="Arrow's type 'l'"):
        column_of(pa.array([1]).__arrow_c_device_array__())
    with pytest.raises(UsageError, match="Arrow's type 'dictionary'"):
        column_of(array.dictionary_encode().__arrow_c_device_array__())
    assert texts_on_gpu(["a list"]) is None


def test_rows_without_text_on_the_host_keep_their_places(small_model: Model) -> None:
    """What is made of a GPU's texts, with texts of the host in their place."""
    array = pa.array(ARTICLES, pa.large_string())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1]
    texts = Texts(np.frombuffer(array.buffers()[2], np.uint8), offsets)
    options = Options(device="cpu", top_k=2, scores=True, chunk_size=50)
    labels = labels_of([small_model], options, pa.schema([("text", pa.string())]))
    found = labels.of_gpu(OnGpu(texts, array.is_null().to_numpy(zero_copy_only=False)))
    assert found.equals(labels.of(pa.table({"text": array})))
    pipeline.close()


class _Exported:
    """CuPy arrays with Arrow's device interface, as another library gives them."""

    def __init__(self, articles: list[str | None], skipped: int) -> None:
        import cupy as cp

        array = pa.array(articles, pa.string())
        self._buffers = [cp.asarray(np.frombuffer(buffer or b"\0", np.uint8)) for buffer in array.buffers()]
        addresses = [b.data.ptr if given else None for b, given in zip(self._buffers, array.buffers(), strict=True)]
        self._addresses = (ctypes.c_void_p * 3)(*addresses)
        self._event = cp.cuda.Event()
        self._event.record()
        self._at = ctypes.c_void_p(self._event.ptr)
        self._device = on_gpu._DeviceArray()
        self._device.array.length, self._device.array.offset = len(articles) - skipped, skipped
        self._device.array.null_count, self._device.array.n_buffers = -1, 3
        self._device.array.buffers = ctypes.cast(self._addresses, ctypes.POINTER(ctypes.c_void_p))
        self._device.device_id, self._device.device_type = cp.cuda.Device().id, 2
        self._device.sync_event = ctypes.addressof(self._at)
        self._schema = on_gpu._Schema(format=b"u", name=b"")

    def __arrow_c_device_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return (
            make(ctypes.addressof(self._schema), b"arrow_schema", None),
            make(ctypes.addressof(self._device), b"arrow_device_array", None),
        )


@pytest.mark.gpu
@pytest.mark.skipif(why_no_gpu() is not None, reason=f"{why_no_gpu()}")
def test_texts_on_a_gpu_are_labelled_there(model: Model) -> None:
    """The same bits as from the host: few texts and many, one longer than a batch, through Arrow and as CuPy arrays."""
    import cupy as cp

    few = [article for article in ARTICLES if article is not None]
    many = [*few * 300, "x" * 20_000_000, *few]
    with pipeline.load(model, device="cuda") as classifier:
        for articles in (few, many):
            wanted = classifier.predict_proba([article[:16_000_000] for article in articles])
            assert np.array_equal(classifier.predict_proba(_Exported(articles, 0)), wanted)
            assert np.array_equal(classifier.predict_proba(_Exported(articles, 3)), wanted[3:])
            texts = Texts.of([article.encode() for article in articles])
            given = Texts(cp.asarray(texts.data), cp.asarray(texts.offsets))
            assert np.array_equal(classifier.predict_proba(given), wanted)
        with pytest.raises(SourceError, match="text 3: the text is null"):
            classifier.predict(_Exported(ARTICLES, 0))
    with pipeline.load(model, device="cpu") as classifier, pytest.raises(UsageError, match="device='cuda'"):
        classifier.predict(_Exported(few, 0))
    labels = labels_of([model], Options(device="cuda"), pa.schema([("text", pa.string())]))
    exported = _Exported(ARTICLES, 0)  # its capsules own nothing
    found = texts_on_gpu(exported)
    assert found is not None
    assert labels.of_gpu(found).equals(labels.of(pa.table({"text": ARTICLES})))
    pipeline.close()
