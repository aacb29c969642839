"""The keys of the JSON files of an encoder's folder, and how each key is treated.

There are three kinds of known keys: those that are read, those that must have a value that changes nothing, and those
that cannot change a result whatever their value is. A file with any other key is refused, and the message names the
key, since it is unknown what transformers or sentence-transformers would do with it. The lists have the keys that
transformers 5.24 and sentence-transformers 6.2 write, and that older versions wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ModelError
from .model_file import read_file

CONFIG_FILE = "config.json"
Json = dict[str, Any]
_MOST_BYTES = 16 << 20


class Keys(NamedTuple):
    """The keys of one file.

    Attributes
    ----------
    read : str
        The keys that are read, separated by spaces.
    only : mapping of str to tuple
        The values that a key may have, because they change nothing.
    unused : mapping of str to str
        For each reason, the keys that cannot change a result, separated by spaces.

    """

    read: str
    only: Mapping[str, tuple[Any, ...]]
    unused: Mapping[str, str]


_IN_TRAINING = "they act in training alone"
_OF_ALL_KINDS = {
    "they say which program wrote the file, or where it was": (
        "transformers_version _name_or_path name_or_path _commit_hash transformers.js_config finetuning_task"
    ),
    "they say how numbers are stored or computed; here they are computed in fp32, or as --precision says": (
        "dtype torch_dtype use_bfloat16 _attn_implementation attn_implementation _attn_implementation_autoset"
        " _experts_implementation experts_implementation"
    ),
    "they name the labels the other way round, or count them; id2label counts": "label2id _num_labels",
    "they choose what PyTorch returns beside the logits": (
        "output_attentions output_hidden_states output_scores output_past return_dict_in_generate"
    ),
    "they are of models that write text": (
        "use_cache tie_word_embeddings tie_encoder_decoder tie_weights_ bos_token_id eos_token_id pad_token_id"
        " sep_token_id decoder_start_token_id max_length min_length do_sample early_stopping num_beams num_beam_groups"
        " diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size"
        " encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id forced_eos_token_id"
        " remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens prefix"
        " cross_attention_hidden_size"
    ),
    "they are of TensorFlow": "tf_legacy_loss",
}
_ONLY_OF_ALL_KINDS: dict[str, tuple[Any, ...]] = {
    "chunk_size_feed_forward": (0,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "return_dict": (True, None),
    "sbert_ce_default_activation_function": (None,),
    "sentence_transformers": (None,),
    "task_specific_params": (None, {}),
    "torchscript": (False, None),
}
_READ_OF_ALL_KINDS = "model_type architectures id2label num_labels problem_type tokenizer_class vocab_size"
_READ_OF_ALL_KINDS += " max_position_embeddings"

CONFIG = {
    "bert": Keys(
        f"{_READ_OF_ALL_KINDS} hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act"
        " layer_norm_eps type_vocab_size",
        _ONLY_OF_ALL_KINDS
        | {
            "is_decoder": (False,),
            "add_cross_attention": (False,),
            "position_embedding_type": ("absolute", None),
        },
        _OF_ALL_KINDS
        | {
            _IN_TRAINING: (
                "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout initializer_range"
                " gradient_checkpointing"
            ),
            "Google's own program wrote them, and transformers does not read them": (
                "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head"
                " pooler_type"
            ),
        },
    ),
    "distilbert": Keys(
        f"{_READ_OF_ALL_KINDS} dim n_layers n_heads hidden_dim activation",
        _ONLY_OF_ALL_KINDS,
        _OF_ALL_KINDS
        | {
            _IN_TRAINING: (
                "dropout attention_dropout qa_dropout seq_classif_dropout initializer_range gradient_checkpointing"
            ),
            "the weights of the places are in the file": "sinusoidal_pos_embds",
            "transformers does not read it: it computes DistilBERT's norms with 1e-12": "layer_norm_eps",
        },
    ),
}
CONFIG |= dict.fromkeys(
    ("roberta", "xlm-roberta", "camembert"), CONFIG["bert"]._replace(read=f"{CONFIG['bert'].read} pad_token_id")
)
CONFIG["modernbert"] = Keys(
    f"{_READ_OF_ALL_KINDS} hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_activation"
    " norm_eps norm_bias attention_bias mlp_bias layer_types global_attn_every_n_layers local_attention"
    " rope_parameters global_rope_theta local_rope_theta classifier_pooling classifier_bias classifier_activation",
    _ONLY_OF_ALL_KINDS | {"causal_mask": (False,), "is_causal": (False,), "rope_scaling": (None,)},
    _OF_ALL_KINDS
    | {
        _IN_TRAINING: (
            "attention_dropout embedding_dropout mlp_dropout classifier_dropout initializer_range"
            " initializer_cutoff_factor gradient_checkpointing"
        ),
        "they are of models that fill masks": (
            "decoder_bias sparse_prediction sparse_pred_ignore_index repad_logits_with_grad"
        ),
        "they choose among programs of the same function": "deterministic_flash_attn reference_compile",
        "transformers does not read them for ModernBERT": "layer_norm_eps position_embedding_type cls_token_id",
    },
)
CONFIG["gte"] = Keys(
    f"{_READ_OF_ALL_KINDS} hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act"
    " layer_norm_eps type_vocab_size rope_parameters rope_theta",
    _ONLY_OF_ALL_KINDS
    | {"rope_scaling": (None,), "is_decoder": (False,), "add_cross_attention": (False,), "head_dim": (None,)},
    _OF_ALL_KINDS
    | {
        _IN_TRAINING: (
            "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout initializer_range"
            " gradient_checkpointing"
        ),
        "it says to how many values vectors may be cut": "matryoshka_dimensions",
        "transformers does not read them for gte": (
            "auto_map position_embedding_type layer_norm_type logn_attention_scale logn_attention_clip1 pack_qkv"
            " unpad_inputs use_memory_efficient_attention"
        ),
    },
)
CONFIG["new"] = Keys(
    f"{CONFIG['gte'].read.replace(' rope_parameters', '')} rope_scaling",
    {key: values for key, values in CONFIG["gte"].only.items() if key != "rope_scaling"}
    | {
        "position_embedding_type": ("rope",),
        "layer_norm_type": ("layer_norm",),
        "logn_attention_scale": (False,),
        "pack_qkv": (True,),
    },
    _OF_ALL_KINDS
    | {
        _IN_TRAINING: CONFIG["gte"].unused[_IN_TRAINING],
        "they choose among programs of the same function": "unpad_inputs use_memory_efficient_attention",
        "it says to how many values vectors may be cut": "matryoshka_dimensions",
        "it counts only with logn_attention_scale": "logn_attention_clip1",
        "it names code of the authors, which is not run": "auto_map",
    },
)
CONFIG["deberta-v2"] = Keys(
    f"{_READ_OF_ALL_KINDS} hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act"
    " layer_norm_eps type_vocab_size relative_attention position_buckets max_relative_positions pos_att_type"
    " share_att_key norm_rel_ebd position_biased_input conv_kernel_size embedding_size attention_head_size"
    " pooler_hidden_size pooler_hidden_act",
    _ONLY_OF_ALL_KINDS | {"is_decoder": (False,), "add_cross_attention": (False,)},
    _OF_ALL_KINDS
    | {
        _IN_TRAINING: (
            "hidden_dropout_prob attention_probs_dropout_prob pooler_dropout cls_dropout classifier_dropout"
            " initializer_range gradient_checkpointing"
        ),
        "they are of models that fill masks": "legacy",
        "they count only with conv_kernel_size": "conv_act conv_groups",
        "transformers does not read them for DeBERTa-v2": "padding_idx",
    },
)
"""The keys of config.json, by the kind of the model."""

ROPE = Keys("rope_theta", {"rope_type": ("default",)}, {})
"""The keys in rope_parameters of config.json, for one kind of layer."""

TOKENIZER_CONFIG = Keys(
    "tokenizer_class do_lower_case strip_accents tokenize_chinese_chars model_max_length max_len model_input_names"
    " added_tokens_decoder additional_special_tokens extra_special_tokens model_specific_special_tokens",
    {
        "auto_map": (None,),
        "chat_template": (None,),
        "init_inputs": ([], ()),
        "split_special_tokens": (False,),
        "truncation_side": ("right",),
    },
    {
        "they are about padding, and here a text has none": "padding_side pad_to_multiple_of pad_token_type_id",
        "the library keeps them, and cuts at model_max_length all the same": "max_length stride truncation_strategy",
        "they are about making text of tokens": (
            "clean_up_tokenization_spaces clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
        ),
        "they are about chats": "response_template response_schema chat_control_tokens",
        "they say which program wrote the file, or where it was": (
            "name_or_path special_tokens_map_file tokenizer_file vocab_file backend is_local local_files_only"
            " processor_class transformers_version files_loaded verbose use_fast device_map slow_tokenizer_class"
        ),
        "transformers 5 does not read them for BERT": "do_basic_tokenize never_split add_bos_token add_eos_token",
    },
)
"""The keys of tokenizer_config.json. A key that ends in "_token" is read as well: it names a special token."""

TRANSFORMER = Keys(
    "max_seq_length do_lower_case",
    {
        "transformer_task": ("feature-extraction",),
        "module_output_name": ("token_embeddings", None),
        "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, None),
        "processing_kwargs": ({}, None),
        "tokenizer_name_or_path": (None,),
        **dict.fromkeys(
            (f"{part}_{kind}" for part in ("model", "tokenizer", "processor", "config") for kind in ("args", "kwargs")),
            ({}, None),
        ),
    },
    {
        "they are about padding, and here a text has none": "unpad_inputs",
        "encode does not read them, only encode_query and encode_document do": (
            "query_length document_length query_expansion"
        ),
    },
)
"""The keys of sentence_bert_config.json, or of the same file under an older name."""

TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""The names of that file. The first one that exists is read."""

