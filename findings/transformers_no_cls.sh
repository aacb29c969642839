#!/usr/bin/env bash
# transformers 5.24.0 puts the vocabulary's entry number 2 before a text if BERT's cls_token is null.
#
# "cls_token": null in tokenizer_config.json looks like a way to have no token before a text. BertTokenizer names the
# token "None" and gives it number 2, whatever the vocabulary has there. With "sep_token": null as well, both are number 3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3
cd "$folder"
venv/bin/python - 2>/dev/null <<'END'
import json
from pathlib import Path

from transformers import AutoTokenizer

folder = Path("model")
folder.mkdir()
(folder / "vocab.txt").write_text("[PAD]\n[UNK]\nsalt\npepper\n[MASK]\nferry\n[CLS]\n[SEP]\n")
(folder / "config.json").write_text('{"model_type": "bert"}')
no_cls, neither = {"cls_token": None}, {"cls_token": None, "sep_token": None}
for given, expected in (({}, [6, 5, 7]), (no_cls, [2, 5, 7]), (neither, [3, 5, 3])):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **given}))
    library = AutoTokenizer.from_pretrained(folder)
    ids = library("ferry")["input_ids"]
    print(f"{given}: {ids} {library.convert_ids_to_tokens(ids)}")
    assert ids == expected
END
