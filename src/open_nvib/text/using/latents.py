"""Write the latents of many texts to a Parquet file.

Each text has its number of tokens, and for each vector that the model kept μ, σ, its share of the weight, and α of an
NVAE.
"""

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from open_nvib.merging import VectorRequest
from open_nvib.store.files import PARTIAL, InputError, obstacle_to_writing
from open_nvib.text.model.decoding import encode_batches
from open_nvib.text.using.run import Run

FORMAT = "open_nvib latents, 1"
TEXTS_AT_ONCE = 4096
"""Texts whose latents are in memory, and a row group of the file."""


def write_latents(
    run: Run,
    ids: Mapping[int, Sequence[int]],
    texts: Sequence[str],
    path: str | Path,
    *,
    overwrite: bool = False,
    request: VectorRequest | None = None,
) -> Path:
    """Encode texts and write their latents to `path`, all of it or nothing.

    Args:
        run: the model.
        ids: the tokens of texts, by index in `texts`; line number index + 1 in the file.
        texts: all texts.
        path: ends in .parquet.
        overwrite: replace a file that is not of this function.
        request: how many vectors each text of `ids` gets, as `Run.request` returns it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path).expanduser()
    check_output(path, overwrite=overwrite)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    order, writer = list(ids), None
    try:
        for first in range(0, len(order), TEXTS_AT_ONCE):
            chosen = order[first : first + TEXTS_AT_ONCE]
            some = request and request[first : first + TEXTS_AT_ONCE]
            columns = {
                "line": pa.array([index + 1 for index in chosen]),
                "text": pa.array([texts[index] for index in chosen]),
                "length": pa.array([len(ids[index]) for index in chosen]),
                **_encode(run, [ids[index] for index in chosen], some),
            }
            table = pa.table(columns).replace_schema_metadata({"format": FORMAT})
            writer = writer or pq.ParquetWriter(partial, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def check_output(path: Path, *, overwrite: bool) -> None:
    """Check that latents may be written to `path`; an InputError if not."""
    if path.suffix != ".parquet":
        raise InputError(f"{path}: ends in {path.suffix or 'nothing'}, expected .parquet.")
    if path.is_dir():
        raise InputError(f"{path}: is a directory, expected a file to write. Give another --output.")
    if path.exists() and not overwrite and not _is_ours(path):
        raise InputError(f"{path}: exists and holds no latents. Give another --output, or --overwrite to replace it.")
    if why := obstacle_to_writing(path.parent):
        raise InputError(f"{path}: cannot be written ({why}). Give another --output.")


def _is_ours(path: Path) -> bool:
    import pyarrow.parquet as pq

    try:
        return (pq.read_schema(path).metadata or {}).get(b"format") == FORMAT.encode()
    except (OSError, ValueError):
        return False


def _encode(run: Run, texts: Sequence[Sequence[int]], request: VectorRequest | None) -> dict[str, list[Any]]:
    """Return columns with a list for each text: μ and σ, arrays of size p, and the weight and α of each vector."""
    columns: dict[str, list[Any]] = {}
    bottleneck = run.model.encoder.bottleneck
    for indices, latent in encode_batches(run.model, texts, request):
        kept = bottleneck.kept_vectors(latent)
        sigma = None if latent.log_sigma is None else latent.log_sigma.exp()
        found = {"mu": latent.mu, "sigma": sigma, "weight": bottleneck.weights(latent), "alpha": latent.alpha}
        for name, values in found.items():
            if values is not None:
                column = columns.setdefault(name, [None] * len(texts))
                for row, index in enumerate(indices):
                    column[index] = list(values[row][kept[row]].to("cpu", torch.float32).numpy())
    return columns
