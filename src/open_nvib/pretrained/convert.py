"""Convert a pretrained model: find its attentions, calibrate their priors, and keep the conversion in its config."""

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from open_nvib._checks import check
from open_nvib.identity import MIN_TAU_UNIT, Moments
from open_nvib.pretrained.attention import NAME, AttentionNVIB, Parts, Projection
from open_nvib.process import KL, KLForm

SECTIONS = ("encoder", "cross", "decoder")

ROTARY = ("LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention", "SmolLM3Attention")
"""Attentions whose keys are rotated by their positions: τ_σ is 0."""

PROJECTIONS: dict[str, dict[str, Parts]] = {
    "BertSelfAttention": {"key": ("key",), "value": ("value",)},
    "BertCrossAttention": {"key": ("key",), "value": ("value",)},
    "RobertaSelfAttention": {"key": ("key",), "value": ("value",)},
    "RobertaCrossAttention": {"key": ("key",), "value": ("value",)},
    "DistilBertSelfAttention": {"k_lin": ("key",), "v_lin": ("value",)},
    "BartAttention": {"k_proj": ("key",), "v_proj": ("value",)},
    "MarianAttention": {"k_proj": ("key",), "v_proj": ("value",)},
    "T5Attention": {"k": ("key",), "v": ("value",)},
    "GPT2Attention": {"c_attn": ("query", "key", "value")},
    **{name: {"q_proj": ("query",), "k_proj": ("key",), "v_proj": ("value",)} for name in ROTARY},
}
"""Attentions that can be converted, by the name of their class: their projections, and what each computes."""

FAMILIES = (
    "BERT (also MiniLM), RoBERTa, DistilBERT, BART, Marian, T5, GPT-2, Llama (also SmolLM), Mistral, Qwen 2 and 3"
)
HEAD_SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim")
CROSS_NAMES = ("encoder_attn", "EncDecAttention", "crossattention", "crossattention.self")

MIN_TOKENS = 100
"""Fewest tokens to calibrate on: below it σ^p is noise."""

TAU_ALPHA_OFF = 10.0
"""The τ_α at which the prior's component has at most PRIOR_WEIGHT_OFF of the weight of any query of the calibration."""
PRIOR_WEIGHT_OFF = 1e-5

IGNORED = -100
"""A label that is none, as in transformers."""

MAX_NEW_TOKENS = 64
"""Tokens that a decoder generates for each text of a calibration without decoder inputs."""

Batches = Iterable[dict[str, Any]] | Iterable[str]


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
    if is_converted(model):
        raise ValueError(f"convert: model is a converted {kind}, expected one that is not. Use set_tau.")
    if getattr(model.config, "quantization_config", None) is not None:
        raise ValueError(f"convert: model is a quantised {kind}, expected one with ordinary weights.")
    if isinstance(calibration, (str, Mapping)):
        raise ValueError("convert: calibration is one text or one batch, expected a list of texts or of batches.")
    chosen = _check_where("convert", where, SECTIONS)
    has = {section for _, _, section in find_attentions(model)}
    if not (found := [section for section in chosen if section in has]):
        has = ", ".join(section for section in SECTIONS if section in has)
        raise ValueError(f"convert: where is {tuple(where)}, but {kind} has {has} alone.")
    converted = copy.deepcopy(model).eval()
    dials = {"tau_alpha": tau_alpha, "tau_sigma": tau_sigma, "delta": delta}
    install(converted, NVIBConfig(dict.fromkeys(found, dials)))  # refuses dials that are wrong
    set_tau(converted, alpha=math.inf, sigma=0.0)
    _calibrate(converted, list(_batches(converted, calibration, tokenizer, batch_size)))
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


def is_converted(model: nn.Module) -> bool:
    """Whether a model has an attention with NVIB."""
    return any(isinstance(module, AttentionNVIB) for module in model.modules())


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


