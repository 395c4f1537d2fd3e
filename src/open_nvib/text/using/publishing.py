"""Publish a run: a folder that transformers and `Run.from_pretrained` open, with a model card, and the hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml
from huggingface_hub import HfApi, snapshot_download
from transformers.utils.logging import disable_progress_bar

from open_nvib.store.files import InputError, in_one_line, obstacle_to_writing, write_text
from open_nvib.store.runs import PRIOR, RunMetrics, read_lengths, read_metrics, write_lengths, write_numbers
from open_nvib.text.model.learned_prior import save_prior

if TYPE_CHECKING:
    from open_nvib.text.using.run import Run

CARD = "README.md"
CARD_TEMPLATE = """\
---
{head}---

# {name}

A text autoencoder of open_nvib ({kind}, {parameters:,} parameters). It turns a text into a set of vectors and back.

```python
from open_nvib.text import Run

run = Run.from_pretrained("{name}")  # the id of this model, or the folder
run.reconstruct("A sentence.")
run.encode("A sentence.").mu
```

## Data and limits

{data} The model takes up to {longest} tokens; {lengths}
It knows the language and the topics of its training data, and may repeat what stands in them, also what is wrong or
offensive. It is not a chat model and follows no instructions.

## Metrics

{metrics}
"""
SHOWN = {
    "bleu": "reconstruction BLEU",
    "exact": "exact reconstructions, token by token",
    "text_exact": "exact reconstructions of the text as given",
    "perplexity": "reconstruction perplexity",
    "kept": "vectors per token",
    "forward_perplexity": "F-PPL of samples",
    "reverse_perplexity": "R-PPL of samples",
    "self_bleu": "self-BLEU of samples",
    "kl_gaussian": "L_G, nats per text",
    "importance_nll": "NLL bound, nats per text",
}
"""The numbers of a model card, in this order, each from the last evaluation that measured it."""


def save_pretrained(run: "Run", folder: str | Path, *, name: str | None = None, license: str | None = None) -> None:
    """Write the model, its tokenizer, the lengths of its training data and a model card to a folder.

    `load_run`, `Run.from_pretrained` and the Auto classes of transformers open it. The card calls the model by `name`,
    by the name of the run directory if not given; `license` is an identifier of the hub, such as mit.
    """
    folder = Path(folder).expanduser()
    if why := obstacle_to_writing(folder):
        raise InputError(f"{folder}: cannot be written to ({why}). Give another folder.")
    disable_progress_bar()
    run.model.save_pretrained(folder)
    run.tokenizer.save_pretrained(str(folder))
    if run.lengths is not None:
        write_lengths(folder, read_lengths(run.path))
    if run.numbers is not None:
        write_numbers(folder, run.numbers)
    if run.has_learned_prior:
        save_prior(run.learned_prior, folder / PRIOR)
    write_text(folder / CARD, model_card(run, name or run.path.resolve().name, license=license))


def push_to_hub(
    run: "Run",
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    license: str | None = None,
    **kwargs: Any,
) -> None:
    """Upload what `save_pretrained` writes to the Hugging Face hub; `kwargs` go to `HfApi.upload_folder`."""
    api = HfApi(token=token)
    with TemporaryDirectory() as folder:
        save_pretrained(run, folder, name=repo_id, license=license)
        with _hub_errors(repo_id):
            api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(repo_id=repo_id, folder_path=folder, **kwargs)


def download(name: str, **kwargs: Any) -> str:
    """Download a published run, without code and pickles, and return its folder."""
    with _hub_errors(name):
        return snapshot_download(name, ignore_patterns=["*.py", "*.bin", "*.pt", "checkpoints/*"], **kwargs)


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turn what the hub and the network raise into an InputError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: cannot be found on the Hugging Face hub or uploaded to it ({in_one_line(error)}). Give the path "
            f"of a folder, or an id such as me/nvae; the hub needs a network and, to upload, `hf auth login`."
        ) from error


def model_card(run: "Run", name: str, *, license: str | None = None) -> str:
    """Write the model card of a run, in Markdown: how to load the model, its data and limits, and ten numbers."""
    kind = run.model.config.bottleneck
    head: dict[str, Any] = {
        "library_name": "open_nvib",
        "tags": ["open_nvib", "autoencoder", kind],
        "metrics": ["bleu", "perplexity"],
    }
    head |= {} if license is None else {"license": license}
    data = "Its training data is not recorded."
    if run.settings is not None:
        data = f"It was trained on the partition {run.settings.partition!r} of `{Path(run.settings.data).name}`."
    seen = run.trained_lengths
    return CARD_TEMPLATE.format(
        head=yaml.safe_dump(head, sort_keys=False),
        name=name,
        kind=kind,
        parameters=run.model.num_parameters(),
        data=data,
        longest=run.longest,
        lengths="its training lengths are not known." if seen is None else f"it was trained on {seen[0]} to {seen[1]}.",
        metrics=_table(read_metrics(run.path)),
    )


def _table(metrics: RunMetrics) -> str:
    """Tabulate the numbers of SHOWN: those of the last evaluation, else of validation at the end of training."""
    found: dict[str, tuple[float, str]] = {}
    sources: list[tuple[str, Any]] = [("validation, end of training", metrics.validation)]
    for label, each in metrics.evaluations.items():
        sources += [(label, vars(part)) for part in (each.trained_on, each.generation, each.latent) if part is not None]
    for label, values in sources:
        found |= {key: (values[key], label) for key in SHOWN if isinstance(values.get(key), (int, float))}
    rows = [f"| {SHOWN[key]} | {found[key][0]:.4g} | {found[key][1]} |" for key in SHOWN if key in found]
    return "\n".join(["| measure | value | measured on |", "|---|---|---|", *rows]) if rows else "None."
