"""Label a Dask DataFrame lazily, and write the articles about sports: each worker loads the model once.

python examples/lazy_dask.py examples/articles.csv sports/
"""

import sys

import dask.dataframe as dd

import broadsheet


def main(source: str, output: str, model: str = "ag-news", label: str = "Sports") -> int:
    """Return how many rows are written."""
    articles = dd.read_csv(source)
    labelled = broadsheet.label(articles, text_column=["title", "text"], model=model)
    chosen = labelled[labelled.label == label][["id", "title", "label", "score"]]
    chosen.to_parquet(output)
    return len(dd.read_parquet(output))


if __name__ == "__main__":  # a cluster's worker processes import this file too
    print(f"{main(*sys.argv[1:])} articles")
