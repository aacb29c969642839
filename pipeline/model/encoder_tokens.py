"""The tokenizer of an encoder's folder, as transformers 5 makes it from the folder's files.

transformers builds the tokenizers of BERT and DistilBERT anew. From tokenizer.json it takes only the vocabulary, and
the added tokens if tokenizer_config.json lists none. The treatment of case, accents and Chinese characters, and the two
tokens that frame a text, come from tokenizer_config.json, even if tokenizer.json says something else. If the
`tokenizer_class` of a folder is PreTrainedTokenizerFast, its tokenizer is the one in tokenizer.json.

This module builds the same tokenizer with the library `tokenizers`. It then applies it once to each code point, and
writes the results into the tables of the model file.
"""

from __future__ import annotations

import json
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ModelError, UsageError, install
from .encoder_keys import TOKENIZER_CONFIG, Json, NotInKernels, check_keys, read_json, refused
from .model_file import MOST_TOKENIZER_BYTES, read_file
from .wordpiece import ALONE, MOST_SPECIAL, SPACE, Rules, WordPiece

TOKENIZER, VOCABULARY, TOKENIZER_CONFIG_FILE = "tokenizer.json", "vocab.txt", "tokenizer_config.json"
SPECIAL_TOKENS_MAP, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"

_BERT = ("BertTokenizer", "DistilBertTokenizer")
_AS_STORED = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_USUAL = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip
_KINDS = ("BertNormalizer", "BertPreTokenizer", "WordPiece")
_PARTS = {
    "": "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model",
    "normalizer": "type clean_text handle_chinese_chars strip_accents lowercase",
    "pre_tokenizer": "type",
    "model": "type unk_token continuing_subword_prefix max_input_chars_per_word vocab",
}
_SURROGATES = range(0xD800, 0xE000)


class Built(NamedTuple):
    """The tokenizer of a folder.

    Attributes
    ----------
    tokenizer : tokenizers.Tokenizer
        The tokenizer.
    most_tokens : int or None
        The largest number of tokens of a text, from tokenizer_config.json; None if that has no such number.

    """

    tokenizer: Any
    most_tokens: int | None


def build(folder: Path, class_of_config: str | None, name: str) -> Built:
    """Build a folder's tokenizer as transformers does.

    Raises ModelError if files are missing or damaged, or have an unknown key, and UsageError if `tokenizers` is not
    installed.

    Parameters
    ----------
    folder : Path
        The folder.
    class_of_config : str, optional
        `tokenizer_class` of config.json, which counts if tokenizer_config.json has none.
    name : str
        The name of the folder in messages.

    """
    # Read and check the settings.
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(f"tokenizers is not installed: {install('pieces')}") from error
    about = read_json(folder / TOKENIZER_CONFIG_FILE, name) or {}
    check_keys(about, TOKENIZER_CONFIG, TOKENIZER_CONFIG_FILE, name, names_tokens=True)
    kind = str(about.get("tokenizer_class") or class_of_config or _BERT[0]).removesuffix("Fast")
    if kind not in (*_BERT, *_AS_STORED):
        known = ", ".join((*_BERT, _AS_STORED[0]))
        raise NotInKernels(name, f"its tokenizer_class is {kind!r:.60}", f"{known} and their fast kinds are")
    for key in ("do_lower_case", "tokenize_chinese_chars"):
        if not isinstance(about.get(key, True), bool):
            raise refused(name, f"its {key} is {about[key]!r:.40}", "true and false are")
    # Build the tokenizer.
    stored = _stored(folder, name)
    try:
        if kind in _BERT:
            tokenizer = _of_bert(folder, about, stored, name)
        elif stored is None:
            raise ModelError(f"{name} has no {TOKENIZER}, which its tokenizer_class needs: save the folder again")
        else:
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(stored))
            if stored.get("padding"):
                about.setdefault("pad_token", stored["padding"]["pad_token"])
            _add_tokens(tokenizer, _options(folder, about, stored, name))
    except ModelError:
        raise
    except Exception as error:  # the library raises a plain Exception
        raise ModelError(f"{name}: tokenizers refuses its tokenizer: {str(error)[:200]}") from error
    # Find how many tokens of a text are read.
    _check_cut(about, stored, name)
    most_tokens = about["model_max_length"] if "model_max_length" in about else about.get("max_len")
    return Built(tokenizer, None if most_tokens is None else int(most_tokens))