def install(model: PreTrainedModel, config: NVIBConfig) -> None:
    """Replace the projections of the attentions of a model in place, and keep the conversion in its config."""
    for path, attention, section in find_attentions(model):
        if section not in config.sections:
            continue
        projections = PROJECTIONS[type(attention).__name__]
        for name in projections:
            _check_plain(f"{path}.{name}", getattr(attention, name))
        if section == "cross" and "c_attn" in projections:
            projections = {"c_attn": ("key", "value")}
        names = {part: name for name, parts in projections.items() for part in parts}
        weight = getattr(attention, names["key"]).weight
        transposed = "c_attn" in projections
        p = weight.shape[0 if transposed else 1]
        size = weight.shape[1] // len(projections["c_attn"]) if transposed else weight.shape[0]
        head_size = next(getattr(attention, name) for name in HEAD_SIZES if hasattr(attention, name))
        nvib = AttentionNVIB(
            p,
            heads=size // head_size,
            groups=getattr(attention, "num_key_value_groups", 1),
            head_size=head_size,
            scale=float(attention.scaling),
            section=section,
            rotary=type(attention).__name__ in ROTARY,
            key_name=names["key"],
            value_name=names["value"],
        ).to(weight)
        for name, parts in projections.items():
            setattr(attention, name, Projection(getattr(attention, name), nvib, parts=parts, transposed=transposed))
        if transposed:
            wide = size + nvib.head_size
            attention.split_size = [wide, wide] if section == "cross" else [size, wide, wide]
        attention.nvib = nvib
        nvib.train(attention.training)
    model.config.quantization_config = config  # pyright: ignore[reportAttributeAccessIssue]
    model.set_attn_implementation(NAME)
    for section, taus in config.sections.items():
        _set(model, section, **taus)
    for function in (nvib_kl, layer_kl, kept, set_tau):
        setattr(model, function.__name__, partial(function, model))


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
    config = getattr(model.config, "quantization_config", None)
    if not isinstance(config, NVIBConfig):
        raise ValueError(f"set_tau: model is a {type(model).__name__} that is not converted. Call convert first.")
    sections = list(config.sections) if where is None else _check_where("set_tau", where, config.sections)
    given = {"tau_alpha": alpha, "tau_sigma": sigma, "delta": delta}
    taus = {name: value for name, value in given.items() if value is not None}
    for section in sections:
        _set(model, section, **taus)
        config.sections[section].update({name: float(value) for name, value in taus.items()})


def nvib_kl(
    model: PreTrainedModel,
    *,
    lambda_g: float = 1.0,
    lambda_d: float = 1.0,
    layer_weights: Sequence[float] | None = None,
    form: KLForm = "expected",
) -> Float[Tensor, ""]:
    """Compute the KL of the last forward pass as a term of a loss: λ_G L_G/np + λ_D L_D/n, the mean over texts.

    Attentions are averaged with `layer_weights`, in the model's order; with equal weights if they are not given.
    """
    kls = layer_kl(model, form)
    weights = [1.0] * len(kls) if layer_weights is None else list(layer_weights)
    if len(weights) != len(kls) or sum(weights) <= 0:
        raise ValueError(f"nvib_kl: layer_weights has {len(weights)} numbers, expected {len(kls)}, some above 0.")
    found = dict(nvibs(model))
    terms = []
    for (name, kl), weight in zip(kls.items(), weights, strict=True):
        n = observed(name, found[name])[1].sum(-1).clamp(min=1)
        each = lambda_g * kl.gaussian / (n * found[name].p) + lambda_d * kl.dirichlet / n
        terms.append(weight / sum(weights) * each.mean())
    return torch.stack(terms).sum()


def layer_kl(model: PreTrainedModel, form: KLForm = "expected") -> dict[str, KL]:
    """Compute the KL of each converted attention in the last forward pass, for each text, by the attention's name."""
    wants_gradients = (
        torch.is_grad_enabled()
        and model.is_gradient_checkpointing
        and any(parameter.requires_grad for parameter in model.get_input_embeddings().parameters())
    )
    kls = {}
    for name, nvib in _converted("layer_kl", model):
        x, real = observed(name, nvib)
        if wants_gradients and nvib.training and not x.requires_grad:
            raise ValueError(
                f"layer_kl: {name} of the converted model was computed without gradients, so that its KL has none. "
                f"Give gradient_checkpointing_kwargs={{'use_reentrant': False}}."
            )
        kls[name] = nvib.posterior(x, real).kl(form)
    return kls


