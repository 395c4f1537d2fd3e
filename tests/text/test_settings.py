"""Schedules, the comparison of settings, and that an option of the model is written down once."""

import math
import subprocess
import sys
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from test_model import make_model

from open_nvib.store.files import InputError, from_builtins
from open_nvib.store.settings import (
    BOTTLENECKS,
    GATE_OPTIONS,
    USED_BY,
    LossSettings,
    ModelSettings,
    Schedule,
    ScheduledValues,
    TrainConfig,
    differences,
)
from open_nvib.text.model.configuration import TextAutoencoderConfig

# Schedules


def test_linear_is_constant_then_a_ramp_then_constant():
    schedule = Schedule(start=1.0, end=0.2, from_step=100, to_step=300)
    values = {0: 1.0, 100: 1.0, 150: 0.8, 200: 0.6, 300: 0.2, 10_000: 0.2}
    assert {step: schedule.at(step) for step in values} == pytest.approx(values)


def test_cyclical_repeats_a_ramp_over_half_of_each_period():
    schedule = Schedule(start=0.0, end=4.0, kind="cyclical", from_step=10, period=8)
    one_cycle = [0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    assert [schedule.at(step) for step in range(10)] == [0.0] * 10
    assert [schedule.at(step) for step in range(10, 34)] == pytest.approx(3 * one_cycle)


def test_a_number_is_a_constant_schedule():
    loss = LossSettings(lambda_g=2, delta=Schedule(start=1.0, end=3.0, to_step=4))
    assert [loss.at(step).lambda_g for step in (0, 7)] == [2.0, 2.0]
    assert loss.at_end().lambda_g == 2.0
    assert [loss.at(step).delta for step in (0, 1, 9)] == pytest.approx([1.0, 1.5, 3.0])
    assert loss.at_end().delta == 3.0
    assert loss.at(1).keep_share is None


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"from_step": 5, "to_step": 5}, "to_step = 5"),
        ({"from_step": 9, "to_step": 5}, "from_step = 9"),
        ({"kind": "cyclical", "period": 1}, "period"),
        ({"start": math.inf}, "start"),
        ({"end": math.nan}, "end"),
    ],
)
def test_schedule_without_room_for_a_ramp_is_refused(options, what):
    with pytest.raises(ValueError, match=what):
        Schedule(**{"start": 0.0, "end": 1.0} | options)


# Comparison


def test_settings_that_differ_are_named():
    config = TrainConfig()
    other = replace(config, seed=3, model=replace(config.model, kappa=2), loss=LossSettings(delta=Schedule(1.0, 0.5)))
    assert differences(config, other) == ["loss.delta", "model.kappa", "seed"]
    assert differences(from_builtins(asdict(other), TrainConfig), other) == []


def test_a_setting_that_is_newer_than_a_record_had_its_default():
    known = asdict(TrainConfig())
    del known["model"]["kappa"], known["loss"]
    read = from_builtins(known, TrainConfig)
    assert differences(read, TrainConfig()) == []
    assert differences(read, TrainConfig(model=ModelSettings(kappa=2))) == ["model.kappa"]


def test_options_that_a_kind_does_not_use_make_no_difference():
    plain, other = (
        TrainConfig(model=ModelSettings(bottleneck="vts"), loss=LossSettings(delta=delta)) for delta in (1.0, 3.0)
    )
    assert differences(plain, other) == []
    assert differences(TrainConfig(), TrainConfig(loss=LossSettings(delta=3.0))) == ["loss.delta"]


# An option of the model is written down once


def test_every_option_is_in_the_configuration_with_its_default():
    defaults = {option.name: option.default for option in fields(TextAutoencoderConfig)}
    for option in [*fields(ModelSettings), *fields(LossSettings)]:
        assert defaults[option.name] == option.default
        assert TextAutoencoderConfig.__doc__ is not None
        assert f"{option.name}:" not in TextAutoencoderConfig.__doc__
    assert [option.name for option in fields(ScheduledValues)] == [option.name for option in fields(LossSettings)]


@pytest.mark.parametrize(
    ("name", "value"), [("dropout", 1.5), ("stride", 1), ("kappa", 0), ("bottleneck", "x"), ("delta", "a")]
)
def test_a_wrong_option_is_named(name, value):
    with pytest.raises((ValueError, StrictDataclassError), match=name):
        TextAutoencoderConfig(**{name: value})
    if name in ("dropout", "stride", "kappa"):
        with pytest.raises(ValueError, match=name):
            ModelSettings(**{name: value})


