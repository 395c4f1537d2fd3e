"""Fine-tuning of converted models: samples, the KL, and the Trainer."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import KINDS, ROTARY, calibration, distance, inputs, outputs, tiny
from transformers import TrainingArguments

from open_nvib import gaussian_kl
from open_nvib.pretrained import NVIBTrainer, convert
from open_nvib.pretrained.attention import find_projection, nvibs
from open_nvib.pretrained.families import find_attentions
from open_nvib.pretrained.measures import with_decoder_mask


@pytest.fixture(scope="module", params=[family for family in KINDS if family not in ROTARY])
def converted(request):
    model = tiny(request.param)
    return convert(model, calibration(model), tau_alpha=1.0, tau_sigma=0.1)


@pytest.fixture(scope="module")
def converted_bert():
    model = tiny("bert")
    return convert(model, calibration(model), tau_alpha=1.0, tau_sigma=0.2)


def test_training_samples_and_evaluation_does_not(converted):
    for module in converted.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    batch = inputs(converted, 0)
    converted.eval()
    assert torch.equal(outputs(converted, batch), outputs(converted, batch))
    converted.train()
    assert distance(outputs(converted, batch), outputs(converted, batch)) > 1e-3
    converted.set_tau(sigma=0.0)  # no noise: training is that of the mean
    assert torch.equal(outputs(converted, batch), outputs(converted, batch))
    converted.set_tau(sigma=0.1)


def test_gradients_of_loss_and_kl_reach_every_parameter(converted):
    converted.train()
    converted.zero_grad()
    found = converted(**inputs(converted, 0))
    result = found.last_hidden_state if "last_hidden_state" in found else found.logits
    (result.float().log_softmax(-1)[..., 3].mean() + converted.nvib_kl()).backward()
    for name, nvib in nvibs(converted):
        for parameter in nvib.parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all()
            assert parameter.grad.abs().sum() > 0
    for _, attention, _ in find_attentions(converted):
        gradient = find_projection(attention, "key").weight.grad
        assert gradient is not None
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0


def test_the_kl_is_that_of_real_tokens():
    """Padding changes nothing, and the Gaussian part is a sum over tokens that is written out here."""
    model = tiny("bert")
    converted = convert(model, calibration(model), tau_alpha=0.3, tau_sigma=0.2)
    batch = inputs(model, 0)
    converted(**batch)
    padded = converted.layer_kl()
    row = {name: x[2:3, :9] for name, x in batch.items()}  # 9 real tokens
    converted(**row)
    for name, kl in converted.layer_kl().items():
        torch.testing.assert_close(padded[name].gaussian[2:3], kl.gaussian, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(padded[name].dirichlet[2:3], kl.dirichlet, rtol=1e-4, atol=1e-4)
    name, nvib = nvibs(converted)[0]
    x = converted.bert.embeddings(row["input_ids"])
    prior = {"prior_mu": nvib.prior_mu, "prior_log_sigma": nvib.prior_log_sigma}
    each = gaussian_kl(x, nvib.log_sigma.expand_as(x), **prior)[0]
    alpha = nvib.log_alpha(x)[0].exp()
    expected = 10 * (alpha * each).sum() / (alpha.sum() + 1)
    torch.testing.assert_close(converted.layer_kl()[name].gaussian[0], expected, rtol=1e-4, atol=1e-4)


def test_the_kl_is_averaged_over_attentions_and_texts():
    model = tiny("marian")
    converted = convert(model, calibration(model), tau_alpha=0.3, tau_sigma=0.2)
    batch = inputs(model, 0)
    converted(**batch)
    kls = converted.layer_kl()
    first, *_ = kls
    n, p = batch["attention_mask"].sum(-1), 24
    expected = (2 * kls[first].gaussian / (n * p) + 3 * kls[first].dirichlet / n).mean()
    weights = [1.0] + [0.0] * (len(kls) - 1)
    found = converted.nvib_kl(lambda_g=2.0, lambda_d=3.0, layer_weights=weights)
    torch.testing.assert_close(found, expected)
    alone = [converted.nvib_kl(layer_weights=[float(i == j) for j in range(6)]) for i in range(6)]
    torch.testing.assert_close(converted.nvib_kl(), torch.stack(alone).mean())


def test_kept_falls_with_the_dial():
    model = tiny("bert")
    converted = convert(model, calibration(model))
    shares = []
    for tau in (math.inf, 10.0, 0.0, -10.0):
        converted.set_tau(alpha=tau)
        converted(**inputs(model, 0))
        found = converted.kept()
        assert set(found) == {name for name, _ in nvibs(converted)}
        shares.append(torch.stack(list(found.values())).mean().item())
    assert shares[0] == shares[1] == 1.0
    assert shares[3] == 0.0
    assert 0 < shares[2] < 1


def test_the_trainer_adds_the_kl(tmp_path):
    model = tiny("bert", kind="BertForSequenceClassification")
    converted = convert(model, calibration(model), tau_alpha=1.0, tau_sigma=0.2)
    rows = [
        {"input_ids": ids, "attention_mask": mask, "labels": ids[0] % 2}
        for seed in range(4)
        for ids, mask in zip(*inputs(model, seed).values(), strict=True)
    ]
    settings = {"per_device_train_batch_size": 4, "max_steps": 12, "logging_steps": 6, "use_cpu": True}
    settings |= {"report_to": [], "save_strategy": "no", "learning_rate": 3e-3, "gradient_accumulation_steps": 2}
    arguments = TrainingArguments(str(tmp_path), **settings)
    trainer = NVIBTrainer(model=converted, args=arguments, train_dataset=rows, lambda_g=1.0, lambda_d=1.0)
    before = {name: nvib.to_log_alpha.weight.clone() for name, nvib in nvibs(converted)}
    trainer.train()
    logged = [entry["nvib_kl"] for entry in trainer.state.log_history if "nvib_kl" in entry]
    assert logged[-1] < logged[0]
    assert all(not torch.equal(before[name], nvib.to_log_alpha.weight) for name, nvib in nvibs(converted))
    trainer.save_model(str(tmp_path / "saved"))
    again = type(model).from_pretrained(tmp_path / "saved")
    assert distance(outputs_of(converted, rows), outputs_of(again, rows)) < 1e-5
    with pytest.raises(ValueError, match="not converted"):
        NVIBTrainer(model=model, args=arguments, train_dataset=rows)


def no_loss(outputs, labels, num_items_in_batch=None):
    return 0 * outputs.logits.sum()


@pytest.mark.parametrize("scaled", [None, False, "function"])
def test_the_weight_of_the_kl_does_not_depend_on_accumulation(tmp_path, scaled):
    """16 rows in one batch or in four: the logged loss is the same, since the KL is most of it."""
    model = tiny("bert", kind="BertForSequenceClassification")
    row = inputs(model, 0)["input_ids"][0]
    rows = [{"input_ids": row, "labels": row[0] % 2} for _ in range(16)]  # alike: batches differ in the noise alone
    losses = []
    for steps in (1, 4):
        converted = convert(model, calibration(model), tau_alpha=1.0, tau_sigma=0.2)
        settings: dict[str, Any] = {
            "per_device_train_batch_size": 16 // steps,
            "gradient_accumulation_steps": steps,
            "max_steps": 1,
        }
        settings |= {"logging_steps": 1, "report_to": [], "save_strategy": "no", "use_cpu": True}
        options: dict[str, Any] = {"compute_loss_func": no_loss} if scaled == "function" else {}
        trainer = NVIBTrainer(
            model=converted,
            args=TrainingArguments(str(tmp_path), **settings),
            train_dataset=rows,
            lambda_g=100.0,
            lambda_d=100.0,
            **options,
        )
        if scaled is False:
            trainer.loss_is_scaled_for_ga = False
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_padding_of_labels_is_not_real(tmp_path):
    model = tiny("t5")
    converted = convert(model, calibration(model), tau_alpha=0.3, tau_sigma=0.2).eval()
    ids, labels = torch.randint(5, 90, (1, 9)), torch.randint(5, 90, (1, 4))
    padded = torch.cat([labels, torch.full((1, 12), -100)], 1)
    kls = []
    for each in (labels, padded):
        converted(**with_decoder_mask(converted, {"input_ids": ids, "labels": each}))
        kls.append(torch.stack([kl.gaussian for kl in converted.layer_kl().values()]))
    torch.testing.assert_close(*kls)


def test_a_kl_that_checkpointing_cuts_off_is_refused():
    model = tiny("gpt2")
    converted = convert(model, calibration(model), tau_alpha=1.0, tau_sigma=0.2).train()
    converted.gradient_checkpointing_enable({"use_reentrant": True})
    converted(**inputs(model, 0))
    with pytest.raises(ValueError, match="use_reentrant"):
        converted.nvib_kl()
    converted.gradient_checkpointing_enable({"use_reentrant": False})
    converted(**inputs(model, 0))
    assert converted.nvib_kl().requires_grad


@torch.no_grad()
def outputs_of(model, rows):
    return model.eval()(**{name: torch.stack([row[name] for row in rows[:4]]) for name in rows[0]}).logits


def test_a_kl_that_does_not_exist_is_one_clear_line():
    model = tiny("bert")
    converted = convert(model, calibration(model))
    with pytest.raises(ValueError, match="has seen no input"):
        converted.nvib_kl()
    converted(**inputs(model, 0))
    with pytest.raises(ValueError, match="tau_sigma is 0"):
        converted.nvib_kl()
    converted.set_tau(alpha=1.0, sigma=0.1)
    with pytest.raises(ValueError, match="layer_weights"):
        converted.nvib_kl(layer_weights=[1.0])


COMPILED = """
import torch

