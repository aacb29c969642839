#!/usr/bin/env bash
# datasets 5.2.0 reads the JSON text "2024-01-31" as "2024-01-31 00:00:00", though the features say that it is a string.
#
# pyarrow 26.0.1 guesses a timestamp where all texts of a block look like dates, and datasets casts that to the string of
# the features. One other text in the block, and all are as they were.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q datasets==5.2.0 pyarrow==26.0.1
cd "$folder"
HF_HOME="$folder/hf" HF_HUB_OFFLINE=1 venv/bin/python - <<'END'
from pathlib import Path

import datasets

datasets.disable_progress_bars()
features = datasets.Features({"day": datasets.Value("string")})


def read(name: str, *days: str) -> list[str]:
    Path(name).write_text("".join(f'{{"day": "{day}"}}\n' for day in days))
    return list(datasets.load_dataset("json", data_files=name, features=features, split="train")["day"])


print(read("dates.jsonl", "2024-01-31"))
assert read("dates.jsonl", "2024-01-31") == ["2024-01-31 00:00:00"]
assert read("mixed.jsonl", "2024-01-31", "soon") == ["2024-01-31", "soon"]
END
