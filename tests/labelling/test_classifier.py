"""A classifier that a program keeps, what `classify` keeps in a process between its calls, and text that is already on
a GPU.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from conftest import ROOT
from distributed import Client, default_client
from jobs import Link

from broadsheet import pipeline
from broadsheet.pipeline import SourceError, UsageError
from broadsheet.pipeline.ecosystem.rows import labels_of
from broadsheet.pipeline.engine import on_gpu
from broadsheet.pipeline.engine.base import Texts
from broadsheet.pipeline.engine.on_gpu import OnGpu, column_of, texts_on_gpu
from broadsheet.pipeline.engine.open import why_no_gpu
from broadsheet.pipeline.errors import ModelError
from broadsheet.pipeline.model.charcnn import Model
from broadsheet.pipeline.options import Options

LONG = "x" * ((16 << 20) + 1)
TEXTS = [
    "Stocks fell on Monday",
    "",
    "  spaces\tkept \n",
    "Ünïcode 🎈 text",
    "home team won " * 90,
    "a",
    *"bcdefgh" * 9,
]


@pytest.fixture(scope="module")
def classifier(small_model: Model) -> Iterator[pipeline.Classifier]:
    with pipeline.load(small_model, device="cpu") as found:
        yield found


def test_its_answers_have_the_bits_of_a_job(
    classifier: pipeline.Classifier, small_model: Model, client: Client
) -> None:
    job = pipeline.classify(TEXTS, model=small_model, client=client, device="cpu", scores=True, chunk_size=10)
    rows = job.to_pandas()
    expected = rows[[f"score_{name}" for name in small_model.classes]].to_numpy()
    found = classifier.predict_proba(TEXTS)
    assert (found.dtype, found.shape, classifier.classes) == (np.float32, (len(TEXTS), 4), small_model.classes)
    assert np.array_equal(found, expected.astype(np.float32))
    assert classifier.predict(TEXTS) == list(rows["label"])
    assert classifier.predict(pd.Series(TEXTS)) == classifier.predict(iter(TEXTS)) == list(rows["label"])
    assert classifier(TEXTS) == list(zip(rows["label"], rows["score"], strict=True))
    one = classifier(TEXTS[3])
    assert (one.label, np.float32(one.score)) == (rows["label"][3], rows["score"][3])
    assert (classifier([]), classifier.predict([]), classifier.predict_proba([]).shape) == ([], [], (0, 4))


def test_arrow_arrays_of_any_layout_are_texts(classifier: pipeline.Classifier, small_model: Model) -> None:
    """The arrays are on the host. A dictionary counts as its values, in a job and in a classifier."""
    texts = pa.array([*TEXTS[:3], *TEXTS[:3]])
    expected = classifier(texts.to_pylist())
    job = pipeline.classify(texts.dictionary_encode(), model=small_model, device="cpu")
    assert job.to_pandas()["label"].tolist() == [label for label, _ in expected]
    for given in (texts, texts.dictionary_encode(), texts.cast(pa.string_view()), pa.chunked_array([texts])):
        assert classifier(given) == expected, given.type
    with pytest.raises(pipeline.UsageError, match=r"^text 0 is a int, not a string"):
        classifier(pa.array([1]))
    pipeline.close()


def test_threads_get_the_same_bits(classifier: pipeline.Classifier) -> None:
    expected = classifier.predict_proba(TEXTS)
    with ThreadPoolExecutor(8) as threads:
        parts = [slice(first, first + count) for count in (1, 3, 17) for first in range(0, len(TEXTS), count)] * 2
        for part, found in zip(parts, threads.map(lambda p: classifier.predict_proba(TEXTS[p]), parts), strict=True):
            assert np.array_equal(found, expected[part])


def test_bad_input_is_named_with_the_reasons_of_a_job(
    classifier: pipeline.Classifier, small_model: Model, client: Client
) -> None:
    job = pipeline.classify([None, LONG], model=small_model, client=client, device="cpu")
    for text, reason in zip((None, LONG), job.quarantine()["reason"].to_pylist(), strict=True):
        with pytest.raises(pipeline.SourceError, match=f"^text 1: {re.escape(reason)}$"):
            classifier.predict(["a", text])
    with pytest.raises(pipeline.SourceError, match=r"^text 2: the text is null"):
        classifier(pd.Series(["a", "b", float("nan")]))
    with pytest.raises(pipeline.SourceError, match=r"^text 0: not valid Unicode: character 1 of it .* U\+D800$"):
        classifier("a\ud800")
    with pytest.raises(pipeline.UsageError, match=r"^text 1 is a int, not a string"):
        classifier(["a", 1])
    for not_texts in (b"a", 1, {"text": "a"}, pd.DataFrame({"text": ["a"]})):
        with pytest.raises(pipeline.UsageError, match=f"^a {type(not_texts).__name__} is not a list of texts"):
            classifier(not_texts)
    with pytest.raises(pipeline.UsageError, match=r"^a str is not a list of texts"):
        classifier.predict("a")


def test_an_overflow_is_an_error_that_names_the_text(small_model: Model) -> None:
    large = {"fc1.weight": 1e30, "fc2.weight": 1e20}
    tensors = {name: values * np.float32(large.get(name, 1)) for name, values in small_model.tensors.items()}
    with (
        pipeline.load(replace(small_model, tensors=tensors), device="cpu") as broken,
        pytest.raises(pipeline.SourceError, match=r"^text 0: the model overflows in fp32 on this text$"),
    ):
        broken("a")


def test_a_closed_one_says_so_and_calls_that_have_begun_end(small_model: Model) -> None:
    held = pipeline.load(small_model, device="cpu")
    expected, errors = held.predict_proba(TEXTS), []
    begun = threading.Barrier(5)

    def call_on() -> None:
        begun.wait()
        try:
            while np.array_equal(held.predict_proba(TEXTS), expected):
                pass
        except pipeline.UsageError as error:
            errors.append(str(error))

    callers = [threading.Thread(target=call_on) for _ in range(4)]
    for caller in callers:
        caller.start()
    begun.wait()
    held.close()
    held.close()
    for caller in callers:
        caller.join(timeout=240)
    assert errors == ["this classifier is closed: load another with broadsheet.load()"] * 4
    assert repr(held).endswith("closed>")


def labels(model: Model, source: object = ("a", "b"), **options: object) -> tuple[str, list[str]]:
    progress = Link()
    report = pipeline.classify(list(source), model=model, progress=progress, **options)
    return progress.dashboard, list(report.to_pandas()["label"])


def test_classify_keeps_its_worker_and_leaves_dask_alone(small_model: Model, model: Model, client: Client) -> None:
    pipeline.close()
    before = dict(dask.config.config)
    first, expected = labels(small_model, device="cpu")
    assert labels(small_model, device="cpu") == (first, expected)
    assert dask.config.config == before
    assert default_client() is client
    assert labels(model, device="cpu")[0] == first  # another model replaces the first
    assert labels(small_model, device="cpu") == (first, expected)

    together = []
    threads = [threading.Thread(target=lambda: together.append(labels(small_model, device="cpu"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found for _, found in together] == [expected] * 2

    with pytest.raises(pipeline.SourceError, match="the text is null"):
        labels(small_model, ["a", None], device="cpu", strict=True)
    after_error = labels(small_model, device="cpu")
    assert after_error[1] == expected
    assert after_error[0] != first
    pipeline.close()
    assert labels(small_model, device="cpu")[0] != after_error[0]
    pipeline.close()


ENDS = """
import faulthandler, gc, os, signal, sys, threading, time
from broadsheet import pipeline

