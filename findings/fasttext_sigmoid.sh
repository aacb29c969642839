#!/usr/bin/env bash
# A one-vs-all score of fastText (fasttext-community 0.11.9) is one of 515 numbers, and thousands of texts share each.
#
# Training and prediction take the sigmoid from a table with 513 steps of 1/32, from a logit of -8 to 8; beyond, it is
# 0 or 1. Scores of a model that was trained with negative sampling come from the same table. Two texts whose logits
# differ by nearly 0.03 can have equal scores, and two whose logits differ by a rounding error can have scores that
# differ by 0.0078. fastText adds 0.00001 to each score.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q fasttext-community==0.11.9 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import random
from pathlib import Path

import fasttext
import numpy as np

draw = random.Random(0)
words = {"sea": "harbour ferry tide anchor".split(), "land": "field barn plough road".split()}
both = [*words["sea"], *words["land"], "the", "old"]


def text(topic):
    return " ".join(draw.choice(words[topic] + both) for _ in range(9))


lines = [f"__label__{topic} {text(topic)}" for _ in range(1500) for topic in words]
Path("train.txt").write_text("\n".join(lines))
texts = [text(topic) for _ in range(5000) for topic in words]
table = np.concatenate([1 / (1 + np.exp(8 - np.arange(513) / 32)), [0, 1]])
for loss, is_table in (("ova", True), ("ns", True), ("softmax", False)):
    model = fasttext.train_supervised("train.txt", loss=loss, dim=8, epoch=2, lr=0.05, thread=1, verbose=0)
    scores = np.concatenate(model.predict(texts, k=2)[1])
    distinct = np.unique(scores)
    distance = np.abs(distinct[:, None] - 1e-5 - table).min(axis=1).max()
    print(f"{loss}: {len(scores):,} scores, {len(distinct):,} distinct, at most {distance:.1e} from an entry of the table")
    assert (len(distinct) <= 515 and distance < 1e-6) == is_table
END
