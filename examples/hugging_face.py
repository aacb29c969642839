"""Label a Hugging Face dataset as it is streamed, and one that `classify` wrote.

python examples/hugging_face.py examples/articles.csv labels
"""

import sys

import datasets

import broadsheet


def main(source: str, output: str, model: str = "ag-news") -> tuple[str, int]:
    """Return the first article's label, and how many rows `classify` has written."""
    articles = datasets.load_dataset("csv", data_files=source, split="train", streaming=True)
    first = next(iter(broadsheet.label(articles, text_column="text", model=model)))
    broadsheet.classify(source, output, text_column="text", model=model, overwrite=True)
    written = datasets.load_dataset("parquet", data_dir=f"{output}/parts", split="train", streaming=True)
    return first["label"], sum(1 for _ in written)


if __name__ == "__main__":
    print(*main(*sys.argv[1:]))
