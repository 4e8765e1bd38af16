"""Configurations of transformers models, shrunk by the meaning of their attributes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LAYERS, HIDDEN, INTERMEDIATE, HEADS, VOCABULARY, EXPERTS, HEAD_DIM = 2, 64, 128, 4, 1000, 4, 16

LAYER_NAMES = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
    "num_decoder_layers", "num_encoder_layers", "decoder_num_hidden_layers", "encoder_num_hidden_layers",
    "predictor_num_hidden_layers", "num_blocks", "depth",
)  # fmt: skip
HIDDEN_NAMES = (
    "hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "word_embed_proj_dim",
    "emb_dim", "decoder_hidden_size", "projection_dim", "projection_size", "predictor_hidden_size",
    "text_dim", "proj_dim",
)  # fmt: skip
INTERMEDIATE_NAMES = (
    "intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner",
    "ffn_hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp",
    "decoder_intermediate_size", "dim_feedforward",
)  # fmt: skip
HEAD_NAMES = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
    "decoder_attention_heads", "decoder_num_attention_heads", "predictor_num_attention_heads",
)  # fmt: skip
KEY_VALUE_NAMES = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
HEAD_DIM_NAMES = (
    "head_dim", "d_kv", "d_head", "attention_head_dim", "kv_channels", "qk_rope_head_dim", "qk_nope_head_dim",
    "v_head_dim", "rotary_dim",
)  # fmt: skip
RANK_NAMES = ("q_lora_rank", "kv_lora_rank")
EXPERT_NAMES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN_NAMES = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
GROUP_NAMES = ("n_group", "topk_group")
PICTURES = 64


@dataclass(frozen=True, slots=True)
class Level:
    """How far a configuration is shrunk, and how a note puts it."""

    layers: bool
    widths: bool
    note: str


#: From the smallest to the full model: not every architecture survives every change.
LEVELS = (
    Level(layers=True, widths=True, note=", shrunk to few narrow layers"),
    Level(layers=True, widths=False, note=", shrunk to few layers"),
    Level(layers=False, widths=False, note=""),
)


def prepared(config: Any, level: Level) -> Any:
    """Return the configuration, changed in place: nothing pretrained, no cache, shrunk as asked."""
    for part in parts(config):
        for name in ("use_pretrained_backbone", "use_cache"):
            if name in vars(part):
                setattr(part, name, False)
        begins = getattr(part, "decoder_start_token_id", None)
        if getattr(part, "is_encoder_decoder", False) and begins is None:
            part.decoder_start_token_id = getattr(part, "pad_token_id", None) or 0  # as T5 was trained
        if level.layers:
            _shrink_layers(part)
            _shrink_vocabulary(part)
        if level.widths:
            _shrink_widths(part)
            _shrink_pictures(part)
    return config


def parts(config: Any) -> Iterator[Any]:
    """Yield a configuration and those inside it."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from parts(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _limit(config: Any, names: tuple[str, ...], most: int) -> None:
    for name in names:
        if _whole(vars(config).get(name)):
            setattr(config, name, min(vars(config)[name], most))


def _shrink_layers(config: Any) -> None:
    kinds = vars(config).get("layer_types")
    before = next((vars(config)[n] for n in LAYER_NAMES if _whole(vars(config).get(n))), 0)
    distinct = list(dict.fromkeys(kinds)) if isinstance(kinds, list) else []
    layers = max(LAYERS, len(distinct))
    _limit(config, LAYER_NAMES, layers)
    if isinstance(kinds, list):
        config.layer_types = distinct if len(distinct) == layers else kinds[:layers]
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and name != "layer_types" and before > layers and len(value) == before:
            setattr(config, name, value[:layers])
    for name in ("depths", "encoder_depths", "decoder_depths"):
        depths = vars(config).get(name)
        if isinstance(depths, list | tuple):
            setattr(config, name, type(depths)(min(d, LAYERS) if _whole(d) else d for d in depths))


def _shrink_vocabulary(config: Any) -> None:
    if not _whole(vars(config).get("vocab_size")) or config.vocab_size <= VOCABULARY:
        return
    config.vocab_size = VOCABULARY
    _limit(config, ("decoder_vocab_size",), VOCABULARY)
    free = VOCABULARY - 1
    for name, value in list(vars(config).items()):
        if not name.endswith(("_token_id", "_token_index", "_token_ids")) or value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if any(_whole(i) and i >= VOCABULARY for i in ids):  # special tokens stay apart from each other
            setattr(config, name, [free] if isinstance(value, list) else free)
            free -= 1


def _shrink_widths(config: Any) -> None:
    heads = next((vars(config)[n] for n in HEAD_NAMES if _whole(vars(config).get(n))), HEADS)
    if not any(isinstance(vars(config).get(name), list | tuple) for name in HEAD_NAMES):
        _limit(config, HIDDEN_NAMES, HIDDEN)  # else a pyramid, whose widths follow from one another
    _limit(config, INTERMEDIATE_NAMES, INTERMEDIATE)
    _limit(config, HEAD_NAMES, HEADS)
    _limit(config, HEAD_DIM_NAMES, HEAD_DIM)
    _limit(config, EXPERT_NAMES, EXPERTS)
    _limit(config, CHOSEN_NAMES, 2)
    _limit(config, GROUP_NAMES, 1)
    _limit(config, RANK_NAMES, HIDDEN // 2)
    for name in KEY_VALUE_NAMES:
        if _whole(vars(config).get(name)):
            setattr(config, name, HEADS if vars(config)[name] >= heads else min(vars(config)[name], 2))
    rope = vars(config).get("rope_parameters")
    # these split half a head by time, height and width
    multimodal = "_vl" in getattr(config, "model_type", "")
    if isinstance(rope, dict) and (multimodal or "mrope_section" in rope):
        rope["mrope_section"] = [2, 3, 3]
    if "qk_head_dim" in vars(config):
        config.qk_head_dim = config.qk_rope_head_dim + config.qk_nope_head_dim
    if {"expand", "num_heads", "head_dim"} <= vars(config).keys():  # state-space models
        config.num_heads = config.expand * config.hidden_size // config.head_dim
    if isinstance(vars(config).get("conv_dim"), list | tuple):  # the feature encoders of speech models
        config.conv_dim = type(config.conv_dim)(32 for _ in config.conv_dim)


def _shrink_pictures(config: Any) -> None:
    size, patch = vars(config).get("image_size"), vars(config).get("patch_size")
    if "window_size" in vars(config):
        return  # windows have to divide the picture at every stage
    if _whole(size) and _whole(patch):
        config.image_size = min(size, patch * max(2, PICTURES // patch))
    elif _whole(size):
        config.image_size = min(size, PICTURES)
