"""What the last forward pass of a converted model says: the KL of its attentions, and the tokens they keep."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from open_nvib._checks import check
from open_nvib.pretrained.attention import AttentionNVIB, nvibs, real_tokens
from open_nvib.process import KL, KLForm


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
    weights = check_weights("nvib_kl", model, lambda_g, lambda_d, layer_weights)
    kls, found = layer_kl(model, form), dict(nvibs(model))
    terms = []
    for (name, kl), weight in zip(kls.items(), weights, strict=True):
        n = _seen(name, found[name])[1].sum(-1).clamp(min=1)
        each = lambda_g * kl.gaussian / (n * found[name].p) + lambda_d * kl.dirichlet / n
        terms.append(weight / sum(weights) * each.mean())
    return torch.stack(terms).sum()


def check_weights(
    where: str, model: nn.Module, lambda_g: float, lambda_d: float, layer_weights: Sequence[float] | None
) -> list[float]:
    """Return a weight for each converted attention, or raise a ValueError about the first argument that is wrong."""
    attentions = len(find_nvibs(where, model))
    check(where, lambda_g=(lambda_g, "number; >= 0", ""), lambda_d=(lambda_d, "number; >= 0", ""))
    weights = [1.0] * attentions if layer_weights is None else list(layer_weights)
    for weight in weights:
        check(where, layer_weights=(weight, "number; >= 0", ""))
    if len(weights) != attentions or sum(weights) <= 0:
        raise ValueError(f"{where}: layer_weights has {len(weights)} numbers, expected {attentions}, some above 0.")
    return weights


def layer_kl(model: PreTrainedModel, form: KLForm = "expected") -> dict[str, KL]:
    """Compute the KL of each converted attention in the last forward pass, for each text, by the attention's name."""
    wants_gradients = (
        torch.is_grad_enabled()
        and model.is_gradient_checkpointing
        and any(parameter.requires_grad for parameter in model.get_input_embeddings().parameters())
    )
    kls = {}
    for name, nvib in find_nvibs("layer_kl", model):
        x, real = _seen(name, nvib)
        if wants_gradients and nvib.training and not x.requires_grad:
            raise ValueError(
                f"layer_kl: {name} of the converted model was computed without gradients, so its KL has none. "
                f"Give gradient_checkpointing_kwargs={{'use_reentrant': False}}."
            )
        kls[name] = nvib.posterior(x, real).kl(form)
    return kls


def kept(model: PreTrainedModel, threshold: float = 1.0) -> dict[str, Float[Tensor, " batch"]]:
    """Compute the share of tokens with α above `threshold`·α₀^p in the last forward pass, by the attention's name.

    α of a converted attention is an exponential and never 0, so a token with less than the prior's component counts as
    dropped.
    """
    check("kept", threshold=(threshold, "number; > 0"))
    shares = {}
    for name, nvib in find_nvibs("kept", model):
        x, real = _seen(name, nvib)
        with torch.no_grad():
            above = real & (nvib.log_alpha(x) > math.log(threshold)) if nvib.has_prior else real
        shares[name] = above.sum(-1) / real.sum(-1).clamp(min=1)
    return shares


def find_nvibs(where: str, model: nn.Module) -> list[tuple[str, AttentionNVIB]]:
    """Find the NVIBs of a model, or raise a ValueError if it has none."""
    if not (found := nvibs(model)):
        raise ValueError(f"{where}: model is a {type(model).__name__} that is not converted. Call convert first.")
    return found


def _seen(name: str, nvib: AttentionNVIB) -> tuple[Tensor, Tensor]:
    """Return the hidden states of the last forward pass (batch, n, p), and which of them are real (batch, n)."""
    if nvib.seen is None:
        raise ValueError(f"{name} of the converted model has seen no input. Call the model first, in this thread.")
    x, mask = nvib.seen
    return x, real_tokens(x, mask)
