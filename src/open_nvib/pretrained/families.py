"""Attentions of transformers that can be converted: their projections, by the name of their class."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

Parts = tuple[str, ...]

SECTIONS = ("encoder", "cross", "decoder")

BERT_LIKE = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra")
BART_LIKE = ("Bart", "MBart", "Marian")
T5_LIKE = ("T5", "MT5")
ROTARY = ("LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention", "SmolLM3Attention")
"""Attentions whose keys are rotated by their positions: τ_σ is 0."""

PROJECTIONS: dict[str, dict[str, Parts]] = {
    **{f"{name}SelfAttention": {"key": ("key",), "value": ("value",)} for name in BERT_LIKE},
    **{f"{name}CrossAttention": {"key": ("key",), "value": ("value",)} for name in BERT_LIKE},
    "DistilBertSelfAttention": {"k_lin": ("key",), "v_lin": ("value",)},
    **{f"{name}Attention": {"k_proj": ("key",), "v_proj": ("value",)} for name in BART_LIKE},
    **{f"{name}Attention": {"k": ("key",), "v": ("value",)} for name in T5_LIKE},
    "GPT2Attention": {"c_attn": ("query", "key", "value")},
    **{name: {"q_proj": ("query",), "k_proj": ("key",), "v_proj": ("value",)} for name in ROTARY},
}
"""The projections of each attention, and what each projection computes."""

FAMILIES = (
    "BERT (also MiniLM), RoBERTa, XLM-R, CamemBERT, ELECTRA, DistilBERT, BART, mBART, Marian, T5, mT5, GPT-2, Llama "
    "(also SmolLM), Mistral, Qwen 2 and 3"
)
HEAD_SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim")
CROSS_NAMES = ("encoder_attn", "EncDecAttention", "crossattention", "crossattention.self")
POSITIONS_AFTER_PADDING = ("camembert", "roberta", "xlm-roberta")
"""Model types whose first position is the one after the id of padding."""


def find_attentions(model: nn.Module) -> list[tuple[str, Any, str]]:
    """Find the attentions that can be converted: name, module and section of each."""
    found = []
    for name, module in model.named_modules():
        if type(module).__name__ in PROJECTIONS:
            cross = "Cross" in type(module).__name__ or name.endswith(CROSS_NAMES)
            causal = bool(getattr(module, "is_causal", False))
            found.append((name, module, "cross" if cross else "decoder" if causal else "encoder"))
    if not found:
        raise ValueError(f"convert: model is a {type(model).__name__}, expected one of the families {FAMILIES}.")
    return found


def check_family(model: PreTrainedModel) -> None:
    """Refuse a model that is made of several, such as EncoderDecoderModel: each has a config of its own."""
    for name, part in model.named_modules():
        if isinstance(part, PreTrainedModel) and type(part.config) is not type(model.config):
            raise ValueError(
                f"convert: model is a {type(model).__name__}, made of several models ({name} is a "
                f"{type(part).__name__}), expected one of the families {FAMILIES}. Convert model.{name}."
            )


def longest_input(config: Any) -> int | None:
    """Return the largest number of tokens that a model takes; None if it has no bound, as T5."""
    positions = getattr(config, "max_position_embeddings", None)
    unused = config.pad_token_id + 1 if config.model_type in POSITIONS_AFTER_PADDING else 0
    return None if positions is None else positions - unused
