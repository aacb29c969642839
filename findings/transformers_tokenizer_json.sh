#!/usr/bin/env bash
# transformers 5.24.0 takes of BERT's tokenizer.json the vocabulary alone: its rules come from tokenizer_config.json.
#
# tokenizer.json holds a whole tokenizer, and the library tokenizers 0.23.3 gives what it says: here text keeps its case,
# a word of more than five characters is unknown, and pieces that continue a word begin with "@@". AutoTokenizer builds
# a BertTokenizer anew. Without do_lower_case in tokenizer_config.json it makes text lower case, cuts words of up to 100
# characters, and looks for pieces that begin with "##". With "tokenizer_class": "PreTrainedTokenizerFast" it gives what
# tokenizer.json says. transformers 4 gave that in both cases.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3
cd "$folder"
venv/bin/python - 2>/dev/null <<'END'
import json
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Port", "port", "harbour", "@@s", "##s"]
rules = {"continuing_subword_prefix": "@@", "max_input_chars_per_word": 5}
tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]", **rules))
tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
folder = Path("model")
folder.mkdir()
tokenizer.save(str(folder / "tokenizer.json"))
(folder / "config.json").write_text('{"model_type": "bert"}')
text = "Port ports harbour"
stored = tokenizer.encode(text).tokens
print("tokenizers, tokenizer.json:            ", stored)
assert stored == ["Port", "port", "@@s", "[UNK]"]
for name, expected in (
    ("BertTokenizer", ["port", "port", "##s", "harbour"]),
    ("PreTrainedTokenizerFast", stored),
):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "unk_token": "[UNK]"}))
    found = AutoTokenizer.from_pretrained(folder).tokenize(text)
    print(f"transformers, {name}:".ljust(39), found)
    assert found == expected
END
