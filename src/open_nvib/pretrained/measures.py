"""The KL of a converted model's attentions in the last forward pass, the tokens they keep, and a Trainer for the KL."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer

from open_nvib._tensors import check
from open_nvib.pretrained.attention import AttentionNVIB, nvibs, real_tokens
from open_nvib.process import KL, KLForm

IGNORED = -100
"""Label of positions without a loss, as in transformers."""


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


def with_decoder_mask(model: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
    """Mask the decoder's padding, where labels end with -100, if no mask is given: the KL counts real tokens."""
    labels = inputs.get("labels")
    unneeded = not model.config.is_encoder_decoder or "decoder_attention_mask" in inputs
    if unneeded or not isinstance(labels, Tensor) or labels.dim() != 2:
        return inputs
    real = (labels != IGNORED).flip(1).cumsum(1).flip(1) > 0
    real[:, 0] = True  # no text is empty
    return inputs | {"decoder_attention_mask": real.long()}


class NVIBTrainer(Trainer):
    """The Trainer of transformers, which adds the KL of a converted model to the loss of any task.

    Training draws a sample of each attention's process, evaluation uses the mean; the model needs a finite τ_α and τ_σ
    above 0. The log has the KL as `nvib_kl`. The loss of an evaluation is the task's alone.

    ```python
    model = convert(model, texts, tokenizer=tokenizer, tau_sigma=0.1)
    NVIBTrainer(model, TrainingArguments("out"), train_dataset=data, lambda_g=0.001).train()
    ```

    Args:
        lambda_g: weight of the Gaussian part, per token and dimension.
        lambda_d: weight of the Dirichlet part, per token.
        layer_weights: relative weight of each attention, in the model's order, such as 1, 2, …, L; equal if not given.
    """

    def __init__(
        self,
        *args: Any,
        lambda_g: float = 0.001,
        lambda_d: float = 0.001,
        layer_weights: list[float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_weights("NVIBTrainer", self._converted, lambda_g, lambda_d, layer_weights)
        self.weights = {"lambda_g": lambda_g, "lambda_d": lambda_d, "layer_weights": layer_weights}
        self._kl_sum, self._kl_count = torch.zeros(()), 0

    @property
    def _converted(self) -> Any:
        return self.accelerator.unwrap_model(self.model)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Add the KL to the loss of the task while the model trains."""
        inputs = with_decoder_mask(self._converted, inputs)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            kl = nvib_kl(self._converted, **self.weights)
            self._kl_sum, self._kl_count = self._kl_sum.to(kl.device) + kl.detach(), self._kl_count + 1
            loss = loss + (kl / self.current_gradient_accumulation_steps if self._is_scaled(num_items_in_batch) else kl)
        return (loss, outputs) if return_outputs else loss

    def _is_scaled(self, num_items_in_batch: Tensor | int | None) -> bool:
        """Whether the loss is divided by the accumulated steps already. If not, the Trainer divides it."""
        given = getattr(self, "loss_is_scaled_for_ga", None)
        counts = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return (counts or self.compute_loss_func is not None) if given is None else given

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the mean KL since the last time, beside the training loss."""
        if "loss" in logs and self._kl_count:
            logs = logs | {"nvib_kl": (self._kl_sum / self._kl_count).item()}
            self._kl_sum, self._kl_count = torch.zeros(()), 0
        super().log(logs, *args, **kwargs)
