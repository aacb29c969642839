#!/usr/bin/env bash
# A lazy left join of Polars 2.1.0 does not keep the order of the left rows, though an eager one does.
#
# Ten rows are enough, without the streaming engine being asked for. maintain_order="left" keeps the order in both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q polars==2.1.0
cd "$folder"
venv/bin/python - <<'END'
import polars as pl

rows = pl.DataFrame({"k": range(30_000)})
rows.write_parquet("rows.parquet")
labels = rows.sample(fraction=1, shuffle=True, seed=0).with_columns(label=pl.lit("x"))
labels.write_parquet("labels.parquet")


def lazily(count: int, **options: str) -> list[int]:
    left, right = pl.scan_parquet("rows.parquet").head(count), pl.scan_parquet("labels.parquet")
    return left.join(right, on="k", how="left", **options).collect()["k"].to_list()


print("10 rows, lazily:", lazily(10))
assert any(lazily(10) != list(range(10)) for _ in range(5))
assert lazily(30_000) != list(range(30_000))
assert lazily(30_000, maintain_order="left") == list(range(30_000))
assert rows.join(labels, on="k", how="left")["k"].to_list() == list(range(30_000))
END