def word_piece(tokenizer: Any, lower: bool, entries: int, name: str) -> WordPiece:
    """Turn a tokenizer into tables. Raises ModelError for a tokenizer that our kernels cannot compute.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        The tokenizer.
    lower : bool
        Whether to lower texts first, as `do_lower_case` of sentence-transformers does.
    entries : int
        The number of vectors in the model's embedding.
    name : str
        The name of the folder in messages.

    """
    # Check the parts of the tokenizer.
    about = json.loads(tokenizer.to_str())
    for part, known in zip(("normalizer", "pre_tokenizer", "model"), _KINDS, strict=True):
        kind = (about[part] or {}).get("type")
        if kind != known:
            raise NotInKernels(name, f"the {part} of its {TOKENIZER} is {kind!r:.60}", f"only {known} is")
    model, added = about["model"], about["added_tokens"]
    for token in added:
        for key in ("normalized", "single_word"):
            if token[key]:
                raise NotInKernels(
                    name, f"its added token {token['content']!r:.40} is {key}", f"only tokens that are not {key} are"
                )
    if len(added) > MOST_SPECIAL:
        raise NotInKernels(name, f"it has {len(added):,} added tokens", f"up to {MOST_SPECIAL} are")
    if model["unk_token"] not in model["vocab"]:
        raise ModelError(
            f"{name}: its vocabulary lacks the unk_token {model['unk_token']!r:.40}: save the folder again"
        )
    if model["max_input_chars_per_word"] < 1:
        raise refused(name, "its max_input_chars_per_word is 0", "1 or more is")
    # List the vocabulary, and check that each token has a vector.
    special = {token["content"]: token["id"] for token in added}
    count = 1 + max((*model["vocab"].values(), *special.values()))
    if count > entries:
        raise ModelError(
            f"{name}: its tokenizer has tokens up to number {count - 1:,}, and its model vectors for {entries:,}: "
            "save the folder again after resize_token_embeddings"
        )
    words = [f"[unused {number}]" for number in range(entries)]  # never found in a text, since no word has a space
    for word, number in model["vocab"].items():
        words[number] = word
    # Find the characters that each code point becomes.
    normalizer = about["normalizer"]
    if lower:
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, normalizer]}
    become, marks = _characters(json.dumps([normalizer, about["pre_tokenizer"]]))
    rules = Rules(
        *_frame(about["post_processor"], name), model["vocab"][model["unk_token"]], model["continuing_subword_prefix"],
        model["max_input_chars_per_word"], special, marks,
    )  # fmt: skip
    return WordPiece.of(rules, words, become)


def _stored(folder: Path, name: str) -> Json | None:
    """Read tokenizer.json, or return None if there is no such file. Raises ModelError for an unknown key."""
    if not (folder / TOKENIZER).is_file():
        return None
    try:
        about: Json = json.loads(read_file(folder / TOKENIZER, MOST_TOKENIZER_BYTES))
        for part, keys in _PARTS.items():
            unknown = {*((about[part] or {}) if part else about)} - {*keys.split()}
            if unknown and (not part or about[part].get("type") in _KINDS):
                what = f"{TOKENIZER} has the key {' of '.join(filter(None, (sorted(unknown)[0], part)))!r:.60}"
                raise refused(name, what, "others are")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{name}: its {TOKENIZER} is damaged ({str(error)[:200]}): download or save it again"
        ) from error
    return about


