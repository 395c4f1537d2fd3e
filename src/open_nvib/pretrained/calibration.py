"""Measure the priors of a converted model's attentions on inputs, or on texts that are tokenised for it."""

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from open_nvib._checks import check
from open_nvib.pretrained.attention import nvibs, real_tokens
from open_nvib.pretrained.families import longest_input
from open_nvib.pretrained.identity import MIN_TAU_UNIT, Moments

Batches = Iterable[dict[str, Any]] | Iterable[str]

MIN_TOKENS = 100
"""Fewest tokens to calibrate on: with fewer, σ^p is noise."""

TAU_ALPHA_OFF = 10.0
"""The τ_α at which the prior's component has at most PRIOR_WEIGHT_OFF of the weight of any query of the calibration."""
PRIOR_WEIGHT_OFF = 1e-5

IGNORED = -100
"""Label of positions without a loss, as in transformers."""

DECODER_INPUTS = {"decoder_input_ids", "decoder_inputs_embeds", "labels"}
MAX_NEW_TOKENS = 64
"""Tokens that a decoder generates for each text of a calibration without decoder inputs."""


@torch.no_grad()
def calibrate(model: PreTrainedModel, batches: Sequence[dict[str, Any]]) -> None:
    """Measure the prior of each attention, then its largest odds against the tokens, which set the unit of τ_α.

    The dials must be off: τ_α infinite and τ_σ 0.
    """
    found = nvibs(model)
    moments = {name: Moments(d=nvib.d) for name, nvib in found}
    for batch in batches:
        model(**batch)
        for name, nvib in found:
            if nvib.seen is not None:
                x, mask = nvib.seen
                moments[name].add(x[real_tokens(x, mask)])
                nvib.forget()
    idle, fewest = [name for name, each in moments.items() if not each.count], min(x.count for x in moments.values())
    if idle and len(idle) < len(moments):
        raise ValueError(f"convert: {idle[0]} takes no part in these inputs. Leave its section out of where.")
    if fewest < MIN_TOKENS:
        raise ValueError(f"convert: calibration has {fewest} tokens, expected at least {MIN_TOKENS}. Give more texts.")
    if any(not each.varies for each in moments.values()):
        raise ValueError("convert: calibration has the same text again and again, expected different ones.")
    for name, nvib in found:
        nvib.set_prior(moments[name].prior(), tau_unit=0.0)
        nvib.largest_odds = torch.tensor(-torch.inf, device=nvib.prior_mu.device)
    for batch in batches:
        model(**batch)
    for name, nvib in found:
        assert nvib.largest_odds is not None
        floor = (nvib.largest_odds.item() - math.log(PRIOR_WEIGHT_OFF)) / TAU_ALPHA_OFF
        nvib.set_prior(moments[name].prior(), tau_unit=max(MIN_TAU_UNIT, floor))
        nvib.largest_odds = None
        nvib.forget()


def prepare_batches(
    model: PreTrainedModel, calibration: Batches, tokenizer: PreTrainedTokenizerBase | None, size: int
) -> list[dict[str, Any]]:
    """Make inputs of the model on its device; texts are tokenised, and missing decoder inputs are generated."""
    items: list[Any] = list(calibration)
    if not all(isinstance(item, Mapping) for item in items):
        for item in items:
            check("convert", calibration_item=(item, str, "Give texts, or dictionaries of tensors."))
        if tokenizer is None:
            raise ValueError("convert: calibration has texts, expected model inputs, or a tokenizer for the texts.")
        items = [encode_texts(model, tokenizer, items[first : first + size]) for first in range(0, len(items), size)]
    batches = []
    for item in items:
        inputs = {name: x.to(model.device) if isinstance(x, Tensor) else x for name, x in item.items()}
        _check_ids(model, inputs.get("input_ids"))
        if model.config.is_encoder_decoder and not DECODER_INPUTS & set(inputs):
            inputs |= _decoder_inputs(model, inputs)
        batches.append(with_decoder_mask(model, inputs))
    return batches


def with_decoder_mask(model: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
    """Mask the decoder's padding, where labels end with -100, if no mask is given: the KL counts real tokens."""
    labels = inputs.get("labels")
    unneeded = not model.config.is_encoder_decoder or "decoder_attention_mask" in inputs
    if unneeded or not isinstance(labels, Tensor) or labels.dim() != 2:
        return inputs
    real = (labels != IGNORED).flip(1).cumsum(1).flip(1) > 0
    real[:, 0] = True  # no text is empty
    return inputs | {"decoder_attention_mask": real.long()}


def encode_texts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> dict[str, Any]:
    """Tokenise texts to inputs of a model, padded and cut to its length."""
    longest = longest_input(model.config)
    longest = None if longest is None else min(longest, tokenizer.model_max_length)
    if tokenizer.pad_token_id is None:  # GPT-2 has none; padding is masked
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    return dict(tokenizer(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt"))


def _check_ids(model: PreTrainedModel, ids: Tensor | None) -> None:
    if ids is None:
        return
    check("convert", input_ids=(ids, "int batch n"))
    if (size := getattr(model.config, "vocab_size", None)) is not None and (largest := int(ids.max())) >= size:
        raise ValueError(f"convert: input_ids has the token {largest}, expected below {size}, the model's vocabulary.")


def _decoder_inputs(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    if not model.can_generate():
        mask = {} if "attention_mask" not in inputs else {"decoder_attention_mask": inputs["attention_mask"]}
        return {"decoder_input_ids": inputs["input_ids"], **mask}
    ids = generate_greedily(model, inputs, MAX_NEW_TOKENS)
    real = torch.ones_like(ids, dtype=torch.bool)
    if (pad := model.generation_config.pad_token_id) is not None:
        real[:, 1:] = ids[:, 1:] != pad  # the start is the padding's token in some models
    return {"decoder_input_ids": ids, "decoder_attention_mask": real.long()}


def generate_greedily(model: Any, inputs: dict[str, Any], most: int) -> Tensor:
    """Generate at most `most` tokens, and no more than the model has positions."""
    most = min(most, (longest_input(model.config) or most + 1) - 1)
    return model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=most, max_length=None)
