"""SQL functions that label text, for DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from .ecosystem.rows import labels_of
from .errors import UsageError
from .model.charcnn import Model
from .options import EngineKeywords, Options, takes

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TEXT = "text"


@takes(EngineKeywords)
def register(
    connection: DuckDBPyConnection,
    model: str | Path | Model = "ag-news",
    *,
    name: str = "broadsheet",
    **options: Unpack[EngineKeywords],
) -> None:
    """Register two functions that label text with a DuckDB connection.

    ``broadsheet(text)`` returns the label, a VARCHAR, or null if the text is null or cannot be labelled. For a model
    with heads it is the label of the first head; the other function has those of all heads. ``broadsheet_row(text)``
    returns a STRUCT of ``label``, ``score``, ``n_chars``, ``truncated``, ``unknown_chars`` and ``reason``, with the
    names of `label`. Both are vectorised: they take the texts of a DuckDB batch at once, without copying them. One
    engine in this process computes them for all connections; `close` releases it.

    Parameters
    ----------
    connection : duckdb.DuckDBPyConnection
        The connection that gets the functions.
    model : str, Path or Model
        The name of a shipped model, a model file, or a loaded `Model`.
    name : str
        The name of the first function; the second has ``_row`` after it.
    **options
        The options of `classify`.

    Raises
    ------
    ModelError
        For a model that does not exist or is damaged.
    UsageError
        If the connection already has a function of that name. If the device, the precision or the kernels are not
        available, the query fails with DuckDB's error, which has the message.

    Examples
    --------
    >>> connection = duckdb.connect()
    >>> broadsheet.duckdb.register(connection, "ag-news")
    >>> connection.sql("select broadsheet(body) as topic, count(*) from 'news/*.parquet' group by topic")

    """
    import duckdb
    from duckdb import sqltypes

    settings = Options(text_column=_TEXT, **options)
    labels = labels_of([model], settings, pa.schema([(_TEXT, pa.string())]))
    if any(model.thresholds is not None for model in labels.columns.models):
        raise UsageError("the model gives a text several labels, and the functions return one: use broadsheet.label")
    types = {pa.string(): sqltypes.VARCHAR, pa.float32(): sqltypes.FLOAT}
    types |= {pa.int64(): sqltypes.BIGINT, pa.bool_(): sqltypes.BOOLEAN}
    row = duckdb.struct_type({field.name: types[field.type] for field in labels.schema})

    def labelled(texts: Any) -> pa.Table:
        return labels.of(pa.table({_TEXT: texts}))

    def label_of(texts: Any) -> pa.Array:
        return labelled(texts).column(0).combine_chunks()

    def row_of(texts: Any) -> pa.Array:
        return labelled(texts).combine_chunks().to_struct_array().combine_chunks()

    for called, function, kind in ((name, label_of, sqltypes.VARCHAR), (f"{name}_row", row_of, row)):
        try:
            connection.create_function(
                called, function, [sqltypes.VARCHAR], kind, type="arrow", null_handling="special"
            )
        except (duckdb.NotImplementedException, duckdb.CatalogException) as error:
            raise UsageError(f"the connection has a function {called!r} already: give another name") from error
