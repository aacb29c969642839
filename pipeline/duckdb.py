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
    """Give a DuckDB connection two functions that label text.

    ``broadsheet(text)`` is the label, a VARCHAR; null where the text is null or cannot be labelled. Of a model with
    heads it is that of the first, and the other function has those of all.
    ``broadsheet_row(text)`` is a STRUCT of ``label``, ``score``, ``n_chars``, ``truncated``, ``unknown_chars`` and
    ``reason``, as `label` names them. Both are vectorised: they take the texts of a batch of DuckDB at once, without
    copying them. One engine in this process computes them, whichever connection asks; `close` releases it.

    Parameters
    ----------
    connection : duckdb.DuckDBPyConnection
        Where the functions are to be known.
    model : str, Path or Model
        A shipped model's name, a model file, or a loaded `Model`.
    name : str
        Of the first function; the second has ``_row`` after it.
    **options
        Each as `classify` takes it.

    Raises
    ------
    ModelError
        For a model that does not exist or is damaged.
    UsageError
        For a name that the connection has a function of already. If the device, the precision or the kernels are not
        available, it is DuckDB's error of the query, with the message.

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