def main():
    assert pipeline.classify(["a"], model=sys.argv[1], device="cpu").rows_written == 1
    held = pipeline.load(sys.argv[1], device="cpu")
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(240, exit=True)  # says what hangs, if anything does
        for call in (held, lambda text: pipeline.classify([text], device="cpu")):
            try:
                call("a")
            except pipeline.UsageError as error:
                print(error)
        print(pipeline.load(sys.argv[1], device="cpu")("a") == None)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    faulthandler.dump_traceback_later(240, exit=True)
    many = [[] for _ in range(1_000_000)]  # so that the interrupt comes while they are looked through
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        gc.collect()
        time.sleep(2)
    except KeyboardInterrupt:
        print("heard")
    del many
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts with & ignores it
    over = threading.Event()
    def press(first=0.3, again=20):
        while not over.wait(first):
            os.kill(os.getpid(), signal.SIGINT)
            first = again
    threading.Thread(target=press, daemon=True).start()
    try:
        pipeline.classify(["a b c"] * 1_000_000, model=sys.argv[1], device="cpu")
    except KeyboardInterrupt:
        over.set()
        print("interrupted")
    print(pipeline.classify(["a"], model=sys.argv[1], device="cpu").rows_written, held("a").label)

main()
"""


def test_it_is_pickled_as_what_loaded_it(
    small_model: Model, small_model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(small_model_file.read_bytes())
    monkeypatch.chdir(tmp_path)
    with pipeline.load(path.name, device="cpu", precision="fp32") as one:
        pickled = pickle.dumps(one)
        expected = one.predict_proba(TEXTS)
    monkeypatch.chdir("/")
    assert len(pickled) < 1000
    with pickle.loads(pickled) as other:
        assert np.array_equal(other.predict_proba(TEXTS), expected)
    replace(small_model, temperature=2.0).save(path)
    with pytest.raises(ModelError, match="another model than the pickled classifier had"):
        pickle.loads(pickled)


@pytest.mark.slow
def test_neither_an_exit_nor_a_fork_nor_ctrl_c_hangs_or_is_heard(small_model_file: object) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ENDS, str(small_model_file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr  # if it hangs, stderr has the stack of every thread
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert lines[0].startswith("this classifier belongs to the process that loaded it")
    assert lines[1].startswith("this process was forked from one that has run a job")
    assert (lines[2:5], lines[5][:8]) == (["False", "heard", "interrupted"], "1 class ")


# Text that is already on a GPU: how it is described, and that it gets the same labels there as from the host.


ARTICLES = ["Stocks fell on Monday.", "", "é漢", None, "a" * 150, "The striker scored twice."] * 20


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_arrow_says_where_a_column_is(kind: pa.DataType) -> None:
    """The buffers are on the host here, where the test can read them, including a slice, and a column of a batch."""
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
    """The test gives texts of the host to the code for a GPU's texts."""
    array = pa.array(ARTICLES, pa.large_string())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1]
    texts = Texts(np.frombuffer(array.buffers()[2], np.uint8), offsets)
    options = Options(device="cpu", top_k=2, scores=True, chunk_size=50)
    labels = labels_of([small_model], options, pa.schema([("text", pa.string())]))
    found = labels.of_gpu(OnGpu(texts, array.is_null().to_numpy(zero_copy_only=False)))
    assert found.equals(labels.of(pa.table({"text": array})))
    pipeline.close()


class _Exported:
    """CuPy arrays with Arrow's device interface, as another library provides them."""

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
    """The bits are those from the host: few texts and many, one longer than a batch, through Arrow and as
    CuPy arrays.
    """
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
    exported = _Exported(ARTICLES, 0)  # the capsules own nothing
    found = texts_on_gpu(exported)
    assert found is not None
    assert labels.of_gpu(found).equals(labels.of(pa.table({"text": ARTICLES})))
    pipeline.close()
