"""A small model, trained once for all tests that use one. It imports text inside: the core's tests do without."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from open_nvib.text.using.run import Run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> "Run":
    """A small NVAE that reconstructs most of the sentences it was trained on."""
    from small_text import make_sentences, prepare_in

    from open_nvib.store.settings import LossSettings, ModelSettings, OptimiserSettings, TrainConfig, WatchSettings
    from open_nvib.text.training.train import train
    from open_nvib.text.using.run import load_run

    folder = tmp_path_factory.mktemp("trained")
    prepare_in(folder, make_sentences(60, seed=1))
    config = TrainConfig(
        data=str(folder / "data"),
        model=ModelSettings(d_model=48, ffn_size=48, max_positions=64, dropout=0.0),
        loss=LossSettings(lambda_g=0.001, delta=0.3),
        optimiser=OptimiserSettings(
            steps=400,
            batch_size=24,
            learning_rate=5e-3,
            schedule="warmup_stable_decay",
            warmup_steps=20,
            decay_share=0.3,
            clip=1.0,
        ),
        watch=WatchSettings(evaluate_every=400, bleu_sentences=4),
    )
    train(config, folder / "run")
    return load_run(folder / "run")


@pytest.fixture(scope="session")
def known(trained: "Run") -> list[str]:
    """The sentences it was trained on."""
    from open_nvib.text.data import load_prepared

    texts = load_prepared(trained.config.data).split("short", "train")["text"]
    return [text.lower() for text in texts]
