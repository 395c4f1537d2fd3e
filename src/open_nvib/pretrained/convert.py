"""Convert a pretrained model: install an NVIB in its attentions, measure the priors, keep both in its config."""

import copy
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from open_nvib._tensors import check
from open_nvib.pretrained.attention import NAME, AttentionNVIB, Projection, nvibs, real_tokens
from open_nvib.pretrained.families import PROJECTIONS, SECTIONS, check_family, find_attentions, longest_input
from open_nvib.pretrained.identity import MIN_TAU_UNIT, Moments
from open_nvib.pretrained.measures import find_nvibs, kept, layer_kl, nvib_kl, with_decoder_mask
from open_nvib.store.files import InputError, in_one_line
from open_nvib.text.opening import open_saved, open_weights

Batches = Iterable[dict[str, Any]] | Iterable[str]

MIN_TOKENS = 100
"""Fewest tokens to calibrate on: with fewer, σ^p is noise."""

TAU_ALPHA_OFF = 10.0
"""The τ_α at which the prior's component has at most PRIOR_WEIGHT_OFF of the weight of any query of the calibration."""
PRIOR_WEIGHT_OFF = 1e-5

DECODER_INPUTS = {"decoder_input_ids", "decoder_inputs_embeds", "labels"}
MAX_NEW_TOKENS = 64
"""Tokens that a decoder generates for each text of a calibration without decoder inputs."""


