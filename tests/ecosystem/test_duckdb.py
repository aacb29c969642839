"""Labels in SQL: DuckDB calls our functions with its batches of text; and the recipe for Polars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest

import broadsheet
from broadsheet import pipeline
from broadsheet.pipeline import UsageError
from broadsheet.pipeline.labelling.engines import ENGINES
from broadsheet.pipeline.model.charcnn import Model


@pytest.fixture(scope="module")
def quick_model(small_model: Model) -> Model:
    """A model for short texts that computes nothing else."""
    return replace(small_model, frame="text")


@pytest.fixture
def connection(quick_model: Model) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as found:
        broadsheet.duckdb.register(found, quick_model, device="cpu")
        yield found
    pipeline.close()


def test_a_query_labels_its_rows(connection: duckdb.DuckDBPyConnection, quick_model: Model) -> None:
    """The rows are more than a batch of DuckDB's, on several threads, with nulls. The labels are those of the
    classifier.
    """
    rows = connection.sql(
        "select i, case when i % 10 = 3 then null else 'text ' || (i % 7) end as body, broadsheet(body) as label "
        "from range(2500) t(i) order by i"
    ).fetchall()
    texts = [f"text {i}" for i in range(7)]
    with pipeline.load(quick_model, device="cpu") as classifier:
        wanted = dict(zip(texts, classifier(texts), strict=True))
    assert [label for *_, label in rows] == [body and wanted[body].label for _, body, _ in rows]
    assert rows[3][1] is None
    found = connection.sql("select broadsheet_row(x) from (values ('text 1'), (null)) t(x)").fetchall()
    first, second = (row[0] for row in found)
    assert (first["label"], first["score"], first["reason"]) == (*wanted["text 1"], None)
    assert second == dict.fromkeys(first) | {"reason": "the text is null"}


def test_connections_of_a_process_share_an_engine(connection: duckdb.DuckDBPyConnection, quick_model: Model) -> None:
    with duckdb.connect() as other:
        broadsheet.duckdb.register(other, quick_model, name="topic", device="cpu")
        query = "select {}('the same text')"
        assert other.sql(query.format("topic")).fetchall() == connection.sql(query.format("broadsheet")).fetchall()
        assert len([key for key in ENGINES.engines if key.startswith("resident")]) == 1
        with pytest.raises(UsageError, match="'topic' already"):
            broadsheet.duckdb.register(other, quick_model, name="topic")
