"""`nvib evaluate`."""

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from open_nvib.cli.tools import build, without


def describe_evaluate(parser: ArgumentParser) -> None:
    from open_nvib.evaluation import EvaluateConfig

    parser.add_argument("run", type=str, help="a run directory that `nvib train` wrote")
    parser.add_argument("--config", action="config", help="YAML file with any of the options below")
    parser.add_class_arguments(EvaluateConfig)
    parser.add_argument("--data", type=str | None, default=None, help="its prepared data, if it is not where it was")
    parser.add_argument("--device", type=str | None, default=None, help="such as cuda; the CPU if not given")


def run_evaluate(given: Namespace) -> None:
    from open_nvib.evaluation import EvaluateConfig, evaluate

    settings = build(EvaluateConfig, without(given, "run", "config", "data", "device"))
    record = evaluate(given.run, settings, data=given.data, device=given.device)
    print(summary(record))


def summary(record: dict[str, Any]) -> str:
    """The numbers in a few lines."""
    settings = record["settings"]
    lines = []
    for partition, found in record.get("reconstruction", {}).items():
        lines.append(
            f"reconstruction of {found['sentences']:,} sentences ({partition}, {settings['split']}): "
            f"BLEU {found['bleu']:.2f}, perplexity {found['perplexity']:.3f}, exact {found['exact']:.1%}, "
            f"kept {found['kept']:.1%} of the vectors"
        )
        lines.append(f"  {found['signature']}")
    if found := record.get("generation"):
        copying = settings["scorer"] == "autoencoder"
        lines += [
            f"{found['samples']:,} samples: F-PPL {found['forward_perplexity']:.2f} (real text "
            f"{found['real_forward_perplexity']:.2f}), R-PPL {found['reverse_perplexity']:.2f} (real text "
            f"{found['real_reverse_perplexity']:.2f}){', by a scorer that copies' if copying else ''}",
            f"  distinct 2-grams {_share(found['distinct']['2'])} (real text {_share(found['real_distinct']['2'])}), "
            f"self-BLEU {_number(found['self_bleu'])} ({_number(found['real_self_bleu'])}), "
            f"copied from the training text {found['copied']:.2%}",
        ]
    if found := record.get("latent"):
        lines.append(
            f"latent: L_D {found['kl_dirichlet']:.2f}, L_G {found['kl_gaussian']:.1f} nats a sentence, "
            f"{found['active_units']} of {found['units']} units active, NLL at most "
            f"{_number(found['importance_nll'])} nats a sentence"
        )
    if found := record.get("interpolation"):
        path = " ".join(f"{value:.0f}" for value in found["perplexity"])
        lines.append(
            f"interpolation of {found['pairs']} pairs: perplexity {path}, smoothness {found['smoothness']:.3f}"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
