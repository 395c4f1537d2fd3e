"""How the mean of a latent and samples of it differ in what the decoder attends to.

python -m tools.measure_readings RUN [RUN ...] --output docs/results/table/readings.json

Of twenty validation sentences of 15 tokens: the length of the queries in the space of the latent, and what
`open_nvib.compare_readings` says of the first decoder layer.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch

import open_nvib as nv
from open_nvib.text import load_prepared, load_run
from open_nvib.text.model.decoding import encode

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="runs of an experiment, ROW/SEED/run")
    parser.add_argument("--output", type=Path, required=True, help="the .json to write")
    given = parser.parse_args()
    found = {f"{path.parents[1].name} {path.parent.name}": measure(path) for path in given.runs}
    given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
