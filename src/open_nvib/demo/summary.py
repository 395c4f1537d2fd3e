"""What the demo says at its end: sentences with what was dropped, samples, a path, and the numbers in words."""

from collections.abc import Sequence
from typing import Any

from open_nvib.demo.terminal import Terminal
from open_nvib.text.using.inspection import readable
from open_nvib.text.using.run import Run, TokenReport

UNSEEN = ", lengths it never saw): a plain Transformer, too, does much worse on these"


def show_reconstructions(out: Terminal, run: Run, texts: Sequence[str]) -> None:
    reports = run.inspect(texts)
    gathered = any(token.shared for report in reports for token in report.tokens)
    out.title(f"Reconstructions: {'each bar begins a vector' if gathered else 'what has no vector is struck through'}")
    for report in reports:
        kept = sum(token.kept for token in report.tokens)
        out.say(f"  {sentence(out, report.tokens)}   ({kept} of {len(report.tokens)} vectors)")
        out.say(f"  → {report.reconstruction}")


def show_samples(out: Terminal, run: Run, count: int = 6) -> None:
    out.title("Samples: texts that nobody wrote, decoded from latents drawn from the prior")
    for text in run.sample(count):
        out.say(f"  {text}")


def show_path(out: Terminal, run: Run, first: str, second: str) -> None:
    out.title("An interpolation: mixtures of two latents")
    for text in run.interpolate(first, second, steps=5):
        out.say(f"  {text}")


def show_numbers(out: Terminal, record: dict[str, Any]) -> None:
    """Each number beside what it is for a plain Transformer, which keeps everything and has no prior."""
    out.title("The numbers, and what a plain Transformer is by them")
    for line in numbers(record):
        out.say(f"  {line}")


def numbers(record: dict[str, Any]) -> list[str]:
    lines = []
    for partition, found in record.get("reconstruction", {}).items():
        seen = partition == next(iter(record["reconstruction"]))
        lines.append(
            f"BLEU {found['bleu']:.1f}, {found['exact']:.0%} word for word ({partition}"
            + ("): a plain Transformer comes close to 100, as it passes on everything" if seen else UNSEEN)
        )
        lines.append(f"{found['kept']:.0%} of the vectors kept ({partition}): a plain Transformer keeps 100%, always")
    if found := record.get("generation"):
        lines.append(
            f"F-PPL {found['forward_perplexity']:.0f} (real text {found['real_forward_perplexity']:.0f}): how "
            f"surprising its samples are to a language model of real text; a plain Transformer has no samples"
        )
        lines.append(
            f"R-PPL {found['reverse_perplexity']:.0f} (real text {found['real_reverse_perplexity']:.0f}): how "
            f"surprising real text is to a language model of its samples"
        )
    if found := record.get("latent"):
        lines.append(
            f"{found['kl_gaussian']:.0f} nats in the vectors of a sentence: a plain Transformer's have no bound"
        )
    return lines


def sentence(out: Terminal, tokens: Sequence[TokenReport]) -> str:
    """The tokens as words again; a word is struck where all of it was dropped, else the pieces that were.

    Where tokens share vectors, a bar stands before the first of each.
    """
    bars = any(token.shared for token in tokens)
    words: list[list[TokenReport]] = []
    for token in tokens:
        _, begins = readable(token.token)
        if begins or not words:
            words.append([])
        words[-1].append(token)
    return " ".join(_word(out, word, bars=bars) for word in words)


def _word(out: Terminal, pieces: list[TokenReport], *, bars: bool) -> str:
    def text(token: TokenReport) -> str:
        return f"{'|' if bars and token.kept else ''}{readable(token.token)[0]}"

    if not any(piece.present for piece in pieces):
        return out.struck("".join(text(piece) for piece in pieces))
    return "".join(text(piece) if piece.present else out.struck(text(piece)) for piece in pieces)
