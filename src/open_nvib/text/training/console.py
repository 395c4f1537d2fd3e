"""What a training run says: a line for each log entry, and a word when something goes wrong."""

from collections.abc import Callable
from typing import Any

from transformers.trainer_callback import ProgressCallback, TrainerCallback

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

COLLAPSED_KL = 0.05
COLLAPSED_BLEU = 1.0


def line(step: int, steps: int, logs: dict[str, float]) -> str | None:
    """One line of a log entry; None if there is nothing to show in it."""
    evaluation = any(name.startswith("eval_") for name in logs)
    values = {name.removeprefix("eval_"): value for name, value in logs.items()}
    shown = [f"{label} {values[name]:.4g}" for name, label in SHOWN.items() if name in values]
    if not shown or "train_runtime" in logs:
        return None
    return f"{step:>{len(str(steps))}}/{steps} {'validation' if evaluation else 'training  '} {'  '.join(shown)}"


class Console(TrainerCallback):
    """Lines on a console that is not a terminal."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        text = line(state.global_step, state.max_steps, logs or {})
        if text and state.is_world_process_zero:
            self.say(text)


class Bar(ProgressCallback):
    """A progress bar on a terminal, with the same lines above it."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        text = line(state.global_step, state.max_steps, logs or {})
        if text and self.training_bar is not None:
            self.training_bar.write(text)


def troubles(metrics: dict[str, float], bare_bleu: float | None, *, drops: bool) -> dict[str, str]:
    """What an evaluation says is going wrong, by a short name.

    `bare_bleu` is the BLEU of texts decoded from the latents of other texts; `drops` says that the model can drop
    vectors and is pressed to.
    """
    found: dict[str, str] = {}
    information = metrics.get("kl_gaussian", 0.0) + metrics.get("kl_dirichlet", 0.0)
    if bare_bleu is not None and information < COLLAPSED_KL and metrics["bleu"] - bare_bleu < COLLAPSED_BLEU:
        found["collapse"] = (
            f"posterior collapse: the KL is {information:.3g} and BLEU {metrics['bleu']:.1f}, what the decoder reaches "
            f"with another text's latent. Lower lambda_g and lambda_d, or raise delta, at the start."
        )
    if drops and metrics["kept"] > 0.999:
        found["all kept"] = "all vectors are kept: raise lambda_d, or lower delta, to drop some."
    if drops and metrics["kept"] < 0.001:
        found["all dropped"] = "all vectors are dropped: lower lambda_d, or raise delta, to keep some."
    return found