class NVIBConfig(QuantizationConfigMixin):
    """The conversion, as `quantization_config` of the model's config: the way of transformers to change a model before
    its weights are loaded.

    Args:
        sections: τ_α, τ_σ and Δ of each converted section: "encoder", "cross", "decoder".
    """

    def __init__(self, sections: dict[str, dict[str, Any]], quant_method: str = NAME) -> None:
        self.quant_method: Any = quant_method
        self.sections = {
            name: {tau: float(value) for tau, value in values.items()} for name, values in sections.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Convert to what JSON can hold: infinity becomes "inf"."""
        sections = {
            name: {tau: "inf" if value == math.inf else value for tau, value in values.items()}
            for name, values in self.sections.items()
        }
        return {"quant_method": self.quant_method, "sections": sections}


class NVIBLoader(HfQuantizer):
    """Converts a model that `from_pretrained` has built, before it loads the weights."""

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        config: Any = self.quantization_config
        install(model, config)
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        del model.hf_quantizer, model.is_quantized, model.quantization_method  # its weights are ordinary ones
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                module.config._is_quantized = False
        return model

    def is_serializable(self) -> Any:
        return True

    @property
    def is_trainable(self) -> Any:
        return True


def open_model(path: str | Path) -> tuple[Any, Any]:
    """Open a model, with the class that its config names, and its tokenizer, from a folder or the hub.

    No code that comes with the model is run. A model without all of its weights is an InputError: transformers would
    draw the missing ones at random.
    """
    try:
        config = open_saved(AutoConfig, path)
        name = next(iter(config.architectures or [None]))
        kind = getattr(transformers, name, None) if isinstance(name, str) else None
        if not isinstance(kind, type) or not issubclass(kind, PreTrainedModel):
            raise ValueError(f"its config names the class {name!r}, expected a model of transformers")
        if type(config) is not kind.config_class:
            raise ValueError(f"its config is a {type(config).__name__} and names the class {name!r} of another family")
        model, tokenizer = open_weights(kind, path), open_saved(AutoTokenizer, path)
        if len(tokenizer) <= len(tokenizer.all_special_ids):
            raise ValueError("it has no tokenizer, expected one beside the model")
        return model, tokenizer
    except Exception as error:  # transformers, safetensors and tokenizers each raise their own
        raise InputError(f"{path}: cannot be opened as a model with its tokenizer ({in_one_line(error)}).") from error


def convert(
    model: PreTrainedModel,
    calibration: Batches,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    where: Sequence[str] = SECTIONS,
    tau_alpha: float = TAU_ALPHA_OFF,
    tau_sigma: float = 0.0,
    delta: float = 1.0,
    batch_size: int = 16,
) -> Any:
    """Return a copy of a model whose attentions are denoising attention over Dirichlet processes.

    With τ_σ = 0 it computes what the model computes: up to rounding if τ_α is infinite, and within about
    PRIOR_WEIGHT_OFF if it is 10. `model.set_tau` turns the dials afterwards.

    Args:
        model: a model of transformers, such as `AutoModel.from_pretrained` returns.
        calibration: inputs of the model (dictionaries of tensors), or texts if a tokenizer is given. The prior of each
            attention is measured on them. An encoder-decoder without decoder inputs generates them.
        tokenizer: the tokenizer of the model.
        where: sections to convert, of "encoder", "cross" and "decoder"; one that the model does not have is left out.
        tau_alpha: τ_α, from about 0 (the prior's component counts as much as a token) to 10 (it is off) and infinity.
        tau_sigma: τ_σ, the noise of each token relative to the prior's.
        delta: Δ, the pseudo-count that the prior expects of each token, for the KL.
        batch_size: number of texts in a batch, if texts are given.
    """
    check("convert", model=(model, PreTrainedModel), calibration=(calibration, Iterable), batch_size=(batch_size, int))
    kind = type(model).__name__
    if nvibs(model):
        raise ValueError(f"convert: model is a converted {kind}, expected one that is not. Use set_tau.")
    if getattr(model.config, "quantization_config", None) is not None:
        raise ValueError(f"convert: model is a quantised {kind}, expected one with ordinary weights.")
    if isinstance(calibration, (str, Mapping)):
        raise ValueError("convert: calibration is one text or one batch, expected a list of texts or of batches.")
    check_family(model)
    chosen = _check_where("convert", where, SECTIONS)
    has = {section for _, _, section in find_attentions(model)}
    if not (found := [section for section in chosen if section in has]):
        has = ", ".join(section for section in SECTIONS if section in has)
        raise ValueError(f"convert: where is {tuple(where)}, but {kind} has {has} alone.")
    converted = copy.deepcopy(model).eval()
    dials = {"tau_alpha": tau_alpha, "tau_sigma": tau_sigma, "delta": delta}
    install(converted, NVIBConfig(dict.fromkeys(found, dials)))  # refuses dials that are wrong
    set_tau(converted, alpha=math.inf, sigma=0.0)
    calibrate(converted, prepare_batches(converted, calibration, tokenizer, batch_size))
    set_tau(converted, alpha=tau_alpha, sigma=tau_sigma)
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in converted.named_modules():
        module.training = modes.get(name, modes.get(name.partition(".nvib")[0], module.training))
    return converted


def _check_where(function: str, where: Sequence[str], available: Collection[str]) -> list[str]:
    """Return the chosen sections in their order, or raise a ValueError."""
    if isinstance(where, str) or not where or set(where) - set(available):
        raise ValueError(f"{function}: where is {where!r}, expected a tuple with some of {', '.join(available)}.")
    return [section for section in SECTIONS if section in where]


def install(model: PreTrainedModel, config: NVIBConfig) -> None:
    """Replace the projections of the attentions of a model in place, and keep the conversion in its config."""
    for path, attention, section in find_attentions(model):
        if section not in config.sections:
            continue
        projections = PROJECTIONS[type(attention).__name__]
        if section == "cross" and "c_attn" in projections:
            projections = {"c_attn": ("key", "value")}
        for name, parts in projections.items():
            _check_plain(f"{path}.{name}", getattr(attention, name))
            setattr(attention, name, Projection(getattr(attention, name), attention, parts))
        attention.nvib = nvib = AttentionNVIB(attention, section).train(attention.training)
        if "c_attn" in projections:
            size = nvib.heads * nvib.head_size
            wide = size + nvib.head_size
            attention.split_size = [wide, wide] if section == "cross" else [size, wide, wide]
    model.config.quantization_config = config  # pyright: ignore[reportAttributeAccessIssue]
    model.set_attn_implementation(NAME)
    for section, taus in config.sections.items():
        dials = {name.removeprefix("tau_"): value for name, value in taus.items()}
        set_tau(model, **dials, where=(section,))
    model.register_forward_pre_hook(_refuse_attention_maps, with_kwargs=True)
    for function in (nvib_kl, layer_kl, kept, set_tau):
        setattr(model, function.__name__, partial(function, model))


def _refuse_attention_maps(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse output_attentions, for which transformers would return None."""
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions is True, but a converted model has no attention maps. Leave it out.")


def _check_plain(name: str, projection: Any) -> None:
    """Refuse a projection that computes more than its weight and bias say."""
    hooks = projection._forward_hooks or projection._forward_pre_hooks
    if type(projection) not in (nn.Linear, Conv1D) or hooks:
        got = f"is a {type(projection).__name__}{' with hooks' if hooks else ''}"
        raise ValueError(f"convert: {name} {got}, expected a plain linear layer. Merge adapters into it first.")


def set_tau(
    model: PreTrainedModel,
    *,
    alpha: float | None = None,
    sigma: float | None = None,
    delta: float | None = None,
    where: Sequence[str] | None = None,
) -> None:
    """Change τ_α, τ_σ or Δ of a converted model, in some sections or in all; what is not given stays."""
    find_nvibs("set_tau", model)
    config: Any = model.config.quantization_config  # pyright: ignore[reportAttributeAccessIssue]
    sections = list(config.sections) if where is None else _check_where("set_tau", where, config.sections)
    for _, nvib in nvibs(model):
        if nvib.section in sections:
            nvib.set_tau(alpha=alpha, sigma=sigma, delta=delta)
    given = {"tau_alpha": alpha, "tau_sigma": sigma, "delta": delta}
    for section in sections:
        config.sections[section] |= {name: float(value) for name, value in given.items() if value is not None}


# Calibration


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


register_quantization_config(NAME)(NVIBConfig)
register_quantizer(NAME)(NVIBLoader)