SENTENCE_TRANSFORMERS = Keys(
    "model_type prompts default_prompt_name truncate_dim",
    {},
    {
        "they say which program wrote the file": "__version__ requirements",
        "it says how vectors are compared": "similarity_fn_name",
    },
)
"""The keys of config_sentence_transformers.json."""

MODULE = Keys("type path", {"kwargs": ([], None)}, {"they are names and places in a list": "idx name"})
"""The keys of a module in modules.json."""

_BEFORE_5 = ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"]
POOLING_FLAGS = {f"pooling_mode_{name}": name for name in _BEFORE_5}
MODULES = {
    "Pooling": Keys(
        " ".join(["pooling_mode", *POOLING_FLAGS]),
        {},
        {
            "it is about prompts, and texts have none here": "include_prompt",
            "the weights have it": "word_embedding_dimension embedding_dimension",
        },
    ),
    "Normalize": Keys(
        "",
        {"module_input_name": ("sentence_embedding",), "module_output_name": ("sentence_embedding", None)},
        {},
    ),
    "Dense": Keys(
        "in_features out_features bias activation_function",
        {
            "module_input_name": ("sentence_embedding",),
            "module_output_name": ("sentence_embedding", None),
            "use_residual": (False,),
        },
        {},
    ),
    "Dropout": Keys("", {}, {"it acts in training alone": "dropout"}),
}
"""The keys of the config.json of each module that may follow the encoder."""


