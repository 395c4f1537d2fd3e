"""Tiny random models of every family, with weights large enough that attention is far from uniform."""

from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY = 97
HIDDEN, HEADS, INNER = 24, 3, 37
BERT = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
BART = {
    "d_model": HIDDEN,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "max_position_embeddings": 64,
    "init_std": 0.3,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
DISTIL = {"dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "hidden_dim": INNER, "initializer_range": 0.3}
T5 = {"d_model": HIDDEN, "d_kv": 5, "d_ff": INNER, "num_layers": 2, "num_heads": HEADS, "decoder_start_token_id": 0}
GPT2 = {"n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "n_positions": 64, "initializer_range": 0.3}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
LLAMA = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": INNER,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "minilm": ("BertModel", BERT),
    "roberta": ("RobertaForMaskedLM", BERT | {"pad_token_id": 1}),
    "xlm-r": ("XLMRobertaForMaskedLM", BERT | {"pad_token_id": 1}),
    "camembert": ("CamembertForMaskedLM", BERT | {"pad_token_id": 1}),
    "electra": ("ElectraForMaskedLM", BERT | {"embedding_size": HIDDEN}),
    "distilbert": ("DistilBertForMaskedLM", DISTIL),
    "bart": ("BartForConditionalGeneration", BART),
    "mbart": ("MBartForConditionalGeneration", BART),
    "marian": ("MarianMTModel", BART),
    "t5": ("T5ForConditionalGeneration", T5),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA | {"sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", LLAMA),
    "smollm3": ("SmolLM3ForCausalLM", LLAMA | {"no_rope_layers": [1, 0]}),
}
ROTARY = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
KINDS = ("bert", "t5", "gpt2", "qwen3")
"""One family of each kind: encoder, encoder-decoder, one projection for all, rotary keys with a norm."""
GENERATING = ("t5", "gpt2", "mistral")


def tiny(family: str, **options: Any) -> Any:
    name, settings = FAMILIES[family]
    torch.manual_seed(1)
    kind = getattr(transformers, options.pop("kind", name))
    return kind(kind.config_class(vocab_size=VOCABULARY, **(settings | options))).eval()


def inputs(model: Any, seed: int, *, batch: int = 5, decoder: bool = True) -> dict[str, Tensor]:
    """Texts of various lengths: padded on the right, or on the left for a model that goes on from the end."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (batch, 13), generator=generator)
    lengths = torch.tensor([13, 4, 9, 1, 13])[:batch]
    mask = (torch.arange(13) < lengths.unsqueeze(1)).long()
    if not model.config.is_encoder_decoder and model.can_generate():
        mask = mask.flip(1)
    found = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder and decoder:
        found["decoder_input_ids"] = torch.randint(5, VOCABULARY, (batch, 7), generator=generator)
    return found


def calibration(model: Any, count: int = 4) -> list[dict[str, Tensor]]:
    return [inputs(model, seed) for seed in range(100, 100 + count)]


@torch.no_grad()
def outputs(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Logits, or the last hidden states, of real positions."""
    found = model(**batch)
    result = found.last_hidden_state if "last_hidden_state" in found else found.logits
    return result.flatten(0, 1) if "decoder_input_ids" in batch else result[batch["attention_mask"].bool()]


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the largest entry."""
    return ((a - b).abs().max() / a.abs().max()).item()


WORDS = [f"word{number}" for number in range(5, VOCABULARY)]


def word_tokenizer() -> Any:
    """A tokenizer of the words word5 … word96 for the tiny models."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    known = {word: index for index, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **names)


def word_texts(count: int, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 12, (count,), generator=generator)
    draws = [torch.randint(len(WORDS), (int(length),), generator=generator) for length in lengths]
    return [" ".join(WORDS[index] for index in draw.tolist()) for draw in draws]
