"""The paper's printed table, `tab:generationReconstuction`: 405,000 sentences of Wikitext-103, 5 seeds.

Rows go by the names of the files in configs/. The F-PPL and R-PPL near 1 cannot come from a causal language model
(English has no such entropy), so they are not to be compared with those of one.
"""

from dataclasses import dataclass

from open_nvib.report.measures import MeanAndDeviation

SEEDS = 5


@dataclass(frozen=True)
class PaperRow:
    """A row as printed.

    Args:
        model: T, VT, VTP, VTS or NVAE.
        settings: the two columns beside the model.
        kept: ν, the share of vectors kept.
        bleu: of reconstructions.
        perplexity: of reconstruction.
        forward: F-PPL; T has no prior to sample from.
        reverse: R-PPL.
    """

    model: str
    settings: str
    kept: float
    bleu: MeanAndDeviation
    perplexity: MeanAndDeviation
    forward: MeanAndDeviation | None
    reverse: MeanAndDeviation | None


def _row(model: str, settings: str, kept: float, *printed: tuple[float, float]) -> PaperRow:
    bleu, perplexity, *generation = (MeanAndDeviation(mean, sd, SEEDS) for mean, sd in printed)
    forward, reverse = generation or (None, None)
    return PaperRow(model, settings, kept, bleu, perplexity, forward, reverse)


_WEAK = "λ′_G=0.0001"

PAPER: dict[str, PaperRow] = {
    "t": _row("T", "", 1.0, (99.54, 0.02), (1.00, 0.00)),
    "vt-unregularised": _row("VT", "λ′_G=0", 1.0, (99.55, 0.00), (1.00, 0.00), (1.33, 0.17), (28.56, 44.29)),
    "nvae-unregularised": _row("NVAE", "λ′_G=0 λ′_D=0", 1.0, (99.55, 0.00), (1.00, 0.00), (2.02, 0.96), (51.25, 45.57)),
    "vt": _row("VT", _WEAK, 1.0, (99.55, 0.00), (1.00, 0.00), (1.04, 0.01), (1.29, 0.08)),
    "vtp-mean": _row("VTP", f"{_WEAK} mean", 0.03, (68.28, 0.29), (1.69, 0.01), (2.73, 0.49), (1.05, 0.01)),
    "vtp-max": _row("VTP", f"{_WEAK} max", 0.03, (66.17, 0.57), (2.11, 0.06), (1.03, 0.01), (1.10, 0.02)),
    "vtp-cls": _row("VTP", f"{_WEAK} cls", 0.03, (48.76, 0.33), (4.09, 0.04), (1.01, 0.01), (1.28, 0.03)),
    "vts-0.25": _row("VTS", f"{_WEAK} S=0.25", 0.75, (99.55, 0.00), (1.00, 0.00), (1.01, 0.01), (1.30, 0.06)),
    "vts-0.5": _row("VTS", f"{_WEAK} S=0.5", 0.5, (99.46, 0.04), (1.00, 0.00), (1.13, 0.12), (7.19, 6.91)),
    "vts-0.75": _row("VTS", f"{_WEAK} S=0.75", 0.25, (95.32, 0.14), (1.08, 0.01), (1.04, 0.13), (1.62, 0.34)),
    "vts-0.9": _row("VTS", f"{_WEAK} S=0.9", 0.1, (70.40, 0.32), (1.73, 0.01), (1.03, 0.02), (1.32, 0.07)),
    "nvae-0.001": _row("NVAE", "λ′_G=0.001 λ′_D=1", 0.79, (99.46, 0.07), (1.00, 0.00), (1.01, 0.01), (2.87, 1.39)),
    "nvae-0.01": _row("NVAE", "λ′_G=0.01 λ′_D=1", 0.47, (92.26, 4.90), (1.18, 0.13), (1.00, 0.00), (5.06, 1.90)),
    "nvae-0.1": _row("NVAE", "λ′_G=0.1 λ′_D=1", 0.36, (55.38, 14.25), (3.25, 1.22), (1.00, 0.00), (3.38, 0.98)),
    "nvae-1": _row("NVAE", "λ′_G=1 λ′_D=1", 0.17, (31.94, 2.76), (7.91, 2.41), (1.00, 0.00), (1.29, 0.04)),
}
