"""The Hugging Face Trainer with the three losses, their schedules, and reconstruction as evaluation."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_utils import rotate_checkpoints

from open_nvib.store.runs import seal, writing_to
from open_nvib.store.settings import LossSettings, value_at
from open_nvib.text.model.autoencoder import AutoencoderOutput, TextAutoencoder
from open_nvib.text.model.bottlenecks import NVIBBottleneck, PlainBottleneck
from open_nvib.text.model.decoding import (
    PARTS,
    Collator,
    LengthGroupedSampler,
    evaluate_losses,
    reconstruct_ids,
    score_reconstruction,
)
from open_nvib.text.training.console import COLLAPSED_KL, troubles


class AutoencoderTrainer(Trainer):
    """Trains on samples of the latent and evaluates on its mean."""

    def __init__(
        self,
        model: TextAutoencoder,
        *,
        settings: LossSettings,
        tokenizer: PreTrainedTokenizerBase,
        validation: list[list[int]],
        bleu_sentences: int,
        say: Callable[[str], None] = print,
        **kwargs: Any,
    ) -> None:
        config = model.config
        collator = Collator(config.pad_token_id, config.eos_token_id)
        super().__init__(model, data_collator=collator, **kwargs)
        self.loss_is_scaled_for_ga = True
        self.settings, self.tokenizer, self.validation = settings, tokenizer, validation
        self.collator, self.bleu_sentences, self.say = collator, bleu_sentences, say
        self.sums: dict[str, list[float]] = {}
        self.said: set[str] = set()

    @property
    def autoencoder(self) -> TextAutoencoder:
        model = self.accelerator.unwrap_model(self.model)
        assert isinstance(model, TextAutoencoder)
        return model

    # The loss

    def weights(self) -> tuple[float, float]:
        """λ′_G and λ′_D of this step; Δ, the contrast and the share of vectors are set in the layer."""
        step = self.state.global_step
        bottleneck = self.autoencoder.encoder.bottleneck
        if isinstance(bottleneck, NVIBBottleneck):
            bottleneck.nvib.set_delta(value_at(self.settings.delta, step))
            if self.settings.alpha_contrast is not None:
                bottleneck.nvib.set_alpha_contrast(value_at(self.settings.alpha_contrast, step))
            if self.settings.keep_share is not None:
                bottleneck.nvib.set_keep_share(value_at(self.settings.keep_share, step))
        return value_at(self.settings.lambda_g, step), value_at(self.settings.lambda_d, step)

    def compute_loss(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        model: torch.nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The mean over all tokens and texts of the step, however many processes and accumulated batches it has."""
        lambda_g, lambda_d = self.weights()
        accumulated = getattr(self, "current_gradient_accumulation_steps", 1) or 1
        items = num_items_in_batch
        if items is not None:  # of all processes, whose gradients are averaged
            items = torch.as_tensor(items) / max(1, self.accelerator.num_processes)
        output: AutoencoderOutput = model(
            **inputs,
            sample=True,
            lambda_g=lambda_g / accumulated,
            lambda_d=lambda_d / accumulated,
            num_items_in_batch=items,
        )
        assert output.loss is not None
        if not math.isfinite(output.loss.item()):
            raise FloatingPointError(self._what_went_wrong(output))
        for name in PARTS:
            if output.get(name) is not None:
                scale = accumulated if name == "cross_entropy" else 1
                self.sums.setdefault(name, []).append(scale * output[name].item())
        return (output.loss, output) if return_outputs else output.loss

    def _what_went_wrong(self, output: AutoencoderOutput) -> str:
        """The first tensor that is not finite: a parameter, else the part of the loss."""
        step = self.state.global_step
        for name, parameter in self.autoencoder.named_parameters():
            if not parameter.isfinite().all():
                bad = int((~parameter.isfinite()).sum())
                return (
                    f"step {step}: the loss is not finite. {bad} of {parameter.numel()} entries of {name} are not. "
                    f"Lower --optimiser.learning_rate or --optimiser.clip."
                )
        parts = [name for name in PARTS if output.get(name) is not None and not output[name].isfinite()]
        return (
            f"step {step}: the loss is not finite, all parameters are; first in {parts[0] if parts else 'the total'}. "
            f"Lower --optimiser.learning_rate, or the schedule that is rising at this step."
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.sums:
            logs |= {name: round(sum(values) / len(values), 6) for name, values in self.sums.items()}
            lambda_g, lambda_d = self.weights()
            logs |= {"lambda_g": lambda_g, "lambda_d": lambda_d}
            bottleneck = self.autoencoder.encoder.bottleneck
            if isinstance(bottleneck, NVIBBottleneck):
                logs["delta"] = bottleneck.nvib.delta.item()
                for name in ("keep_share", "alpha_contrast"):
                    if (value := getattr(bottleneck.nvib, name)) is not None:
                        logs[name] = value.item()
            self.sums = {}
        super().log(logs, start_time)

    # The data

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthGroupedSampler:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        assert dataset is not None
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * max(1, self.args.world_size)
        return LengthGroupedSampler(dataset.lengths, batch, seed=self.args.seed)  # pyright: ignore[reportAttributeAccessIssue]

    # Evaluation

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The parts of the loss and the reconstruction at the mean of the latent, by every process alike."""
        model = self.autoencoder
        training = model.training
        model.eval()
        metrics = evaluate_losses(model, self.validation)
        texts = self.validation[: self.bleu_sentences]
        metrics |= self._reconstruct(texts)
        self._warn(metrics, texts)
        model.train(training)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        step = self.state.global_step
        if not any(entry["step"] == step and f"{metric_key_prefix}_loss" in entry for entry in self.state.log_history):
            self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _reconstruct(self, texts: list[list[int]], *, other_latents: bool = False) -> dict[str, float]:
        decoded = reconstruct_ids(self.autoencoder, texts, other_latents=other_latents)
        scores, _ = score_reconstruction(texts, decoded, self.tokenizer)
        return scores

    def _warn(self, metrics: dict[str, float], texts: list[list[int]]) -> None:
        """Say what is going wrong, once until it is over."""
        bottleneck = self.autoencoder.encoder.bottleneck
        bare = None
        if not isinstance(bottleneck, PlainBottleneck) and metrics["kl_gaussian"] < COLLAPSED_KL:
            bare = self._reconstruct(texts, other_latents=True)["bleu"]
        dropping = isinstance(bottleneck, NVIBBottleneck) and bottleneck.nvib.keep_share is None
        pressed = dropping and self.weights()[1] > 0
        found = troubles(metrics, bare, drops=pressed and self.state.global_step >= self.state.max_steps)
        for name, text in found.items():
            if name not in self.said and self.is_world_process_zero():
                self.say(f"warning: {text}")
        self.said = set(found)

    # Checkpoints

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Write, seal, and only then remove older ones: at every moment there is a complete one."""
        assert self.args.output_dir is not None
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with writing_to(checkpoint):
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()  # each process writes the state of its own random numbers
                if self.args.should_save:
                    seal(checkpoint)
        finally:
            self.args.save_total_limit = keep
        if self.args.should_save:
            rotate_checkpoints(self.args.output_dir, keep, self.state.best_model_checkpoint)
