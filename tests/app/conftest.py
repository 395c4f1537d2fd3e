"""A page with small models, served on loopback."""

import gc
import socket
import warnings
from collections.abc import Iterator
from dataclasses import replace

import gradio as gr
import pytest

from open_nvib.app import make_app
from open_nvib.app.page import serving
from open_nvib.store.files import find_config, read_mapping
from open_nvib.store.settings import ModelSettings, OptimiserSettings, Schedule, TrainConfig, WatchSettings, settings_of
from open_nvib.text.training.train import train
from open_nvib.text.using.run import Run, load_run

RECIPE = "configs/small/nvae-share.yaml"
STEPS = 400


def shortened(schedule: Schedule, steps: int) -> Schedule:
    """The same ramp over STEPS instead of `steps`."""
    begin, end = (step * STEPS // steps for step in (schedule.from_step, schedule.to_step))
    return replace(schedule, from_step=begin, to_step=end)


def small_recipe(data: str) -> TrainConfig:
    """The shipped recipe with its own loss, in fewer steps and a smaller size."""
    recipe = settings_of(TrainConfig, read_mapping(find_config(RECIPE)), where=RECIPE)
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
    """The recipe, an NVAE of the paper that drops vectors at a small Δ, a VTS, a VTP, one for any number, and gates."""
    folder, data = tmp_path_factory.mktemp("others"), trained.config.data

    def made(name: str, config: TrainConfig) -> Run:
        train(config, folder / name)
        return load_run(folder / name)

    many = tiny("vts", data)
    any_number = replace(
        many, model=replace(many.model, stride_pooling=True), loss=replace(many.loss, shares="log_uniform")
    )
    gates = tiny("nvae", data)
    gates = replace(gates, model=replace(gates.model, alpha_activation="gate"))
    others = {"vts": tiny("vts", data), "vtp": tiny("vtp", data), "any": any_number, "gates": gates}
    return {
        "nvae": made("nvae", small_recipe(data)),
        "paper": trained,
        **{name: made(name, config) for name, config in others.items()},
    }


@pytest.fixture(autouse=True)
def no_event_loops_left() -> Iterator[None]:
    """Gradio leaves event loops open. Their warnings come here, and not as errors inside an import (CPython 3.11)."""
    yield
    collect_event_loops()


def collect_event_loops() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def app_blocks(runs: dict[str, Run]) -> gr.Blocks:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        blocks = make_app(runs)
    collect_event_loops()
    return blocks


@pytest.fixture(scope="session")
def address(app_blocks: gr.Blocks) -> Iterator[str]:
    """Where the page is served."""
    with serving(app_blocks, host="127.0.0.1", port=free_port()) as served:
        collect_event_loops()
        yield served
    collect_event_loops()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
