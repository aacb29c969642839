"""Label articles as a step of a lazy Polars query, and list what the model is least sure of.

python examples/polars_query.py examples/articles.csv
"""

import sys

import polars as pl

import broadsheet


def main(source: str, model: str = "ag-news") -> pl.DataFrame:
    """Return the ten articles with the lowest scores."""

    def labelled(frame: pl.DataFrame) -> pl.DataFrame:
        return broadsheet.label(frame, text_column=["title", "text"], model=model)

    articles = pl.scan_csv(source)
    schema = labelled(articles.head(1).collect()).schema
    found = articles.map_batches(labelled, schema=schema)
    return found.select("id", "title", "label", "score").sort("score").head(10).collect()


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
