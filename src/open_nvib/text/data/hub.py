"""Datasets and tokenizers of the Hugging Face hub, and the clear line when they cannot be had."""

from collections.abc import Iterator

import datasets
from datasets.exceptions import DatasetsError

from open_nvib.store.files import InputError
from open_nvib.text.data.files import missing_column

WIKITEXT = "Salesforce/wikitext"
WIKITEXT_CONFIGS = {"wikitext-103": "wikitext-103-raw-v1", "wikitext-2": "wikitext-2-raw-v1"}


def texts(dataset: str, *, config: str | None, split: str, revision: str | None, column: str) -> Iterator[str]:
    """Every text of one column of a dataset, given by its id on the hub or by the path of its folder."""
    rows = load(dataset, config=config, split=split, revision=revision)
    if column not in rows.column_names:
        raise missing_column(f"hub dataset {dataset!r}", column, rows.column_names)
    for batch in rows.select_columns([column]).iter(batch_size=4096):
        for value in batch[column]:  # pyright: ignore[reportArgumentType, reportCallIssue]
            if value is not None and not isinstance(value, str):
                raise InputError(
                    f"hub dataset {dataset!r}: column {column!r} holds {type(value).__name__}, wanted text. "
                    f"Give --column, one of {', '.join(rows.column_names)}."
                )
            yield value or ""


def load(dataset: str, *, config: str | None, split: str, revision: str | None) -> datasets.Dataset:
    try:
        return datasets.load_dataset(dataset, name=config, split=split, revision=revision)
    except ConnectionError as error:
        raise InputError(
            f"{dataset}: there is no such file here, and the Hugging Face hub cannot be reached to look for a dataset "
            f"of this name. Look at the network, or give the path of a local file or folder."
        ) from error
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        # An unknown id, configuration, split or revision, or a dataset that only its own code can read.
        raise InputError(f"hub dataset {dataset!r}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
