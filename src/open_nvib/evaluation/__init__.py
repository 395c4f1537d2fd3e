"""Evaluate a trained model: reconstruction, generation, the latent, interpolation. Needs the extra `text`."""

from open_nvib.evaluation.evaluate import evaluate
from open_nvib.store.task_settings import EvaluateConfig

__all__ = ["EvaluateConfig", "evaluate"]
