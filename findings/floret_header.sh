#!/usr/bin/env bash
# floret 0.10.5 writes fastText's first bytes and version number into files that fastText cannot read.
#
# Both write the number 793712314 and version 12. Then fastText has 11 numbers, lrUpdateRate and the sampling rate;
# floret has two numbers more before these, its hashes and its mode, also for a model that is fastText's in all else.
# Whoever goes by the first eight bytes reads every number after the 11th from a wrong place.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q floret==0.10.5 fasttext-community==0.11.9 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'END'
import struct
from pathlib import Path

import fasttext
import floret

Path("train.txt").write_text("__label__sea harbour ferry\n__label__land field barn\n" * 20)
common = {"dim": 8, "thread": 1, "verbose": 0}
for library in (fasttext, floret):
    library.train_supervised("train.txt", **common).save_model(f"{library.__name__}.bin")
start = {name: Path(f"{name}.bin").read_bytes()[:100] for name in ("fasttext", "floret")}
assert start["fasttext"][:8] == start["floret"][:8] == struct.pack("<ii", 793712314, 12)
*_, rate, sampling, entries, words, labels = struct.unpack_from("<11iid3i", start["fasttext"], 8)
print(f"fasttext: rate {rate}, sampling {sampling}, {entries} entries: {words} words and {labels} labels")
assert (rate, sampling, entries, words + labels) == (100, 1e-4, entries, entries)
*_, hashes, mode, rate, sampling, entries, words, labels = struct.unpack_from("<11i2iid3i", start["floret"], 8)
print(f"floret: {hashes} hashes, mode {mode}, rate {rate}, sampling {sampling}, {entries} entries")
assert (hashes, mode, rate, sampling, words + labels) == (1, 1, 100, 1e-4, entries)
*_, sampling, entries, words, labels = struct.unpack_from("<11iid3i", start["floret"], 8)
print(f"floret read as fasttext: sampling {sampling:.3g}, {entries:,} entries")
assert words + labels != entries
END
