"""A page with small models, served on loopback."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import gradio as gr
import pytest

from open_nvib.app import make_app, serve
from open_nvib.store.settings import (
    ModelSettings,
    OptimiserSettings,
    Schedule,
    TrainConfig,
    WatchSettings,
    packaged_config,
)
from open_nvib.store.yaml_file import read_mapping, settings_of
from open_nvib.text.training.train import train
from open_nvib.text.using.run import Run, load_run

RECIPE = "configs/small/nvae.yaml"
STEPS = 400


def shortened(schedule: Schedule, steps: int) -> Schedule:
    """The same ramp over STEPS instead of `steps`."""
    begin, end = (step * STEPS // steps for step in (schedule.from_step, schedule.to_step))
    return replace(schedule, from_step=begin, to_step=end)


def small_recipe(data: str) -> TrainConfig:
    """The shipped recipe with its own loss, in fewer steps and a smaller size."""
    file = packaged_config(RECIPE)
    assert file is not None
    recipe = settings_of(TrainConfig, read_mapping(file), where=RECIPE)
    loss, steps = recipe.loss, recipe.optimiser.steps
    assert isinstance(loss.lambda_g, Schedule)
    assert isinstance(loss.alpha_contrast, Schedule)
    assert steps is not None
    return replace(
        recipe,
        data=data,
        model=replace(recipe.model, d_model=48, ffn_size=48, max_positions=64),
        loss=replace(
            loss, lambda_g=shortened(loss.lambda_g, steps), alpha_contrast=shortened(loss.alpha_contrast, steps)
        ),
        optimiser=replace(recipe.optimiser, steps=STEPS, batch_size=24, learning_rate=5e-3, warmup_steps=20),
        watch=replace(recipe.watch, evaluate_every=STEPS, bleu_sentences=4),
    )


def tiny(kind: str, data: str) -> TrainConfig:
    """A model that hardly learned anything."""
    return TrainConfig(
        data=data,
        model=ModelSettings(bottleneck=kind, d_model=16, ffn_size=16, max_positions=64),  # pyright: ignore[reportArgumentType]
        optimiser=OptimiserSettings(steps=2, batch_size=8),
        watch=WatchSettings(evaluate_every=2, bleu_sentences=2, evaluate_sentences=4),
    )


@pytest.fixture(scope="session")
def runs(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The recipe, an NVAE of the paper that drops vectors and has a small Δ, and a VTS and a VTP."""
    folder, data = tmp_path_factory.mktemp("others"), trained.config.data

    def made(name: str, config: TrainConfig) -> Run:
        train(config, folder / name)
        return load_run(folder / name)

    recipe = made("nvae", small_recipe(data))
    return {"nvae": recipe, "paper": trained, **{kind: made(kind, tiny(kind, data)) for kind in ("vts", "vtp")}}


@pytest.fixture(scope="session")
def app_blocks(runs: dict[str, Run]) -> gr.Blocks:
    return make_app(runs)


@pytest.fixture(scope="session")
def address(app_blocks: gr.Blocks) -> Iterator[str]:
    """Where the page is served."""
    yield serve(app_blocks, port=free_port(), wait=False)
    app_blocks.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