def kept(model: PreTrainedModel, threshold: float = 1.0) -> dict[str, Float[Tensor, " batch"]]:
    """Compute the share of tokens with α above `threshold`·α₀^p in the last forward pass, by the attention's name.

    The projection of a converted attention is exponential, so that no α is 0: a token that has less than the prior's
    component counts as dropped.
    """
    check("kept", threshold=(threshold, "number; > 0"))
    shares = {}
    for name, nvib in _converted("kept", model):
        x, real = observed(name, nvib)
        with torch.no_grad():
            above = real & (nvib.log_alpha(x) > math.log(threshold)) if nvib.has_prior else real
        shares[name] = above.sum(-1) / real.sum(-1).clamp(min=1)
    return shares


def nvibs(model: nn.Module) -> list[tuple[str, AttentionNVIB]]:
    """Find the NVIBs of a converted model, by the name of their attention, in the order of its modules."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, AttentionNVIB)]
    return [(name.removesuffix(".nvib"), module) for name, module in found]


def _converted(function: str, model: nn.Module) -> list[tuple[str, AttentionNVIB]]:
    """Find the NVIBs of a model, or raise a ValueError if it has none."""
    if not (found := nvibs(model)):
        raise ValueError(f"{function}: model is a {type(model).__name__} that is not converted. Call convert first.")
    return found


def observed(name: str, nvib: AttentionNVIB) -> tuple[Tensor, Tensor]:
    """Return the hidden states of the last forward pass (batch, n, p), and which of them are real (batch, n)."""
    if nvib.handover.seen is None:
        raise ValueError(f"{name} of the converted model has seen no input. Call the model first, in this thread.")
    x, mask = nvib.handover.seen
    return x, _real(mask, x)


def _real(mask: Tensor | None, x: Tensor) -> Tensor:
    """Whether any query may attend to a token, (batch, n)."""
    if mask is None or mask.shape[-1] != x.shape[1]:
        return x.new_ones(x.shape[:2], dtype=torch.bool)
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.flatten(1, 2).any(1).expand(x.shape[:2])


def _set(model: nn.Module, section: str, **taus: float) -> None:
    for _, nvib in nvibs(model):
        if nvib.section == section:
            nvib.set_tau(**{name.removeprefix("tau_"): value for name, value in taus.items()})


@torch.no_grad()
def _calibrate(model: PreTrainedModel, batches: list[dict[str, Any]]) -> None:
    """Measure the prior of each attention, then how much it is favoured over the tokens: the unit of τ_α."""
    moments = {name: Moments(d=nvib.d) for name, nvib in nvibs(model)}
    for name, nvib in nvibs(model):
        nvib.observer = partial(_observe_moments, moments[name])
    for batch in batches:
        model(**batch)
    idle, fewest = [name for name, each in moments.items() if not each.count], min(x.count for x in moments.values())
    if idle and len(idle) < len(moments):
        raise ValueError(f"convert: {idle[0]} takes no part in these inputs. Leave its section out of where.")
    if fewest < MIN_TOKENS:
        raise ValueError(f"convert: calibration has {fewest} tokens, expected at least {MIN_TOKENS}. Give more texts.")
    if any(not each.varies for each in moments.values()):
        raise ValueError("convert: calibration has the same text again and again, expected different ones.")
    largest: dict[str, Tensor] = {}
    for name, nvib in nvibs(model):
        nvib.set_prior(moments[name].prior(), tau_unit=0.0)
        nvib.observer = partial(_observe_odds, largest, name)
    for batch in batches:
        model(**batch)
    for name, nvib in nvibs(model):
        nvib.observer = nvib.handover.seen = None
        floor = (largest[name].item() - math.log(PRIOR_WEIGHT_OFF)) / TAU_ALPHA_OFF
        nvib.set_prior(moments[name].prior(), tau_unit=max(MIN_TAU_UNIT, floor))


def _observe_moments(
    moments: Moments, attention: Any, query: Tensor, unrotated: Tensor, key: Tensor, mask: Tensor | None, _: Any
) -> None:
    x = attention.nvib.handover.seen[0]
    moments.add(x[_real(mask, x)])


def _observe_odds(
    largest: dict[str, Tensor],
    name: str,
    attention: Any,
    query: Tensor,
    unrotated: Tensor,
    key: Tensor,
    mask: Tensor | None,
    position_bias: Tensor | None,
) -> None:
    """Note the largest logarithm of the prior's weight over that of all tokens, with τ_α = 0."""
    nvib: AttentionNVIB = attention.nvib
    component = nvib.component(attention, len(key))
    query, unrotated, key = (x.to(component.key.dtype) for x in (query, unrotated, key))
    scores = nvib.scale * (query @ key.repeat_interleave(nvib.groups, 1).mT)
    scores = scores if position_bias is None else scores + position_bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    tokens = scores.logsumexp(-1)  # (batch, heads, queries)
    half = 0.5 * component.products(unrotated)[..., : nvib.head_size]
    prior = nvib.scale * (unrotated * (component.key + half)).sum(-1) + component.bias
    odds = torch.where(tokens > torch.finfo(tokens.dtype).min / 2, prior - tokens, -torch.inf).max()
    largest[name] = torch.maximum(odds, largest[name]) if name in largest else odds


