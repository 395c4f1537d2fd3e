"""A page with two small models, served on loopback."""

import socket
from collections.abc import Iterator

import pytest

from open_nvib.app import make_app, serve
from open_nvib.store.settings import ModelSettings, OptimiserSettings, TrainConfig, WatchSettings
from open_nvib.text.training.train import train
from open_nvib.text.using.run import Run, load_run


@pytest.fixture(scope="session")
def runs(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """An NVAE that reconstructs, and a VTS and a VTP that hardly learned anything."""
    folder = tmp_path_factory.mktemp("others")
    found = {"nvae": trained}
    for kind in ("vts", "vtp"):
        config = TrainConfig(
            data=trained.config["data"],
            model=ModelSettings(bottleneck=kind, d_model=16, ffn_size=16, max_positions=64),
            optimiser=OptimiserSettings(steps=2, batch_size=8),
            watch=WatchSettings(evaluate_every=2, bleu_sentences=2, evaluate_sentences=4),
        )
        train(config, folder / kind)
        found[kind] = load_run(folder / kind)
    return found


@pytest.fixture(scope="session")
def address(runs: dict[str, Run]) -> Iterator[str]:
    """Where the page is served."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    blocks = make_app(runs)
    yield serve(blocks, port=port, wait=False)
    blocks.close()
