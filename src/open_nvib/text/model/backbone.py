"""The encoder and the decoder of a pretrained T5, BART or Marian around a bottleneck.

Each cross-attention becomes a `DenoisingAttention` with the weights of the pretrained one; all other layers stay those
of transformers. `TextAutoencoder.start_from` takes the weights, with a bottleneck that starts as the identity.

The encoder reads a text with the special tokens that its own tokenizer adds. These get no vectors: the decoder reads
the hidden states of the text's tokens.
"""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, Cache, PreTrainedConfig, PreTrainedModel

from open_nvib.attention import DenoisingAttention, Mixture, Projected
from open_nvib.text.model.bottlenecks import make_bottleneck
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.layers import ReadingLayer, TextDecoder, TextEncoder, make_attention

T5_POSITIONS = 512
"""Longest text of a T5 whose config has no `n_positions`: its pretraining had no longer ones."""


class TokenEmbedding(nn.Module):
    """Tokens to vectors, without positions."""

    def __init__(self, config: TextAutoencoderConfig, scale: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) * self.scale


class PretrainedEncoder(TextEncoder):
    """The encoder of a pretrained model `whole`, which loses its embedding, and a bottleneck."""

    def __init__(self, config: TextAutoencoderConfig, whole: Any) -> None:
        super().__init__()
        kind = decoder_kind(whole.config)
        scaled = getattr(whole.config, "scale_embedding", False)
        self.embedding = TokenEmbedding(config, math.sqrt(whole.config.d_model) if scaled else 1.0)
        self.stack = whole.get_encoder()
        self.stack.set_input_embeddings(None)  # pyright: ignore[reportArgumentType]  # it is given embedded tokens
        self.bottleneck = make_bottleneck(config)
        self.pad: Any = config.pad_token_id
        self.before, self.after = kind.before(whole.config), whole.config.eos_token_id

    def hidden_states(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        first, n = len(self.before), input_ids.shape[1]
        end = mask.sum(-1, keepdim=True) + first  # position of the end of each text
        ids = F.pad(input_ids.masked_fill(~mask, self.pad), (first, 1), value=self.pad).scatter(1, end, self.after)
        ids[:, :first] = ids.new_tensor(self.before)
        seen = torch.arange(n + first + 1, device=ids.device) <= end
        hidden = self.stack(inputs_embeds=self.embedding(ids), attention_mask=seen.long()).last_hidden_state
        return hidden[:, first : first + n]


class T5Layer(ReadingLayer):
    """A T5Block: a norm before each part, and a bias for relative positions that the first layer has for all."""

    def __init__(self, config: TextAutoencoderConfig, block: Any, first: Any) -> None:
        super().__init__()
        self.attention, cross, self.feed_forward = block.layer
        self.norm, self.dropout = cross.layer_norm, cross.dropout
        self.cross_attention = take_over(config, *(getattr(cross.EncDecAttention, name) for name in "qkvo"), scale=1.0)
        self.relative = (first.layer[0].SelfAttention,)  # in a tuple, as it is a part of the first layer alone

    def recall(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        index, new = self.attention.SelfAttention.layer_idx, x.shape[1]
        past = 0 if cache is None else cache.get_seq_length(index)
        bias = self.relative[0].compute_bias(new, past + new, device=x.device, past_seen_tokens=past)
        return self.attention(x, causal_mask(x, past), bias, cache)[0]

    def read(self, x: Tensor, memory: Mixture | Projected) -> Tensor:
        return self.feed_forward(x + self.dropout(self.cross_attention(self.query(x), memory)))

    def query(self, x: Tensor) -> Tensor:
        return self.norm(x)


class BartLayer(ReadingLayer):
    """A decoder layer of BART or Marian: a norm after each part."""

    def __init__(self, config: TextAutoencoderConfig, layer: Any) -> None:
        super().__init__()
        cross = layer.encoder_attn
        projections = (cross.q_proj, cross.k_proj, cross.v_proj, cross.out_proj)
        self.cross_attention = take_over(config, *projections, scale=cross.scaling)
        self.attention, self.widen, self.narrow = layer.self_attn, layer.fc1, layer.fc2
        self.norms = nn.ModuleList([layer.self_attn_layer_norm, layer.encoder_attn_layer_norm, layer.final_layer_norm])
        self.activation, self.dropout = layer.activation_fn, nn.Dropout(layer.dropout)
        self.inner_dropout = nn.Dropout(layer.activation_dropout)

    def recall(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        past = 0 if cache is None else cache.get_seq_length(self.attention.layer_idx)
        attended = self.attention(x, past_key_values=cache, attention_mask=causal_mask(x, past))[0]
        return self.norms[0](x + self.dropout(attended))

    def read(self, x: Tensor, memory: Mixture | Projected) -> Tensor:
        x = self.norms[1](x + self.dropout(self.cross_attention(x, memory)))
        inner = self.inner_dropout(self.activation(self.widen(x)))
        return self.norms[2](x + self.dropout(self.narrow(inner)))


class ScaledNorm(nn.Module):
    """T5's last norm, dropout, and the factor before the output embeddings."""

    def __init__(self, norm: nn.Module, dropout: nn.Module, scale: float) -> None:
        super().__init__()
        self.norm, self.dropout, self.scale = norm, dropout, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x)) * self.scale


class PretrainedDecoder(TextDecoder):
    """The decoder of a pretrained model; the kinds below are built from a configuration and the whole model."""

    sizes: ClassVar[dict[str, str]]  # what `TextAutoencoderConfig` calls a size, and its name in the pretrained config
    dropouts: ClassVar[tuple[str, ...]]  # names of the dropout rates in the pretrained config
    has_begin: ClassVar[bool] = False  # whether the tokenizer puts a special token before each text

    @classmethod
    def before(cls, pretrained: Any) -> list[int]:
        """Return the special tokens that the tokenizer puts before a text; the end follows every text."""
        return [pretrained.bos_token_id] if cls.has_begin else []


class T5Decoder(PretrainedDecoder):
    """The decoder of T5, flan-T5 and mT5."""

    sizes: ClassVar[dict[str, str]] = {
        "d_model": "d_model",
        "heads": "num_heads",
        "encoder_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "ffn_size": "d_ff",
        "max_positions": "n_positions",
    }
    dropouts = ("dropout_rate",)

    def __init__(self, config: TextAutoencoderConfig, whole: PreTrainedModel) -> None:
        stack: Any = whole.get_decoder()
        scale = whole.config.d_model**-0.5 if getattr(whole.config, "scale_decoder_outputs", False) else 1.0
        norm = ScaledNorm(stack.final_layer_norm, stack.dropout, scale)
        super().__init__([T5Layer(config, block, stack.block[0]) for block in stack.block], norm, config.reading)
        self.dropout = nn.Dropout(whole.config.dropout_rate)

    def embed(self, embedding: Any, ids: Tensor, *, first: int = 0) -> Tensor:
        return self.dropout(embedding(ids))  # positions are in the attention


class MarianDecoder(PretrainedDecoder):
    """The decoder of Marian, such as OPUS-MT."""

    sizes: ClassVar[dict[str, str]] = {
        "d_model": "d_model",
        "heads": "decoder_attention_heads",
        "encoder_layers": "encoder_layers",
        "decoder_layers": "decoder_layers",
        "ffn_size": "decoder_ffn_dim",
        "max_positions": "max_position_embeddings",
    }
    dropouts = ("dropout", "attention_dropout", "activation_dropout")
    head_bias = True

    def __init__(self, config: TextAutoencoderConfig, whole: PreTrainedModel) -> None:
        stack: Any = whole.get_decoder()
        super().__init__([BartLayer(config, layer) for layer in stack.layers], nn.Identity(), config.reading)
        self.positions, self.dropout = stack.embed_positions, nn.Dropout(stack.dropout)
        self.embedding_norm = getattr(stack, "layernorm_embedding", nn.Identity())

    def embed(self, embedding: Any, ids: Tensor, *, first: int = 0) -> Tensor:
        where = torch.arange(first, first + ids.shape[1], device=ids.device)
        return self.dropout(self.embedding_norm(embedding(ids) + self.positions(ids, position_ids=where)))


class BartDecoder(MarianDecoder):
    """The decoder of BART."""

    has_begin = True


DECODERS: dict[str, type[T5Decoder | MarianDecoder]] = {
    "t5": T5Decoder,
    "mt5": T5Decoder,
    "marian": MarianDecoder,
    "bart": BartDecoder,
}
"""The kind of decoder of each `model_type` of transformers that can be used."""


def decoder_kind(pretrained: PreTrainedConfig) -> type[T5Decoder | MarianDecoder]:
    """Return the kind of decoder for the config of a pretrained model; a ValueError if there is none."""
    if pretrained.model_type not in DECODERS:
        what = "an encoder-decoder" if pretrained.is_encoder_decoder else "not an encoder-decoder"
        raise ValueError(f"a model of type {pretrained.model_type!r}, {what}, expected one of {', '.join(DECODERS)}")
    if not getattr(pretrained, "share_encoder_decoder_embeddings", True):
        raise ValueError("a model with two vocabularies, expected one for both sides")
    return DECODERS[pretrained.model_type]


def options_of(whole: Any) -> dict[str, Any]:
    """Return the options of `TextAutoencoderConfig` that a pretrained model decides."""
    pretrained = whole.config
    stored = pretrained.to_dict()
    if "scale_decoder_outputs" in stored:  # T5Config computes it from the other entry, and then overwrites that one
        stored["tie_word_embeddings"] = stored.pop("scale_decoder_outputs")
    tokens = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    found = {name: getattr(pretrained, name, None) for name in tokens}
    kind = decoder_kind(pretrained)
    sizes: dict[str, Any] = {ours: getattr(pretrained, name, T5_POSITIONS) for ours, name in kind.sizes.items()}
    sizes["max_positions"] -= len(kind.before(pretrained))
    tied = whole.get_output_embeddings().weight is whole.get_input_embeddings().weight
    return {"pretrained": stored, "tie_word_embeddings": tied, **found, **sizes}


def make_pretrained(config: TextAutoencoderConfig) -> tuple[PretrainedEncoder, PretrainedDecoder]:
    """Build encoder and decoder of the pretrained model that the configuration describes, without its weights."""
    stored: dict[str, Any] = dict(config.pretrained or {})
    pretrained = AutoConfig.for_model(**stored)
    for name in decoder_kind(pretrained).dropouts:
        setattr(pretrained, name, config.dropout)
    whole = AutoModelForSeq2SeqLM.from_config(pretrained)
    return PretrainedEncoder(config, whole), decoder_kind(pretrained)(config, whole)


def take_over(config: TextAutoencoderConfig, *projections: nn.Linear, scale: float) -> DenoisingAttention:
    """Make a denoising attention of the projections of a pretrained one: queries, keys, values and output.

    Its scores have the factor `scale`.
    """
    attention = make_attention(config)
    q, k, v, output = ((linear.weight, linear.bias) for linear in projections)
    attention.copy_projections(q, k, v, output)
    for parameter in attention.to_query.parameters():
        parameter.data.mul_(scale * config.head_size**0.5)
    return attention


@torch.no_grad()
def read_scaled(attention: DenoisingAttention, shift: Tensor, factor: Tensor) -> None:
    """Let attention over z read what it read over x = shift + factor·z."""
    attention.to_output.bias.add_(attention.to_output.weight @ (attention.to_value.weight @ shift))
    for linear in (attention.to_key, attention.to_value):
        linear.weight.mul_(factor)


def causal_mask(x: Tensor, past: int) -> Tensor:
    """Make the mask that is added to scores: a new token sees the tokens of the cache, those before it, and itself."""
    new = x.shape[1]
    hidden = torch.ones(new, past + new, dtype=torch.bool, device=x.device).triu(past + 1)
    return x.new_zeros(1, 1, *hidden.shape).masked_fill(hidden, torch.finfo(x.dtype).min)


def extend_rows(table: Tensor, rows: int) -> Tensor:
    """Add rows to a table of embeddings, drawn from a Gaussian with the mean and the deviation of each dimension."""
    extra = torch.randn(max(0, rows - len(table)), table.shape[1]) * table.std(0) + table.mean(0)
    return torch.cat([table, extra.to(table)])[:rows]