def _batches(
    model: PreTrainedModel, calibration: Batches, tokenizer: PreTrainedTokenizerBase | None, size: int
) -> Iterator[dict[str, Any]]:
    """Yield inputs of the model on its device; texts are tokenised, and missing decoder inputs are generated."""
    for batch in _tokenised(model, calibration, tokenizer, size):
        inputs = {name: x.to(model.device) if isinstance(x, Tensor) else x for name, x in batch.items()}
        _check_ids(model, inputs.get("input_ids"))
        if model.config.is_encoder_decoder and not {"decoder_input_ids", "decoder_inputs_embeds", "labels"} & set(
            inputs
        ):
            inputs |= _decoder_inputs(model, inputs)
        yield with_decoder_mask(model, inputs)


def _check_ids(model: PreTrainedModel, ids: Tensor | None) -> None:
    if ids is None:
        return
    check("convert", input_ids=(ids, "int batch n"))
    if (size := getattr(model.config, "vocab_size", None)) is not None and (largest := int(ids.max())) >= size:
        raise ValueError(f"convert: input_ids has the token {largest}, expected below {size}, the model's vocabulary.")


def with_decoder_mask(model: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
    """Mask the decoder's padding, where labels end with -100, if nothing else does: the KL is of real tokens."""
    labels = inputs.get("labels")
    if not model.config.is_encoder_decoder or "decoder_attention_mask" in inputs:
        return inputs
    if not isinstance(labels, Tensor) or labels.dim() != 2:
        return inputs
    real = (labels != IGNORED).flip(1).cumsum(1).flip(1) > 0
    real[:, 0] = True  # no text is empty
    return inputs | {"decoder_attention_mask": real.long()}


def _tokenised(
    model: PreTrainedModel, calibration: Batches, tokenizer: PreTrainedTokenizerBase | None, size: int
) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    for item in calibration:
        if isinstance(item, Mapping):
            yield dict(item)
            continue
        check("convert", calibration_item=(item, str, "Give texts, or dictionaries of tensors."))
        if tokenizer is None:
            raise ValueError("convert: calibration has texts, expected model inputs, or a tokenizer for the texts.")
        texts.append(item)
        if len(texts) == size:
            yield encode_texts(model, tokenizer, texts)
            texts = []
    if texts and tokenizer is not None:
        yield encode_texts(model, tokenizer, texts)


def encode_texts(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> dict[str, Any]:
    """Tokenise texts to inputs of a model, padded and cut to its length."""
    config: Any = model.config
    unused = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    positions = getattr(config, "max_position_embeddings", None)  # T5 has none
    longest = None if positions is None else min(positions - unused, tokenizer.model_max_length)
    if tokenizer.pad_token_id is None:  # GPT-2 has none; what pads is masked
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token
    return dict(tokenizer(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt"))


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
    """Generate at most as many tokens as given, and as the model has positions."""
    most = min(most, getattr(model.config, "max_position_embeddings", most + 1) - 1)
    return model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=most, max_length=None)


register_quantization_config(NAME)(NVIBConfig)
register_quantizer(NAME)(NVIBLoader)