def test_nvib_has_the_options_of_the_configuration():
    options: dict[str, Any] = {"alpha0_p": 2.0, "delta": 3.0, "alpha_contrast": 0.5, "keep_share": 0.25}
    layer = make_model(**options, alpha_activation="softplus", alpha_unit="delta").encoder.bottleneck.nvib
    assert {name: getattr(layer, name).item() for name in options} == options
    assert (layer.alpha_activation, layer.alpha_unit) == ("softplus", "delta")


# An option of one kind of model, given to another, is refused by name

OTHER_VALUES = {
    "pooling": "max",
    "stride": 0.25,
    "stride_pooling": True,
    "alpha0_p": 2.0,
    "alpha_activation": "softplus",
    "gate_share": 0.25,
    "gate_pooling": False,
    "bound_queries": True,
    "alpha_unit": "delta",
    "gamma_method": "implicit",
    "kappa": 2,
    "kl_form": "exact",
    "reading": "points",
    "lambda_g": 0.5,
    "lambda_d": 0.5,
    "delta": 0.5,
    "alpha_contrast": 0.5,
    "keep_share": 0.5,
    "shares": "log_uniform",
    "smallest_share": 0.5,
}


def test_every_option_of_a_kind_says_which_kinds_use_it():
    """Options of all kinds are those of sizes, layers and embeddings."""
    options = {option.name for settings in (ModelSettings, LossSettings) for option in fields(settings)}
    sizes = {"d_model", "latent_size", "encoder_layers", "decoder_layers", "heads", "ffn_size", "dropout"}
    of_all = sizes | {"bottleneck", "pretrained", "positions", "max_positions", "tie_word_embeddings"}
    assert options - of_all == set(USED_BY) == set(OTHER_VALUES)


@pytest.mark.parametrize("kind", BOTTLENECKS)
@pytest.mark.parametrize("name", OTHER_VALUES)
def test_an_option_is_used_or_refused(name, kind):
    together = {"keep_share": 0.5} if kind == "nvae" else {"stride_pooling": True} if kind == "vts" else {}
    given: dict[str, Any] = {**together, "bottleneck": kind, name: OTHER_VALUES[name]}
    if name == "smallest_share" and together:
        given["shares"] = "log_uniform"
    if name in GATE_OPTIONS and kind == "nvae":
        given = {"bottleneck": kind, "alpha_activation": "gate", name: OTHER_VALUES[name]}
    groups = {"model": ModelSettings, "loss": LossSettings}
    made: dict[str, Any] = {
        group: settings(**{option.name: given[option.name] for option in fields(settings) if option.name in given})
        for group, settings in groups.items()
    }
    if kind in USED_BY[name]:
        TrainConfig(**made).check_used()
    else:
        with pytest.raises(InputError, match=rf"\.{name} .*{kind}"):
            TrainConfig(**made).check_used()


@pytest.mark.parametrize("name", GATE_OPTIONS)
def test_an_option_of_gates_needs_gates(name):
    with pytest.raises(InputError, match=name):
        TrainConfig(model=ModelSettings(**{name: OTHER_VALUES[name]})).check_used()
    both = TrainConfig(model=ModelSettings(alpha_activation="gate"), loss=LossSettings(keep_share=0.5))
    with pytest.raises(InputError, match=r"keep_share .* gate"):
        both.check_used()


@pytest.mark.parametrize("model", [ModelSettings(alpha_activation="gate"), ModelSettings(alpha_unit="delta")])
@pytest.mark.parametrize("delta", [0.0, Schedule(0.0, 1.0)])
def test_counts_in_units_of_delta_need_one(model, delta):
    with pytest.raises(InputError, match=r"loss\.delta is 0"):
        TrainConfig(model=model, loss=LossSettings(delta=delta)).check_used()


@pytest.mark.parametrize(("kind", "what"), [("nvae", "keep_share"), ("vts", "stride_pooling")])
def test_shares_need_a_model_that_takes_any_number(kind, what):
    config = TrainConfig(model=ModelSettings(bottleneck=kind), loss=LossSettings(shares="log_uniform"))
    with pytest.raises(InputError, match=what):
        config.check_used()


def test_ramps_that_end_after_the_training_are_named():
    loss = LossSettings(lambda_g=Schedule(0.0, 1.0, from_step=400, to_step=800), delta=Schedule(1.0, 0.5, to_step=100))
    config = TrainConfig(loss=loss)
    assert [line.split()[0] for line in config.unfinished_ramps(110)] == ["loss.lambda_g"]
    assert config.unfinished_ramps(800) == []


def test_settings_are_read_without_the_engines():
    code = (
        "import sys, open_nvib.store.runs; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
