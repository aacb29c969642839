#!/usr/bin/env bash
# transformers 5.24.0 gives BERT's added tokens other numbers than the folder says, and forgets some of them.
#
# tokenizer.json adds "[ENT]" as number 7. With "added_tokens_decoder" in tokenizer_config.json, as transformers 4 wrote it, the
# added tokens of tokenizer.json do not count: "[ENT]" is cut into pieces. The list's own "[FOO]" should have number 20
# and gets 6, the first number after the vocabulary, so another vector of the model. An empty list has the same effect.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3
cd "$folder"
venv/bin/python - 2>/dev/null <<'END'
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ferry"]
tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in ("[GPE]", "[ENT]")])
folder = Path("model")
folder.mkdir()
tokenizer.save(str(folder / "tokenizer.json"))
(folder / "config.json").write_text('{"model_type": "bert"}')
flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
assert tokenizer.token_to_id("[ENT]") == 7
for listed, of_ent, of_foo in (
    ({}, [7], [1, 1, 1]),
    ({"added_tokens_decoder": {}}, [1, 1, 1], [1, 1, 1]),
    ({"added_tokens_decoder": {"20": {"content": "[FOO]", **flags}}}, [1, 1, 1], [6]),
):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **listed}))
    library = AutoTokenizer.from_pretrained(folder)
    found = [library(text, add_special_tokens=False)["input_ids"] for text in ("[ENT]", "[FOO]")]
    print(f"{str(listed)[:60]:62} [ENT] {found[0]}, [FOO] {found[1]}")
    assert found == [of_ent, of_foo]
END
