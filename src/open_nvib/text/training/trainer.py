"""The Hugging Face Trainer with the three losses, their schedules, reconstruction as evaluation, and what it prints."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.trainer_callback import ProgressCallback, TrainerCallback
from transformers.trainer_utils import rotate_checkpoints

from open_nvib.store.evaluations import WORSE_NLL
from open_nvib.store.files import seal, writing_to
from open_nvib.store.runs import LogEntry, append_log, read_log
from open_nvib.store.settings import LossSettings
from open_nvib.text.model import decoding
from open_nvib.text.model.autoencoder import AutoencoderOutput, TextAutoencoder
from open_nvib.text.model.configuration import LOSS_PARTS

COLLAPSED_KL = 0.05
"""KL, as it is in the loss, below which the latent may have collapsed."""
COLLAPSED_BLEU = 1.0
"""BLEU that the latent must add to what the decoder reaches on its own."""


class AutoencoderTrainer(Trainer):
    """Trains on samples of the latent and evaluates on its mean; `kwargs` are those of the Hugging Face Trainer."""

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
        collator = decoding.Collator(model.config.pad_token_id, model.config.eos_token_id)
        super().__init__(model, data_collator=collator, **kwargs)
        self.loss_is_scaled_for_ga = True
        self.settings, self.tokenizer, self.validation = settings, tokenizer, validation
        self.bleu_sentences, self.say = bleu_sentences, say
        self.sums: dict[str, list[float]] = {}
        self.warned: set[str] = set()
        self.add_callback(ApplySchedule(self))

    @property
    def autoencoder(self) -> TextAutoencoder:
        """The model, without what the Trainer wraps it in."""
        return cast(TextAutoencoder, self.accelerator.unwrap_model(self.model))

    # The loss

    def apply_schedule(self) -> None:
        """Compute what is scheduled at the present step, and set it in the model."""
        self.autoencoder.set_schedule(self.settings.at(self.state.global_step))

    def compute_loss(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        model: torch.nn.Module,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the mean over all tokens and texts of the step, of all its processes and accumulated batches."""
        accumulated = getattr(self, "current_gradient_accumulation_steps", 1) or 1
        items = num_items_in_batch
        if items is not None:  # of all processes, whose gradients are averaged
            items = torch.as_tensor(items) / max(1, self.accelerator.num_processes)
        output: AutoencoderOutput = model(
            **inputs,
            sample=True,
            num_items_in_batch=items,
            num_texts_in_batch=accumulated * len(inputs["labels"]),
        )
        loss = cast(Tensor, output.loss)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(self._explain_not_finite(output))
        for name in LOSS_PARTS:
            if output.get(name) is not None:
                scale = accumulated if name in ("cross_entropy", "kl_gaussian", "kl_dirichlet") else 1
                self.sums.setdefault(name, []).append(scale * output[name].item())
        return (loss, output) if return_outputs else loss

    def _explain_not_finite(self, output: AutoencoderOutput) -> str:
        """Name the first tensor that is not finite: a parameter, else the part of the loss."""
        step = self.state.global_step
        for name, parameter in self.autoencoder.named_parameters():
            if not parameter.isfinite().all():
                bad = int((~parameter.isfinite()).sum())
                return (
                    f"step {step}: the loss is not finite. {bad} of {parameter.numel()} entries of {name} are not. "
                    f"Lower --optimiser.learning_rate or --optimiser.clip."
                )
        parts = [name for name in LOSS_PARTS if output.get(name) is not None and not output[name].isfinite()]
        return (
            f"step {step}: the loss is not finite, all parameters are; first in {parts[0] if parts else 'the total'}. "
            f"Lower --optimiser.learning_rate, or the schedule that is rising at this step."
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for name in ("train_loss", "train_samples_per_second", "train_steps_per_second"):
            logs.pop(name, None)  # after a resume, the Trainer divides numbers of all steps and of the last ones
        if "loss" in logs and self.sums:
            logs |= {name: round(sum(values) / len(values), 6) for name, values in self.sums.items()}
            logs |= self.autoencoder.scheduled()
            self.sums = {}
        super().log(logs, start_time)

    # The data

    def _get_train_sampler(self, train_dataset: Any = None) -> decoding.LengthGroupedSampler:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * max(1, self.args.world_size)
        return decoding.LengthGroupedSampler(dataset.lengths, batch, seed=self.args.seed)

    # Evaluation

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Measure the parts of the loss and the reconstruction at the mean of the latent, in every process alike."""
        model = self.autoencoder
        training = model.training
        model.eval()
        metrics = decoding.evaluate_losses(model, self.validation)
        texts = self.validation[: self.bleu_sentences]
        metrics |= self._reconstruct(texts)
        if model.encoder.bottleneck.has_points and model.decoder.reading == "mean":
            with decoding.reading(model, "points"):
                metrics["points_loss"] = decoding.evaluate_losses(model, self.validation)["loss"]
        self._warn(metrics, texts)
        model.train(training)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        step = self.state.global_step
        if not any(entry["step"] == step and f"{metric_key_prefix}_loss" in entry for entry in self.state.log_history):
            self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _reconstruct(self, texts: list[list[int]], *, other_latents: bool = False) -> dict[str, float]:
        decoded = decoding.reconstruct_ids(self.autoencoder, texts, other_latents=other_latents)
        scores, _ = decoding.score_reconstruction(texts, decoded, self.tokenizer)
        return scores

    def _warn(self, metrics: dict[str, float], texts: list[list[int]]) -> None:
        """Say what is going wrong, once until it is over."""
        bottleneck = self.autoencoder.encoder.bottleneck
        silent = bottleneck.has_prior and metrics["kl_gaussian"] < COLLAPSED_KL
        bare = self._reconstruct(texts, other_latents=True)["bleu"] if silent else None
        finished = self.state.global_step >= self.state.max_steps
        pressed = bottleneck.can_drop and self.autoencoder.lambda_d > 0 and finished
        found = find_troubles(metrics, bare, drops=pressed, gates=bottleneck.decides)
        for name, text in found.items():
            if name not in self.warned and self.is_world_process_zero():
                self.say(f"warning: {text}")
        self.warned = set(found)

    # Checkpoints

    def find_best_checkpoint(self) -> None:
        """Find the best checkpoint in this run: a state that was read names the place where the run was then."""
        if self.state.best_global_step and self.args.output_dir is not None:
            best = Path(self.args.output_dir) / f"checkpoint-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(best) if best.is_dir() else None

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Write, seal, and only then remove older ones: at every moment there is a complete one."""
        checkpoint = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
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
            rotate_checkpoints(str(self.args.output_dir), keep, self.state.best_model_checkpoint)


class ApplySchedule(TrainerCallback):
    """Applies the schedules whenever the step changes, so that a step, its log and its evaluation have the same values.

    At the end as well, when the best checkpoint may have brought its own values back.
    """

    def __init__(self, trainer: AutoencoderTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.find_best_checkpoint()
        self.trainer.apply_schedule()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.apply_schedule()

    on_train_end = on_step_end


# What a training run prints


def find_troubles(
    metrics: dict[str, float], bare_bleu: float | None, *, drops: bool, gates: bool = False
) -> dict[str, str]:
    """Find what an evaluation says is going wrong, by a short name.

    `bare_bleu` is the BLEU of texts decoded from the latents of other texts, `drops` whether the model can drop
    vectors and is pressed to, and `gates` whether gates decide which.
    """
    found: dict[str, str] = {}
    information = metrics.get("kl_gaussian", 0.0) + metrics.get("kl_dirichlet", 0.0)
    if bare_bleu is not None and information < COLLAPSED_KL and metrics["bleu"] - bare_bleu < COLLAPSED_BLEU:
        found["collapse"] = (
            f"posterior collapse: the KL is {information:.3g} and BLEU {metrics['bleu']:.1f}, what the decoder reaches "
            f"with another text's latent. Lower lambda_g and lambda_d, or raise delta, at the start."
        )
    if "points_loss" in metrics and metrics["loss"] > metrics["points_loss"] + WORSE_NLL:
        found["mean"] = (
            f"read from the mean of the latent, a token costs {metrics['loss']:.2f} nats, from its points "
            f"{metrics['points_loss']:.2f}. Set model.reading to points: docs/theory.md says why."
        )
    if drops and metrics["kept"] > 0.999:
        fix = "train longer, raise lambda_d, or lower gate_share" if gates else "set loss.keep_share"
        found["all kept"] = f"all vectors are kept: {fix} for fewer, see docs/faq.md."
    if drops and metrics["kept"] < 0.001:
        found["all dropped"] = "all vectors are dropped: lower lambda_d, or raise delta, to keep some."
    return found


SHOWN = {
    "loss": "loss",
    "cross_entropy": "ce",
    "kl_gaussian": "L_G/nd",
    "kl_dirichlet": "L_D/n",
    "kept": "kept",
    "alpha0": "α₀",
    "sigma": "σ",
    "bleu": "BLEU",
    "exact": "exact",
    "perplexity": "ppl",
}


def log_line(step: int, steps: int, logs: dict[str, float]) -> str | None:
    """Show a log entry on one line; None if there is nothing to show in it."""
    evaluation = any(name.startswith("eval_") for name in logs)
    values = {name.removeprefix("eval_"): value for name, value in logs.items()}
    shown = [f"{label} {values[name]:.4g}" for name, label in SHOWN.items() if name in values]
    if not shown or "train_runtime" in logs:
        return None
    return f"{step:>{len(str(steps))}}/{steps} {'validation' if evaluation else 'training  '} {'  '.join(shown)}"


def time_left(steps: int, state: Any, seconds: float) -> str:
    """Say how long the remaining steps take at the pace of the `steps` since the training began or went on."""
    remaining = state.max_steps - state.global_step
    if steps < 1 or remaining < 1:
        return ""
    left = round(seconds / steps * remaining)
    return f"  left {left // 3600}:{left // 60 % 60:02}:{left % 60:02}"


class RunLog(TrainerCallback):
    """Writes the log of a run, and a line on each entry with `say` where no progress bar does."""

    def __init__(self, run: Path, say: Callable[[str], None] | None) -> None:
        self.run, self.say = run, say
        earlier = max((entry.values.get("elapsed", 0.0) for entry in read_log(run)), default=0.0)
        self.begun, self.start = (0, 0.0), time.monotonic() - earlier

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begun = state.global_step, time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            when = {"time": round(time.time(), 3), "elapsed": round(time.monotonic() - self.start, 3)}
            append_log(self.run, LogEntry(state.global_step, {**logs, **when}))
            text = log_line(state.global_step, state.max_steps, logs)
            if text and self.say is not None:
                self.say(text + time_left(state.global_step - self.begun[0], state, time.monotonic() - self.begun[1]))


class ProgressBar(ProgressCallback):
    """Shows a progress bar on a terminal, with those lines above it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        text = log_line(state.global_step, state.max_steps, logs or {})
        if text and self.training_bar is not None:
            self.training_bar.write(text)