def _of_bert(folder: Path, about: Json, stored: Json | None, name: str) -> Any:
    """Build the tokenizer that BertTokenizer of transformers builds."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    # Read the vocabulary.
    options = _options(folder, about, stored, name)
    named = options.named = {**dict.fromkeys(_NAMED), **_USUAL, **options.named}  # the order of the keys matters
    if stored is not None:
        kind = stored["model"].get("type", _KINDS[2])
        if kind != _KINDS[2]:
            raise NotInKernels(name, f"its {TOKENIZER} holds {kind!r:.40}", f"{_KINDS[2]} is")
        model = models.WordPiece(stored["model"]["vocab"], unk_token=str(named["unk_token"]))
    elif (folder / VOCABULARY).is_file():
        model = models.WordPiece.from_file(str(folder / VOCABULARY), unk_token=str(named["unk_token"]))
    else:
        raise ModelError(f"{name} has no {TOKENIZER} and no {VOCABULARY}: download or save the folder again")
    # Set the steps before the vocabulary is looked up.
    tokenizer: Any = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=about.get("tokenize_chinese_chars", True),
        strip_accents=about.get("strip_accents"),
        lowercase=about.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    # Add the special tokens, and the two that frame a text.
    _add_tokens(tokenizer, options)
    first, last = str(named["cls_token"]), str(named["sep_token"])
    frame = [
        (first, 2 if named["cls_token"] is None else _number(tokenizer, first, named["unk_token"])),
        (last, 3 if named["sep_token"] is None else _number(tokenizer, last, named["unk_token"])),
    ]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0", pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1", special_tokens=frame
    )
    return tokenizer


def _number(tokenizer: Any, token: str, unknown: object) -> Any:
    """Return the number of a token, or that of the unknown token if the vocabulary lacks it."""
    number = tokenizer.token_to_id(token)
    return tokenizer.token_to_id(str(unknown)) if number is None else number


class _Options:
    """The added tokens that a folder's files list.

    Attributes
    ----------
    named : dict of str to str or tokenizers.AddedToken
        The special tokens that have a role, by the name of the role, such as "cls_token".
    others : list of str or tokenizers.AddedToken
        The special tokens without a role.
    numbered : dict of int to tokenizers.AddedToken
        The added tokens by the numbers that they had when they were saved.

    """

    def __init__(self, named: dict[str, Any], others: list[Any], numbered: dict[int, Any]) -> None:
        self.named, self.others, self.numbered = named, others, numbered


def _options(folder: Path, about: Json, stored: Json | None, name: str) -> _Options:
    """Read the added tokens from the files that `PreTrainedTokenizerBase._from_pretrained` of transformers reads."""
    from tokenizers import AddedToken

    def token_of(value: Any) -> Any:
        """Return the library's object for a token that is a dict of its attributes; other values stay the same."""
        if isinstance(value, dict) and value.get("__type") == "AddedToken":
            return AddedToken(**{key: one for key, one in value.items() if key != "__type"})
        return value

    # Collect the special tokens with a role that only this model has.
    about = dict(about)
    if "additional_special_tokens" in about and not about.get("extra_special_tokens"):
        about["extra_special_tokens"] = about.pop("additional_special_tokens")
    roles = {
        key: about.pop(key)
        for key in [*about]
        if key.endswith("_token") and key not in _NAMED and isinstance(about[key], str)
    }
    if isinstance(about.get("extra_special_tokens"), dict):
        roles |= about.pop("extra_special_tokens")
    roles = roles or dict(about.get("model_specific_special_tokens") or {})
    # Collect the added tokens with their numbers.
    numbered: dict[int, Any] = {}
    if "added_tokens_decoder" in about:
        for number, token in about["added_tokens_decoder"].items():
            numbered[int(number)] = AddedToken(**{key: one for key, one in token.items() if key != "__type"})
    else:
        _read_older_files(folder, about, roles, numbered, name)
        for token in (stored or {}).get("added_tokens", []):
            numbered[token["id"]] = AddedToken(**{key: one for key, one in token.items() if key != "id"})
    # Make the tokens of all roles, with the attributes of the added tokens of the same text.
    by_content = {str(token): token for token in numbered.values()}
    named = {key: token_of(about.get(key)) for key in _NAMED if key in about}
    named |= {key: token_of(value) for key, value in roles.items()}
    for key, value in named.items():
        if value is not None and not isinstance(value, str | AddedToken):
            raise ModelError(f"{name}: {key} is {value!r:.60}, not a token: save the folder again")
        if key in _NAMED and value is not None:
            named[key] = by_content.get(str(value), value)
    # Make the special tokens without a role.
    others = about.get("extra_special_tokens", about.get("additional_special_tokens")) or []
    others = [token_of(value) for value in others]
    if not all(isinstance(token, str | AddedToken) for token in others):
        raise ModelError(f"{name}: extra_special_tokens holds what is no token: save the folder again")
    return _Options(named, others, numbered)


def _read_older_files(folder: Path, about: Json, roles: dict[str, Any], numbered: dict[int, Any], name: str) -> None:
    """Add the content of special_tokens_map.json and added_tokens.json, which older versions of transformers wrote.

    Parameters
    ----------
    folder : Path
        The folder.
    about, roles, numbered : dict
        The content of tokenizer_config.json; the special tokens with a role that only this model has; and the added
        tokens by their numbers. The function adds to each of them.
    name : str
        The name of the folder in messages.

    """
    from tokenizers import AddedToken

    for key, value in (read_json(folder / SPECIAL_TOKENS_MAP, name) or {}).items():
        if isinstance(value, dict) and key != "extra_special_tokens":
            value = AddedToken(**{**value, "special": True})
        if key == "extra_special_tokens" and isinstance(value, list):
            of_list = [AddedToken(**{**one, "special": True}) if isinstance(one, dict) else one for one in value]
            value = [*(about.get(key) or []), *of_list]
        if key not in (*_NAMED, "extra_special_tokens", "additional_special_tokens"):
            raise refused(name, f"{SPECIAL_TOKENS_MAP} has the key {key!r:.60}", f"{', '.join(_NAMED)} are")
        about[key] = value
    if isinstance(about.get("extra_special_tokens"), dict):
        roles |= about.pop("extra_special_tokens")
    special = {str(about[key]) for key in _NAMED if about.get(key)}
    special |= {str(token) for token in about.get("extra_special_tokens") or []}
    for content, number in (read_json(folder / ADDED_TOKENS, name) or {}).items():
        is_special = content in special
        numbered[number] = AddedToken(content, normalized=not is_special, special=is_special)


