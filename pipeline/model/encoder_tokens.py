"""The tokens of an encoder's folder: those that transformers 5 makes of its files.

transformers builds the tokenizer of BERT and DistilBERT anew. Of tokenizer.json it takes the vocabulary, and the added
tokens where tokenizer_config.json lists none. Case, accents, Chinese characters and the two tokens that frame a text
come from tokenizer_config.json, also where tokenizer.json says something else. A folder whose `tokenizer_class` is
PreTrainedTokenizerFast has the tokenizer that is in tokenizer.json.

The same tokenizer is built here with `tokenizers`. What becomes of each code point is asked of it, once: a model file
has the answers.
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
    """A folder's tokenizer.

    Attributes
    ----------
    tokenizer : tokenizers.Tokenizer
        The tokenizer.
    most : int or None
        Tokens of a text that are read, by tokenizer_config.json; None where it does not say.

    """

    tokenizer: Any
    most: int | None


def build(folder: Path, class_of_config: str | None, name: str) -> Built:
    """Build a folder's tokenizer as transformers does.

    Raises ModelError for files that are missing or damaged, and for a key that is not known here; UsageError without
    `tokenizers`.

    Parameters
    ----------
    folder : Path
        The folder.
    class_of_config : str, optional
        `tokenizer_class` of config.json, which counts where tokenizer_config.json has none.
    name : str
        What the folder is called in messages.

    """
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
    except Exception as error:  # of Rust's, without a class of its own
        raise ModelError(f"{name}: tokenizers refuses its tokenizer: {str(error)[:200]}") from error
    _check_cut(about, stored, name)
    most = about["model_max_length"] if "model_max_length" in about else about.get("max_len")
    return Built(tokenizer, None if most is None else int(most))


def word_piece(tokenizer: Any, lower: bool, entries: int, name: str) -> WordPiece:
    """The tables of a tokenizer. Raises ModelError for one that is not computed here.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        The tokenizer.
    lower : bool
        Whether texts are made lower case first, as `do_lower_case` of sentence-transformers does.
    entries : int
        Vectors that the model has.
    name : str
        What the folder is called in messages.

    """
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
    special = {token["content"]: token["id"] for token in added}
    count = 1 + max((*model["vocab"].values(), *special.values()))
    if count > entries:
        raise ModelError(
            f"{name}: its tokenizer has tokens up to number {count - 1:,}, and its model vectors for {entries:,}: "
            "save the folder again after resize_token_embeddings"
        )
    words = [f"[unused {number}]" for number in range(entries)]  # no word has a space
    for word, number in model["vocab"].items():
        words[number] = word
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
    """The content of tokenizer.json, of which all keys are known; None without that file."""
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
    """The tokenizer that BertTokenizer of transformers builds."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    options = _options(folder, about, stored, name)
    named = options.named = {**dict.fromkeys(_NAMED), **_USUAL, **options.named}  # in this order
    if stored is not None:
        kind = stored["model"].get("type", _KINDS[2])
        if kind != _KINDS[2]:
            raise NotInKernels(name, f"its {TOKENIZER} holds {kind!r:.40}", f"{_KINDS[2]} is")
        model = models.WordPiece(stored["model"]["vocab"], unk_token=str(named["unk_token"]))
    elif (folder / VOCABULARY).is_file():
        model = models.WordPiece.from_file(str(folder / VOCABULARY), unk_token=str(named["unk_token"]))
    else:
        raise ModelError(f"{name} has no {TOKENIZER} and no {VOCABULARY}: download or save the folder again")
    tokenizer: Any = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=about.get("tokenize_chinese_chars", True),
        strip_accents=about.get("strip_accents"),
        lowercase=about.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
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
    number = tokenizer.token_to_id(token)
    return tokenizer.token_to_id(str(unknown)) if number is None else number


class _Options:
    """What the files say of added tokens.

    Attributes
    ----------
    named : dict of str to str or tokenizers.AddedToken
        The special tokens that have a role, by its name.
    others : list of str or tokenizers.AddedToken
        Special tokens without a role.
    numbered : dict of int to tokenizers.AddedToken
        Added tokens by the number that they had when they were saved.

    """

    def __init__(self, named: dict[str, Any], others: list[Any], numbered: dict[int, Any]) -> None:
        self.named, self.others, self.numbered = named, others, numbered


