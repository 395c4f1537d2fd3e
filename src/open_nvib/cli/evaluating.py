"""`nvib evaluate`."""

from dataclasses import replace

from jsonargparse import ArgumentParser, Namespace

from open_nvib.cli.tools import build, without
from open_nvib.store.evaluations import Evaluation
from open_nvib.store.settings import PARTS


def describe_evaluate(parser: ArgumentParser) -> None:
    from open_nvib.store.settings import EvaluateConfig

    parser.add_argument("run", type=str, help="a run directory that `nvib train` wrote")
    parser.add_argument("--config", action="config", help="YAML file with any of the options below")
    parser.add_class_arguments(EvaluateConfig)
    parser.add_argument("--data", type=str | None, default=None, help="its prepared data, if it is not where it was")
    parser.add_argument("--device", type=str | None, default=None, help="such as cuda; the CPU if not given")


def run_evaluate(given: Namespace) -> None:
    from open_nvib.evaluation import EvaluateConfig, evaluate

    settings = build(EvaluateConfig, without(given, "run", "config", "data", "device"))
    evaluation = evaluate(given.run, settings, data=given.data, device=given.device)
    print(summary(replace(evaluation, **{part: None for part in PARTS if part not in settings.measure})))


def summary(evaluation: Evaluation) -> str:
    """Show the numbers in a few lines."""
    settings = evaluation.settings
    lines = []
    for partition, texts in (evaluation.reconstruction or {}).items():
        lines.append(
            f"reconstruction of {texts.sentences:,} sentences ({partition}, {settings.split}): BLEU "
            f"{_show(texts.bleu, '.2f')}, perplexity {_show(texts.perplexity, '.3f')}, exact "
            f"{_show(texts.exact, '.1%')}, kept {_show(texts.kept, '.1%')} of the vectors"
        )
        lines.append(f"  {texts.signature}")
    if (found := evaluation.generation) is not None:
        copying = settings.scorer == "autoencoder"
        lines += [
            f"{found.samples:,} samples: F-PPL {_show(found.forward_perplexity, '.2f')} (real text "
            f"{_show(found.real_forward_perplexity, '.2f')}), R-PPL {_show(found.reverse_perplexity, '.2f')} (real "
            f"text {_show(found.real_reverse_perplexity, '.2f')}){', by a scorer that copies' if copying else ''}",
            f"  distinct 2-grams {_show(found.distinct.get(2), '.1%')} (real text "
            f"{_show(found.real_distinct.get(2), '.1%')}), self-BLEU {_show(found.self_bleu, '.1f')} "
            f"({_show(found.real_self_bleu, '.1f')}), copied from the training text {_show(found.copied, '.2%')}",
        ]
    if (latent := evaluation.latent) is not None:
        lines.append(
            f"latent: L_D {_show(latent.kl_dirichlet, '.2f')}, L_G {_show(latent.kl_gaussian, '.1f')} nats a sentence, "
            f"{latent.active_units} of {latent.units} units active, NLL at most {_show(latent.importance_nll, '.1f')} "
            f"nats a sentence"
        )
    if (paths := evaluation.interpolation) is not None:
        perplexity = " ".join(_show(value, ".0f") for value in paths.perplexity)
        smooth = _show(paths.smoothness, ".3f")
        lines.append(f"interpolation of {paths.pairs} pairs: perplexity {perplexity}, smoothness {smooth}")
    return "\n".join(lines)


def _show(value: float | None, form: str) -> str:
    """Format a number; a dash where it is undefined or not finite."""
    return "-" if value is None else f"{value:{form}}"
