"""A tiny random classifier of every architecture for texts that this version of transformers can build small."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from potstill.models.loading import quiet_transformers
from potstill.system.randomness import seeded

LAYERS, WIDTH, HEADS, VOCABULARY, PADDING = 4, 32, 4, 60, 0
MOST = 3_000_000  # parameters of a model that is still small
SHAPE = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": HEADS, "vocab_size": VOCABULARY}
WHERE_THERE = {  # set where the config has such a field
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_layers", "n_layers", "n_layer", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("embedding_size", "d_model", "emb_dim", "word_embed_proj_dim", "dim"), WIDTH),
    **dict.fromkeys(("num_key_value_heads", "num_heads", "n_heads", "n_head"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim", "d_ff", "d_inner", "n_inner"), 2 * WIDTH),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 2 * WIDTH),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_window", "block_size"), WIDTH // HEADS),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "type_vocab_size"), 2),
    "num_experts_per_tok": 1,
    "moe_intermediate_size": WIDTH,
    "initializer_range": 0.1,  # wide enough that texts get different logits without training
    "pad_token_id": PADDING,
    "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
ELSE: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 4},
    "longformer": {"attention_window": [4, 8, 8, 4]},
}
NOT_SET = {"falcon": ("head_dim",), "xlnet": ("max_position_embeddings",), "gptj": ("head_dim",)}


@cache
def encoders() -> dict[str, PreTrainedModel | str]:
    """By type of model: a classifier of three classes that answers ids and a mask, or why there is none."""
    found: dict[str, PreTrainedModel | str] = {}
    for kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        try:
            with quiet_transformers():
                found[kind] = _tiny(kind)
        except Exception as error:  # each architecture has reasons of its own to refuse a shape
            found[kind] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return found


def built() -> dict[str, PreTrainedModel]:
    return {kind: model for kind, model in encoders().items() if isinstance(model, PreTrainedModel)}


def texts(rows: int = 3, length: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def asked(model: PreTrainedModel, ids: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        said: torch.Tensor = model(
            input_ids=ids, attention_mask=torch.ones_like(ids) if real is None else real.long()
        ).logits
    return said


def _tiny(kind: str) -> PreTrainedModel:
    made = CONFIG_MAPPING[kind]
    usual, names = made(), made.attribute_map
    left = NOT_SET.get(kind, ())
    there = {name: value for name, value in WHERE_THERE.items() if hasattr(usual, names.get(name, name))}
    fields = {names.get(name, name): value for name, value in {**SHAPE, **there}.items() if name not in left}
    config = made(**{**fields, "num_labels": 3, **ELSE.get(kind, {})})
    with torch.device("meta"):
        size = sum(one.numel() for one in AutoModelForSequenceClassification.from_config(config).parameters())
    if size > MOST:
        raise ValueError(f"{size} parameters")
    with seeded(0):
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config).eval()
    model.config.architectures = [type(model).__name__]
    if asked(model, texts()).shape != (3, 3):
        raise ValueError("other outputs than one for each class")
    return model
