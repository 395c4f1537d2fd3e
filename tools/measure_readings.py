"""How the mean of a latent and samples of it differ in what the decoder attends to.

python -m tools.measure_readings RUN [RUN ...] --output docs/results/table/readings.json

Of twenty validation sentences of 15 tokens: the length of the queries in the space of the latent, and what
`open_nvib.compare_readings` says of the first decoder layer.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

import open_nvib as nv
from open_nvib.text import load_prepared, load_run
from open_nvib.text.model.decoding import encode
from tools.cells import measure_runs

SENTENCES, LENGTH = 20, 15


@torch.no_grad()
def measure(path: Path) -> dict[str, float]:
    """Compare the readings of an NVAE, with the queries that it has when it writes the right tokens."""
    run: Any = load_run(path)
    rows = load_prepared(run.config.data).split(run.config.partition, "validation")["input_ids"]
    texts = [text for text in map(list, rows) if len(text) == LENGTH][:SENTENCES]
    layer, embedding = run.model.decoder.layers[0], run.model.encoder.embedding
    torch.manual_seed(0)
    hidden = embedding(torch.tensor([[run.model.config.decoder_start_token_id, *text] for text in texts]))
    queries = layer.norms[1](hidden + layer.attention(layer.norms[0](hidden), causal=True))
    found = nv.compare_readings(layer.cross_attention, queries, cast(nv.Posterior, encode(run.model, texts)))
    return {"query": layer.cross_attention.latent_queries(queries).norm(dim=-1).mean().item(), **asdict(found)}


if __name__ == "__main__":
    measure_runs(measure, __doc__)