def _options(folder: Path, about: Json, stored: Json | None, name: str) -> _Options:
    """Read what `PreTrainedTokenizerBase._from_pretrained` of transformers reads, from the same files."""
    from tokenizers import AddedToken

    def token_of(value: Any) -> Any:
        """A token as the library has it; text stays text."""
        if isinstance(value, dict) and value.get("__type") == "AddedToken":
            return AddedToken(**{key: one for key, one in value.items() if key != "__type"})
        return value

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
    numbered: dict[int, Any] = {}
    if "added_tokens_decoder" in about:
        for number, token in about["added_tokens_decoder"].items():
            numbered[int(number)] = AddedToken(**{key: one for key, one in token.items() if key != "__type"})
    else:
        _read_older_files(folder, about, roles, numbered, name)
        for token in (stored or {}).get("added_tokens", []):
            numbered[token["id"]] = AddedToken(**{key: one for key, one in token.items() if key != "id"})
    by_content = {str(token): token for token in numbered.values()}
    named = {key: token_of(about.get(key)) for key in _NAMED if key in about}
    named |= {key: token_of(value) for key, value in roles.items()}
    for key, value in named.items():
        if value is not None and not isinstance(value, str | AddedToken):
            raise ModelError(f"{name}: {key} is {value!r:.60}, not a token: save the folder again")
        if key in _NAMED and value is not None:
            named[key] = by_content.get(str(value), value)
    others = about.get("extra_special_tokens", about.get("additional_special_tokens")) or []
    others = [token_of(value) for value in others]
    if not all(isinstance(token, str | AddedToken) for token in others):
        raise ModelError(f"{name}: extra_special_tokens holds what is no token: save the folder again")
    return _Options(named, others, numbered)


def _read_older_files(folder: Path, about: Json, roles: dict[str, Any], numbered: dict[int, Any], name: str) -> None:
    """Add what special_tokens_map.json and added_tokens.json say, which older versions wrote.

    Parameters
    ----------
    folder : Path
        The folder.
    about, roles, numbered : dict
        The content of tokenizer_config.json; special tokens of a role that only this model has; and added tokens. More
        are added to each.
    name : str
        What the folder is called in messages.

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
    """Refuse texts that are cut at their beginning, which tokenizer.json can ask for as well."""
    truncation = (stored or {}).get("truncation")
    if truncation and "truncation_side" not in about and truncation.get("direction") == "Left":
        raise refused(name, f"in {TOKENIZER} the direction of truncation is 'Left'", "only 'Right' is")
    missing = {"input_ids", "attention_mask"} - {*about.get("model_input_names", ("input_ids", "attention_mask"))}
    if missing:
        raise refused(name, f"model_input_names lacks {sorted(missing)[0]!r}", "models that get it are")


def _frame(processor: Json | None, name: str) -> tuple[int, int]:
    """The tokens that begin and end a text. Raises ModelError where there are others, or none."""
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
    """What becomes of each code point that does not stay, and the combining marks that stay, by a normalizer and a
    pre-tokenizer.
    """
    from tokenizers import Tokenizer, models

    normalizer, pre_tokenizer = json.loads(steps)
    about = json.loads(Tokenizer(models.WordPiece({"": 0}, unk_token="")).to_str())
    tokenizer = Tokenizer.from_str(json.dumps({**about, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}))
    normalize = tokenizer.normalizer.normalize_str
    normal = {c: normalize(chr(c)) for c in range(0x110000) if c not in _SURROGATES}
    results = sorted({*"".join(normal.values())})
    between = "a".join(["", *results, ""])
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(between)]
    alone = {piece for piece in pieces if len(piece) == 1} - {"a"}
    spaces = {*results} - {*"".join(pieces)}  # what the pre-tokenizer leaves out
    become: dict[int, list[int]] = {}
    for code_point, text in normal.items():
        is_padded = len(text) > 2 and text[0] == text[-1] == " "  # a Chinese character
        kept = text[1:-1] if is_padded else text
        points = [SPACE if c in spaces else ord(c) + ALONE * (is_padded or c in alone) for c in kept]
        if points != [code_point]:
            become[code_point] = points
    marks = [c for c in results if unicodedata.combining(c)]
    pairs = ((a, b) for a in marks for b in marks if unicodedata.combining(a) > unicodedata.combining(b))
    ordered = {c for a, b in pairs if normalize(a + b) == b + a for c in (a, b)}  # the library's Unicode is an old one
    return become, "".join(sorted(ordered))