class NotInKernels(ModelError):
    """The folder is sound, but our kernels cannot compute its encoder. PyTorch may.

    Attributes
    ----------
    reason : str
        The part that our kernels cannot compute.

    """

    def __init__(self, name: str, what: str, known: str) -> None:
        self.reason = f"{what}, and {known} known to our kernels"
        super().__init__(f"{name} is not computed by our kernels: {self.reason}")


def refused(name: str, what: str, known: str) -> ModelError:
    """Return the error for a sound folder with a part that cannot be computed here."""
    return ModelError(f"{name} cannot be computed: {what}, and {known} known here")


def read_json(path: Path, name: str) -> Any:
    """Return the content of a JSON file, or None if there is no such file. Raises ModelError if it is not JSON."""
    try:
        return json.loads(read_file(path, _MOST_BYTES))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{name}: {path.name} is no JSON ({str(error)[:100]}): download or save the folder again"
        ) from error


def read_keys(path: Path, keys: Keys, name: str) -> Json:
    """Return the content of a JSON file after `check_keys`, or an empty dict if there is no such file."""
    about = read_json(path, name)
    return {} if about is None else check_keys(about, keys, path.name, name)


def check_keys(about: Any, keys: Keys, file: str, name: str, names_tokens: bool = False) -> Json:
    """Raise ModelError for an unknown key, or for a value that would change what is computed.

    Parameters
    ----------
    about : Any
        The content of the file.
    keys : Keys
        The known keys of the file.
    file, name : str
        The names of the file and the folder in messages.
    names_tokens : bool
        Whether every key that ends in "_token" counts as known.

    """
    if not isinstance(about, dict):
        raise ModelError(f"{name}: {file} is no JSON object: download or save the folder again")
    known = {*keys.read.split(), *keys.only, *" ".join(keys.unused.values()).split()}
    for key, value in about.items():
        if key not in known and not (names_tokens and key.endswith("_token")):
            raise ModelError(
                f"{name} cannot be computed: {file} has the key {key!r:.60}, and what it does is not known here. Take "
                "it out if the model does not need it"
            )
        if key in keys.only and value not in keys.only[key]:
            raise refused(name, f"in {file} {key} is {value!r:.80}", f"only {keys.only[key][0]!r} is")
    return about
