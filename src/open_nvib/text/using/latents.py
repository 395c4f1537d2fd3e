"""Write the latents of many texts to a file: NumPy's .npz, or Parquet.

Each text has its number of tokens, and for each vector that the model kept μ, σ, its share of the weight, and α of an
NVAE. In .npz the vectors of all texts are end to end, those of text i from `offsets[i]` to `offsets[i + 1]`.
"""

import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from open_nvib.merging import VectorRequest
from open_nvib.store.files import PARTIAL, InputError, obstacle_to_writing
from open_nvib.text.model.decoding import encode_batches
from open_nvib.text.using.run import Run

FORMAT = "open_nvib latents, 1"
TEXTS_AT_ONCE = 4096
"""Texts whose latents are in memory, and a row group of Parquet."""

MOST_BYTES_OF_TEXT = 2**30
"""In a .npz."""

Arrays = dict[str, np.ndarray]
"""By name: mu and sigma (vectors, p), weight and alpha (vectors). A model without σ or α has none."""
Encoded = Iterator[tuple[list[int], list[Arrays]]]


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
        path: ends in .npz or .parquet.
        overwrite: replace a file that is not of this function.
        request: how many vectors each text of `ids` gets, as `Run.request` returns it.
    """
    path = Path(path).expanduser()
    check_output(path, overwrite=overwrite)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    write = _write_npz if path.suffix == ".npz" else _write_parquet
    try:
        write(_encode(run, ids, request), ids, texts, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def check_output(path: Path, *, overwrite: bool) -> None:
    """Check that latents may be written to `path`; an InputError if not."""
    if path.suffix not in (".npz", ".parquet"):
        raise InputError(f"{path}: ends in {path.suffix or 'nothing'}, expected .npz or .parquet.")
    if path.is_dir():
        raise InputError(f"{path}: is a directory, expected a file to write. Give another --output.")
    if path.exists() and not overwrite and not _is_ours(path):
        raise InputError(f"{path}: exists and holds no latents. Give another --output, or --overwrite to replace it.")
    if why := obstacle_to_writing(path.parent):
        raise InputError(f"{path}: cannot be written ({why}). Give another --output.")


def _is_ours(path: Path) -> bool:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as found:
                return str(found["format"]) == FORMAT
        import pyarrow.parquet as pq

        return (pq.read_schema(path).metadata or {}).get(b"format") == FORMAT.encode()
    except (OSError, ValueError, LookupError, zipfile.BadZipFile):
        return False


def _encode(run: Run, ids: Mapping[int, Sequence[int]], request: VectorRequest | None) -> Encoded:
    """Iterate over (indices, vectors of each text), in the order of the texts."""
    order = list(ids)
    bottleneck = run.model.encoder.bottleneck
    for first in range(0, len(order), TEXTS_AT_ONCE):
        chosen = order[first : first + TEXTS_AT_ONCE]
        rows: list[Arrays] = [{} for _ in chosen]
        texts = [ids[index] for index in chosen]
        some = request and request[first : first + TEXTS_AT_ONCE]
        for indices, latent in encode_batches(run.model, texts, some):
            kept = bottleneck.kept_vectors(latent)
            sigma = None if latent.log_sigma is None else latent.log_sigma.exp()
            columns = {"mu": latent.mu, "sigma": sigma, "weight": bottleneck.weights(latent), "alpha": latent.alpha}
            for row, index in enumerate(indices):
                rows[index] = {
                    name: values[row][kept[row]].to("cpu", torch.float32).numpy()
                    for name, values in columns.items()
                    if values is not None
                }
        yield chosen, rows


def _write_npz(encoded: Encoded, ids: Mapping[int, Sequence[int]], texts: Sequence[str], path: Path) -> None:
    longest = max(ids, key=lambda index: len(texts[index]))
    if 4 * len(ids) * len(texts[longest]) > MOST_BYTES_OF_TEXT:  # NumPy gives every text the room of the longest
        raise InputError(
            f"line {longest + 1} has {len(texts[longest]):,} characters, expected at most "
            f"{MOST_BYTES_OF_TEXT // (4 * len(ids)):,} in a .npz of {len(ids):,} texts. Write .parquet instead."
        )
    rows = [vectors for _, found in encoded for vectors in found]
    offsets = np.cumsum([0, *(len(vectors["mu"]) for vectors in rows)])
    arrays: dict[str, Any] = {name: np.concatenate([vectors.pop(name) for vectors in rows]) for name in list(rows[0])}
    with path.open("wb") as stream:
        np.savez(
            stream,
            format=np.array(FORMAT),
            line=np.array([index + 1 for index in ids]),
            text=np.array([texts[index] for index in ids]),
            length=np.array([len(tokens) for tokens in ids.values()]),
            offsets=offsets,
            **arrays,
        )


def _write_parquet(encoded: Encoded, ids: Mapping[int, Sequence[int]], texts: Sequence[str], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for chosen, rows in encoded:
            columns: dict[str, Any] = {
                "line": pa.array([index + 1 for index in chosen], pa.int64()),
                "text": pa.array([texts[index] for index in chosen], pa.string()),
                "length": pa.array([len(ids[index]) for index in chosen], pa.int64()),
            }
            offsets = np.cumsum([0, *(len(vectors["mu"]) for vectors in rows)])
            for name in rows[0]:
                flat = np.concatenate([vectors[name] for vectors in rows])
                values = pa.array(flat.reshape(-1))
                if flat.ndim == 2:
                    values = pa.FixedSizeListArray.from_arrays(values, flat.shape[1])
                columns[name] = pa.LargeListArray.from_arrays(pa.array(offsets), values)
            table = pa.table(columns).replace_schema_metadata({"format": FORMAT})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
