"""Fine-tune a converted model with the KL of its attentions as a regulariser."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from open_nvib.pretrained.calibration import with_decoder_mask
from open_nvib.pretrained.measures import check_weights, nvib_kl


class NVIBTrainer(Trainer):
    """The Trainer of transformers, which adds the KL of a converted model to the loss of any task.

    Training draws a sample of each attention's process, evaluation uses the mean; the model needs a finite τ_α and τ_σ
    above 0. The log has the KL as `nvib_kl`. The loss of an evaluation is the task's alone.

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