model = tiny("bert")
converted = convert(model, calibration(model), tau_alpha=1.0, tau_sigma=0.2)
expected = []
for seed in range(2):
    converted(**inputs(model, seed))
    expected.append((converted.nvib_kl(), converted.kept()))
converted(**inputs(model, 0))
torch.compile(converted, backend="eager")(**inputs(model, 1))
torch.testing.assert_close((converted.nvib_kl(), converted.kept()), expected[1])
converted.nvib_kl().backward()
assert all(module.to_log_alpha.weight.grad.any() for module in converted.modules() if hasattr(module, "to_log_alpha"))
converted(**inputs(model, 0))
torch.testing.assert_close((converted.nvib_kl(), converted.kept()), expected[0])
"""


@pytest.mark.slow
def test_the_kl_of_a_compiled_call_is_of_that_call():
    """In a process without the type checks of the tests, which torch.compile cannot trace."""
    folder = Path(__file__).parent
    result = subprocess.run([sys.executable, "-c", COMPILED], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


WRONG_WEIGHTS: list[dict[str, Any]] = [
    {"lambda_g": math.nan},
    {"lambda_g": -1.0},
    {"lambda_d": math.inf},
    {"layer_weights": [1.0, -0.5]},
    {"layer_weights": [1.0, math.nan]},
    {"layer_weights": [0.0, 0.0]},
    {"layer_weights": [1.0]},
]


@pytest.mark.parametrize("weights", WRONG_WEIGHTS, ids=str)
def test_wrong_weights_of_the_kl_are_refused_before_training(weights, converted_bert, tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises((ValueError, TypeError), match=f"NVIBTrainer: {next(iter(weights))}"):
        NVIBTrainer(model=converted_bert, args=arguments, **weights)
