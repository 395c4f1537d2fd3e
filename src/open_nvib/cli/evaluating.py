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
    from open_nvib.store.settings import PARTS

    settings = build(EvaluateConfig, without(given, "run", "config", "data", "device"))
    record = evaluate(given.run, settings, data=given.data, device=given.device)
    print(summary({name: value for name, value in record.items() if name not in PARTS or name in settings.measure}))


def summary(record: dict[str, Any]) -> str:
    """The numbers in a few lines."""
    settings = record["settings"]
    lines = []
    for partition, found in record.get("reconstruction", {}).items():
        lines.append(
            f"reconstruction of {found['sentences']:,} sentences ({partition}, {settings['split']}): "
            f"BLEU {_show(found['bleu'], '.2f')}, perplexity {_show(found['perplexity'], '.3f')}, exact "
            f"{_show(found['exact'], '.1%')}, kept {_show(found['kept'], '.1%')} of the vectors"
        )
        lines.append(f"  {found['signature']}")
    if found := record.get("generation"):
        copying = settings["scorer"] == "autoencoder"
        lines += [
            f"{found['samples']:,} samples: F-PPL {_show(found['forward_perplexity'], '.2f')} (real text "
            f"{_show(found['real_forward_perplexity'], '.2f')}), R-PPL {_show(found['reverse_perplexity'], '.2f')} "
            f"(real text {_show(found['real_reverse_perplexity'], '.2f')})"
            f"{', by a scorer that copies' if copying else ''}",
            f"  distinct 2-grams {_show(found['distinct']['2'], '.1%')} (real text "
            f"{_show(found['real_distinct']['2'], '.1%')}), self-BLEU {_show(found['self_bleu'], '.1f')} "
            f"({_show(found['real_self_bleu'], '.1f')}), copied from the training text {found['copied']:.2%}",
        ]
    if found := record.get("latent"):
        lines.append(
            f"latent: L_D {_show(found['kl_dirichlet'], '.2f')}, L_G {_show(found['kl_gaussian'], '.1f')} nats a "
            f"sentence, {found['active_units']} of {found['units']} units active, NLL at most "
            f"{_show(found['importance_nll'], '.1f')} nats a sentence"
        )
    if found := record.get("interpolation"):
        path = " ".join(_show(value, ".0f") for value in found["perplexity"])
        smooth = _show(found["smoothness"], ".3f")
        lines.append(f"interpolation of {found['pairs']} pairs: perplexity {path}, smoothness {smooth}")
    return "\n".join(lines)


def _show(value: float | None, form: str) -> str:
    """A number; a dash where it is undefined or not finite."""
    return "-" if value is None else f"{value:{form}}"