def _add_tokens(tokenizer: Any, options: _Options) -> None:
    """Add the tokens that a tokenizer lacks, in the order in which transformers adds them."""
    from tokenizers import AddedToken

    there = tokenizer.get_added_tokens_decoder().values()
    written = {repr(token) for token in there}
    adding = [token for _, token in sorted(options.numbered.items()) if repr(token) not in written]
    contents = {str(token) for token in (*there, *adding)}
    roles = [token for token in options.named.values() if token is not None]
    for token in (*roles, *options.others):
        if str(token) not in contents and token not in adding:
            adding.append(token)
    names = {str(token) for token in roles}
    for place, token in enumerate(adding):
        if isinstance(token, str):
            adding[place] = AddedToken(token, special=True)
        elif str(token) in names:
            token.special = True
    if adding:
        tokenizer.add_tokens(adding)


def _check_cut(about: Json, stored: Json | None, name: str) -> None:
    """Raise ModelError if tokenizer.json cuts texts at their beginning, or if model_input_names lacks a usual input."""
    truncation = (stored or {}).get("truncation")
    if truncation and "truncation_side" not in about and truncation.get("direction") == "Left":
        raise refused(name, f"in {TOKENIZER} the direction of truncation is 'Left'", "only 'Right' is")
    missing = {"input_ids", "attention_mask"} - {*about.get("model_input_names", ("input_ids", "attention_mask"))}
    if missing:
        raise refused(name, f"model_input_names lacks {sorted(missing)[0]!r}", "models that get it are")


def _frame(processor: Json | None, name: str) -> tuple[int, int]:
    """Return the numbers of the tokens that begin and end a text.

    Raises ModelError if a text is not framed by exactly one token before it and one after it.
    """
    kind = (processor or {}).get("type")
    if kind == "BertProcessing":
        assert processor is not None
        return processor["cls"][1], processor["sep"][1]
    if kind == "TemplateProcessing":
        assert processor is not None
        tokens = processor["special_tokens"]
        match processor["single"]:
            case [
                {"SpecialToken": {"id": first, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": last, "type_id": 0}},
            ] if len(tokens[first]["ids"]) == len(tokens[last]["ids"]) == 1:
                return tokens[first]["ids"][0], tokens[last]["ids"][0]
    what = f"the post_processor of its {TOKENIZER} ({kind}) does not put one token before a text and one after it"
    raise NotInKernels(name, what, "only tokenizers that do so are")


@lru_cache(maxsize=4)
def _characters(steps: str) -> tuple[dict[int, list[int]], str]:
    """Return the code points that each code point becomes, and the combining marks that the normalizer puts in order.

    Code points that stay the same are left out. The order of marks is that of Unicode's normal form NFD.

    steps: the JSON of a normalizer and a pre-tokenizer.
    """
    from tokenizers import Tokenizer, models

    # Build a tokenizer that has only these two steps, and normalize each code point.
    normalizer, pre_tokenizer = json.loads(steps)
    about = json.loads(Tokenizer(models.WordPiece({"": 0}, unk_token="")).to_str())
    tokenizer = Tokenizer.from_str(json.dumps({**about, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}))
    normalize = tokenizer.normalizer.normalize_str
    normal = {c: normalize(chr(c)) for c in range(0x110000) if c not in _SURROGATES}
    # Find which characters the pre-tokenizer makes a word of their own, and which it drops as white space.
    results = sorted({*"".join(normal.values())})
    between = "a".join(["", *results, ""])
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(between)]
    alone = {piece for piece in pieces if len(piece) == 1} - {"a"}
    spaces = {*results} - {*"".join(pieces)}
    # Combine both steps.
    become: dict[int, list[int]] = {}
    for code_point, text in normal.items():
        is_padded = len(text) > 2 and text[0] == text[-1] == " "  # a Chinese character, around which spaces are put
        unpadded = text[1:-1] if is_padded else text
        points = [SPACE if c in spaces else ord(c) + ALONE * (is_padded or c in alone) for c in unpadded]
        if points != [code_point]:
            become[code_point] = points
    # Find the marks that the normalizer orders. The library's Unicode version is older than Python's.
    marks = [c for c in results if unicodedata.combining(c)]
    pairs = ((a, b) for a in marks for b in marks if unicodedata.combining(a) > unicodedata.combining(b))
    ordered = {c for a, b in pairs if normalize(a + b) == b + a for c in (a, b)}
    return become, "".join(sorted(ordered))
