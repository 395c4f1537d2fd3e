"""Converted models: the same as the original at the identity, and denoising attention of the core elsewhere."""

import copy
import itertools
import json
import math
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import jaxtyping
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import (
    FAMILIES,
    GENERATING,
    KINDS,
    ROTARY,
    calibration,
    distance,
    inputs,
    outputs,
    tiny,
    word_texts,
    word_tokenizer,
)
from torch.distributions import Normal
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    EncoderDecoderModel,
    OPTConfig,
    OPTModel,
)
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from open_nvib import DenoisingAttention, ImpulseMixture
from open_nvib.pretrained import NVIBConfig, convert, open_model, set_tau
from open_nvib.pretrained import attention as pretrained_attention
from open_nvib.pretrained.attention import nvibs
from open_nvib.pretrained.families import PROJECTIONS, find_attentions
from open_nvib.pretrained.measures import kept, nvib_kl
from open_nvib.store.files import InputError


@pytest.fixture(autouse=True)
def _short_generation(monkeypatch):
    monkeypatch.setattr(import_module("open_nvib.pretrained.convert"), "MAX_NEW_TOKENS", 9)  # not the function


@pytest.fixture(scope="module", params=KINDS)
def pair(request):
    model = tiny(request.param)
    return model, convert(model, calibration(model))


@pytest.fixture(scope="module")
def bert():
    model = tiny("bert")
    return model, convert(model, calibration(model))


def sigma_of(model) -> float:
    """A τ_σ that the model can have: rotary keys have none."""
    return 0.3 if model.config.model_type not in ROTARY else 0.0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_starts_as_the_original(family):
    model = tiny(family)
    converted, batch = convert(model, calibration(model)), inputs(model, 0)
    assert type(converted) is type(model)
    assert distance(outputs(model, batch), outputs(converted, batch)) < 1e-3
    converted.set_tau(alpha=math.inf)
    assert distance(outputs(model, batch), outputs(converted, batch)) < 1e-5


def test_dials_move_the_model_away_and_back(pair):
    model, converted = pair
    batch = inputs(model, 0)
    distances = []
    noise = sigma_of(model)
    for alpha, sigma in ((math.inf, 0.0), (5.0, 0.0), (0.0, 0.0), (0.0, noise), (math.inf, noise), (math.inf, 0.0)):
        converted.set_tau(alpha=alpha, sigma=sigma)
        distances.append(distance(outputs(model, batch), outputs(converted, batch)))
    assert distances[0] < 1e-5
    assert distances[0] < distances[1] < distances[2]
    assert min(distances[3:5] if noise else distances[3:4]) > 1e-3
    assert distances[-1] < 1e-5


def test_the_original_stays_as_it_is(pair):
    model, _ = pair
    assert not nvibs(model)
    assert not hasattr(model.config, "quantization_config")


def test_padding_changes_nothing(pair):
    model, converted = pair
    converted.set_tau(alpha=1.0, sigma=sigma_of(model))
    batch = inputs(model, 0)
    alone = {name: x[2:3] for name, x in batch.items()}
    real = alone["attention_mask"].bool()
    cropped = {name: x if name == "decoder_input_ids" else x[real][None] for name, x in alone.items()}
    if "decoder_input_ids" not in batch and converted.can_generate():  # GPT-2 numbers padding, too
        alone["position_ids"] = (alone["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    assert distance(outputs(converted, alone), outputs(converted, cropped)) < 1e-5


@pytest.mark.parametrize("family", GENERATING)
@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_generation_is_that_of_the_original(family, options):
    model = tiny(family)
    converted = convert(model, calibration(model), tau_alpha=math.inf)
    batch = inputs(model, 0, decoder=False)
    settings = {"max_new_tokens": 9, "do_sample": False, **options}
    if "cache_implementation" in options:
        settings["disable_compile"] = True
    assert torch.equal(model.generate(**batch, **settings), converted.generate(**batch, **settings))


@pytest.mark.parametrize("family", GENERATING)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_cache_changes_nothing(family, num_beams):
    model = tiny(family)
    converted = convert(model, calibration(model), tau_alpha=1.0, tau_sigma=sigma_of(model))
    batch = inputs(model, 0, decoder=False)
    settings = {"max_new_tokens": 9, "do_sample": False, "num_beams": num_beams}
    settings |= {"output_scores": True, "return_dict_in_generate": True}
    with_cache, without = (converted.generate(**batch, **settings, use_cache=use) for use in (True, False))
    assert torch.equal(with_cache.sequences, without.sequences)
    torch.testing.assert_close(with_cache.scores[-1], without.scores[-1], atol=1e-4, rtol=1e-4)


def core_attention(attention, nvib) -> DenoisingAttention:
    """The core's attention with the weights of a converted attention of BERT, and no output projection."""
    core = DenoisingAttention(nvib.p, nvib.heads)
    with torch.no_grad():
        core.to_query.weight.copy_(attention.query.weight)
        core.to_query.bias.copy_(attention.query.bias)
        core.to_key.weight.copy_(attention.key.weight)
        core.to_value.weight.copy_(attention.value.weight)
        core.to_output.weight.copy_(torch.eye(nvib.p))
        core.to_output.bias.copy_(attention.value.bias)
    return core


@pytest.mark.parametrize("tau_alpha", [0.0, 0.7, math.inf])
@pytest.mark.parametrize("tau_sigma", [0.0, 0.4, 2.0])
def test_the_mean_is_that_of_the_core(tau_alpha, tau_sigma, bert):
    """A converted attention of BERT against `DenoisingAttention` over `IdentityNVIB.mean`, with trained α and σ."""
    model, converted = copy.deepcopy(bert)
    converted.set_tau(alpha=tau_alpha, sigma=tau_sigma)
    (_, attention, _), *_ = find_attentions(converted)
    nvib = attention.nvib
    with torch.no_grad():
        nvib.to_log_alpha.weight.normal_(std=0.5)
        nvib.log_sigma_factor.normal_(std=0.3)
    x, mask = torch.randn(5, 13, nvib.p), inputs(model, 0)["attention_mask"].bool()
    with torch.no_grad():
        found, _ = attention(x, mask[:, None, None].expand(-1, 1, 13, -1))
        expected = core_attention(attention, nvib)(x, nvib.mean(x, mask))
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_a_sample_is_that_of_the_core(monkeypatch):
    """With known draws, which are z = μ + σ and γ = α: then the mixture of the core is known, too."""
    monkeypatch.setattr(pretrained_attention, "normal_like", lambda x, _: torch.ones_like(x))
    monkeypatch.setattr(pretrained_attention, "log_gamma", lambda alpha, **_: alpha.double().log())
    model = tiny("bert")
    converted = convert(model, calibration(model), tau_alpha=0.2, tau_sigma=0.4).train()
    (_, attention, _), *_ = find_attentions(converted)
    attention.dropout.p = 0.0
    nvib = attention.nvib
    x, mask = torch.randn(5, 13, nvib.p), inputs(model, 0)["attention_mask"].bool()
    posterior = nvib.posterior(x, mask)
    mixture = ImpulseMixture(posterior.mu + posterior.log_sigma.exp(), posterior.mean().log_alpha)
    found, _ = attention(x, mask[:, None, None].expand(-1, 1, 13, -1))
    torch.testing.assert_close(found, core_attention(attention, nvib)(x, mixture), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_prior_component_of_rotary_keys_is_where_the_query_is(family):
    """One query at a time: tokens by rotated keys, the prior's component by log N(u; μ, √d + σ²), u not rotated.

    Qwen 3 norms queries and keys. The prior's component divides its keys by their root mean square over the prior,
    which is found by drawing from it here.
    """
    model = tiny(family)
    converted = convert(model, calibration(model), tau_alpha=0.3)
    (_, attention, _), *_ = find_attentions(converted)
    original = model.model.layers[0].self_attn
    nvib, d, p = attention.nvib, 10, 24
    x, positions = torch.randn(1, 7, p), torch.arange(7)[None]
    with torch.no_grad():
        nvib.to_log_alpha.weight.normal_(std=0.3)
        cos, sin = model.model.rotary_emb(x, positions)
        found, _ = attention(x, (cos, sin), None)
        q, k, v = (to(x).view(7, -1, d).transpose(0, 1) for to in (original.q_proj, original.k_proj, original.v_proj))
        w_k, w_v = (to.weight.view(2, d, p) for to in (original.k_proj, original.v_proj))
        if family == "qwen3":
            q, k = original.q_norm(q), original.k_norm(k)
            draws = nvib.prior_mu + nvib.prior_log_sigma.exp() * torch.randn(200_000, p)
            mean_square = (draws @ original.k_proj.weight.T).view(-1, 2, d).square().mean((0, 2))
            w_k = w_k * original.k_norm.weight[:, None] / mean_square.sqrt()[:, None, None]
        rotated_q, rotated_k = apply_rotary_pos_emb(q, k, cos[0], sin[0], unsqueeze_dim=0)
        variance = nvib.prior_log_sigma.exp().square()
        share = variance / (d**0.5 + variance)
        expected = torch.zeros(7, 4, d)
        for t, head in itertools.product(range(7), range(4)):
            u = q[head, t] @ w_k[head // 2]
            scores = rotated_k[head // 2, : t + 1] @ rotated_q[head, t] / d**0.5 + nvib.to_log_alpha(x)[0, : t + 1, 0]
            log_density = Normal(nvib.prior_mu, (d**0.5 + variance).sqrt()).log_prob(u).sum()
            shared = Normal(torch.zeros(p), d**0.25).log_prob(u).sum()  # what the scores of tokens leave out
            prior = log_density - shared + nvib.log_alpha0 - nvib.shift
            if original.k_proj.bias is not None:  # no part of u
                prior = prior + q[head, t] @ original.k_proj.bias.view(2, d)[head // 2] / d**0.5
            value = w_v[head // 2] @ ((1 - share) * nvib.prior_mu + share * u)
            if original.v_proj.bias is not None:
                value = value + original.v_proj.bias.view(2, d)[head // 2]
            weights = torch.cat([scores, prior.view(1)]).softmax(-1)
            assert 1e-4 < weights[-1] < 1
            expected[t, head] = weights @ torch.cat([v[head // 2, : t + 1], value[None]])
        tolerance = 1e-3 if family == "qwen3" else 1e-4
        torch.testing.assert_close(found[0], original.o_proj(expected.flatten(1)), atol=tolerance, rtol=tolerance)


def test_a_causal_query_sees_no_later_token():
    model = tiny("gpt2")
    converted = convert(model, calibration(model), tau_alpha=0.0, tau_sigma=0.5)
    ids = inputs(model, 0)["input_ids"]
    changed = torch.cat([ids[:, :8], ids[:, 8:].flip(0)], 1)
    with torch.no_grad():
        a, b = (converted(input_ids=x).logits for x in (ids, changed))
    torch.testing.assert_close(a[:, :8], b[:, :8])
    assert not torch.allclose(a[:, 8:], b[:, 8:])


@pytest.mark.parametrize("family", ["minilm", "t5", "gpt2", "qwen3"])
def test_a_saved_model_opens_as_it_was(family, tmp_path):
    model = tiny(family)
    where = ("encoder", "decoder")
    converted = convert(model, calibration(model), tau_alpha=0.5, tau_sigma=sigma_of(model), where=where)
    if family not in ("gpt2", "qwen3"):
        converted.set_tau(alpha=math.inf, where=("encoder",))
    with torch.no_grad():
        nvibs(converted)[0][1].to_log_alpha.weight.normal_()
    converted.save_pretrained(tmp_path)
    kinds: dict = {"minilm": AutoModel, "gpt2": AutoModelForCausalLM, "qwen3": AutoModelForCausalLM}
    auto = kinds.get(family, AutoModelForSeq2SeqLM)
    batch = inputs(model, 0)
    for kind in (auto, type(model)):
        again = kind.from_pretrained(tmp_path)
        assert type(again) is type(model)
        torch.testing.assert_close(outputs(again, batch), outputs(converted, batch))
        assert again.config.quantization_config.sections == converted.config.quantization_config.sections
        assert not hasattr(again, "is_quantized")
        assert not hasattr(again, "hf_quantizer")
    again.set_tau(alpha=math.inf, sigma=0.0)
    again.save_pretrained(tmp_path / "again")
    assert "Infinity" not in (tmp_path / "again" / "config.json").read_text()
    with torch.no_grad():
        nvibs(again)[0][1].to_log_alpha.weight.zero_()
    assert distance(outputs(model, batch), outputs(again, batch)) < 1e-5


def test_a_head_of_its_own_survives(tmp_path):
    """T5 1.1 and flan-T5 have a head that is not the embedding: transformers ties it unless a file has both."""
    model = tiny("t5", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    state = {name: values.clone() for name, values in model.state_dict().items() if "embed_tokens" not in name}
    save_file(state | {"lm_head.weight": torch.randn_like(state["lm_head.weight"])}, tmp_path / "model.safetensors")
    model.config.save_pretrained(tmp_path)
    model = type(model).from_pretrained(tmp_path)
    assert not torch.equal(model.lm_head.weight, model.shared.weight)
    converted, batch = convert(model, calibration(model)), inputs(model, 0)
    converted.save_pretrained(tmp_path / "converted")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "converted")
    for each in (converted, again):
        each.set_tau(alpha=math.inf)
        assert distance(outputs(model, batch), outputs(each, batch)) < 1e-5


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_threads_do_not_disturb_each_other(family):
    model = tiny(family)
    converted = convert(model, calibration(model), tau_alpha=0.5)
    batches = [{"input_ids": inputs(model, seed)["input_ids"][:, : 13 - seed]} for seed in range(2)]
    with torch.no_grad():
        expected = [converted(**batch).logits for batch in batches]

        def far(index: int) -> float:
            return max(distance(expected[index], converted(**batches[index]).logits) for _ in range(15))

        with ThreadPoolExecutor(2) as threads:
            assert max(threads.map(torch.no_grad()(far), range(2))) < 1e-6


def test_what_wraps_a_projection_is_not_lost():
    class Adapter(torch.nn.Linear):
        pass

    def hooked(attention):
        attention.value.register_forward_hook(lambda module, inputs, output: 2 * output)

    def adapted(attention):
        attention.value.__class__ = Adapter

    for change, message in ((hooked, "value is a Linear with hooks"), (adapted, "value is a Adapter")):
        model = tiny("bert")
        change(find_attentions(model)[0][1])
        with pytest.raises(ValueError, match=message):
            convert(model, calibration(model))
    model = tiny("bert")
    model.config.quantization_config = object()
    with pytest.raises(ValueError, match="quantised"):
        convert(model, calibration(model))


def test_weights_changed_through_data_reach_the_prior_component_with_eval():
    model = tiny("bert")
    converted = convert(model, calibration(model), tau_alpha=0.0)
    batch = inputs(model, 0)
    outputs(converted, batch)
    for _, attention, _ in find_attentions(converted):
        attention.value.weight.data.mul_(0.5)
    expected = outputs(copy.deepcopy(converted), batch)
    assert distance(expected, outputs(converted.eval(), batch)) < 1e-6
    with torch.inference_mode():
        inside = convert(tiny("bert"), calibration(model), tau_alpha=0.5)
        assert inside(**batch).logits.isfinite().all()


def test_nothing_overflows_in_half_precision():
    model = tiny("gpt2")
    batch = inputs(model, 0)
    for tau_alpha in (-8.0, 1e5):
        converted = convert(model, calibration(model), tau_alpha=tau_alpha, tau_sigma=0.1).half()
        for mode in (True, False):
            assert converted.train(mode)(**batch).logits[batch["attention_mask"].bool()].isfinite().all()


def test_convert_leaves_the_tokenizer_and_every_mode_as_they_are():
    model, tokenizer = tiny("bart").train(), word_tokenizer()
    model.model.encoder.eval()
    tokenizer.pad_token, tokenizer.eos_token = None, "word5"
    converted = convert(model, word_texts(30), tokenizer=tokenizer)
    assert tokenizer.pad_token is None
    for each in (model, converted):
        assert each.training
        assert not each.model.encoder.training
        assert not each.model.encoder.layers[0].self_attn.training
        assert each.model.decoder.layers[0].encoder_attn.training
    assert not converted.model.encoder.layers[0].self_attn.nvib.training
    assert converted.model.decoder.layers[0].encoder_attn.nvib.training


def test_texts_are_cut_to_the_positions_of_the_model():
    tokenizer = word_tokenizer()
    tokenizer.model_max_length = 10**30  # what transformers has for one that does not say
    for family in ("roberta", "gpt2", "t5"):
        assert convert(tiny(family), [" ".join(["word6", "word7"] * 60), *word_texts(30)], tokenizer=tokenizer)


def test_copies_and_pickles_have_dials_of_their_own():
    model = tiny("bert")
    converted = convert(model, calibration(model))
    batch = inputs(model, 0)
    converted(**batch)
    for twin in (copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        twin.set_tau(alpha=0.0)
        assert nvibs(twin)[0][1].tau_alpha == 0.0
        assert nvibs(converted)[0][1].tau_alpha == 10.0
        assert distance(outputs(twin, batch), outputs(converted, batch)) > 1e-3


def test_changed_weights_reach_the_prior_component():
    """The prior's key and value are kept between calls while nothing changes, and made again when something does."""
    model = tiny("bert")
    converted = convert(model, calibration(model), tau_alpha=0.0)
    batch = inputs(model, 0)
    outputs(converted, batch)
    with torch.no_grad():
        for _, attention, _ in find_attentions(converted):
            attention.value.weight.mul_(0.5)
    fresh = copy.deepcopy(converted)
    torch.testing.assert_close(outputs(converted, batch), outputs(fresh, batch))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    model = tiny("marian").to(dtype)
    converted = convert(model, calibration(model), tau_alpha=math.inf)
    batch = inputs(model, 0)
    assert outputs(converted, batch).dtype == dtype
    assert distance(outputs(model, batch).double(), outputs(converted, batch).double()) < (
        0.05 if dtype == torch.bfloat16 else 1e-10
    )


def test_sections_are_converted_alone():
    model = tiny("marian")
    for section in ("encoder", "cross", "decoder"):
        converted = convert(model, calibration(model), where=(section,))
        assert {nvib.section for _, nvib in nvibs(converted)} == {section}
        assert len(nvibs(converted)) == 2
        assert distance(outputs(model, inputs(model, 0)), outputs(converted, inputs(model, 0))) < 1e-3


def test_decoder_inputs_are_generated_if_they_are_missing():
    model = tiny("t5")
    converted = convert(model, [inputs(model, seed, decoder=False) for seed in range(4)])
    assert distance(outputs(model, inputs(model, 9)), outputs(converted, inputs(model, 9))) < 1e-3


@pytest.fixture
def no_type_checks():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_bad_input_is_one_clear_line(no_type_checks):
    model = tiny("bert")
    data = calibration(model)
    converted = convert(model, data)
    llama = tiny("llama")
    rotary = convert(llama, calibration(llama))
    t5, ids = tiny("t5"), torch.arange(5, 65).view(20, 3).repeat(1, 4)
    opt = OPTModel(OPTConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, ffn_dim=8))
    wrong = {
        "is a converted BertForMaskedLM": lambda: convert(converted, data),
        "families": lambda: convert(opt, data),
        "tau_sigma is 0.1, but .* rotary": lambda: convert(llama, data, tau_sigma=0.1),
        "tau_sigma is 0.2, but .* rotary": lambda: rotary.set_tau(alpha=1.0, sigma=0.2),
        "where is .*encodr": lambda: convert(model, data, where=("encodr",)),
        "has encoder alone": lambda: convert(model, data, where=("cross",)),
        "tokens, expected at least": lambda: convert(model, data[:1]),
        "has texts": lambda: convert(model, ["a text"]),
        "is one text or one batch": lambda: convert(model, data[0]),
        "where is 'encoder'": lambda: convert(model, data, where="encoder"),
        "threshold": lambda: converted.kept(threshold=0.0),
        "tau_alpha": lambda: converted.set_tau(alpha=math.nan),
        "tau_sigma": lambda: converted.set_tau(alpha=1.0, sigma=-1.0),
        "not converted": lambda: set_tau(model, alpha=1.0),
        "with some of encoder": lambda: converted.set_tau(alpha=1.0, where=("encoder", "cross")),
        "kept: .* not converted": lambda: kept(model),
        "nvib_kl|layer_kl: .* not converted": lambda: nvib_kl(model),
        "batch_size is 0": lambda: convert(model, data, batch_size=0),
        "model is a str": lambda: convert("bert", data),  # pyright: ignore[reportArgumentType]
        "calibration is a NoneType": lambda: convert(model, None),  # pyright: ignore[reportArgumentType]
        "calibration_item is a Tensor": lambda: convert(model, [data[0]["input_ids"]]),  # pyright: ignore[reportArgumentType]
        "input_ids has shape": lambda: convert(model, [{"input_ids": torch.arange(200)}]),
        "has the token 97": lambda: convert(model, [{"input_ids": torch.arange(90, 98)[None]}]),
        "the same text again": lambda: convert(model, [{"input_ids": torch.full((200, 1), 7)}]),
        "has 20 tokens": lambda: convert(t5, [{"input_ids": ids, "decoder_input_ids": ids[:, :1]}]),
        "alpha is a str": lambda: converted.set_tau(alpha="1"),
    }
    for message, call in wrong.items():
        with pytest.raises((ValueError, TypeError), match=message) as error:
            call()
        assert "\n" not in str(error.value)
    assert {nvib.tau_alpha for _, nvib in [*nvibs(rotary), *nvibs(converted)]} == {10.0}  # a mistake changes nothing


def test_every_family_is_one_of_this_version_of_transformers():
    with torch.device("meta"):
        found = {type(module).__name__ for family in FAMILIES for _, module, _ in find_attentions(tiny(family))}
    assert found <= set(PROJECTIONS)
    assert {name for name in PROJECTIONS if "Cross" not in name} == found


def test_cross_attention_of_bert_and_gpt2():
    for family, options in (("bert", {"kind": "BertLMHeadModel"}), ("gpt2", {})):
        model = tiny(family, is_decoder=True, add_cross_attention=True, **options)
        states = {"encoder_hidden_states": torch.randn(5, 6, model.config.hidden_size)}
        batches = [inputs(model, seed) | states for seed in range(4)]
        converted = convert(model, batches)
        assert {nvib.section for _, nvib in nvibs(converted)} == {"cross", "decoder"}
        assert distance(outputs(model, batches[0]), outputs(converted, batches[0])) < 1e-3


def test_the_config_reads_infinity():
    config = NVIBConfig({"encoder": {"tau_alpha": math.inf, "tau_sigma": 0.0}})
    assert NVIBConfig(**config.to_dict()).sections == config.sections


def test_calls_that_a_converted_model_cannot_answer_are_one_line():
    for family in ("bert", "t5"):
        model = tiny(family)
        converted, batch = convert(model, calibration(model)), inputs(model, 0)
        with pytest.raises(ValueError, match="output_attentions is True") as error:
            converted(**batch, output_attentions=True)
        assert "\n" not in str(error.value)
        converted.set_attn_implementation("sdpa")
        with pytest.raises(ValueError, match=r"attention implementation .* 'sdpa', expected 'nvib'"):
            converted(**batch)
        converted.set_attn_implementation("nvib")
        assert distance(outputs(model, batch), outputs(converted, batch)) < 1e-3


def test_a_model_made_of_two_is_refused():
    model = EncoderDecoderModel(encoder=tiny("minilm"), decoder=tiny("bert", kind="BertLMHeadModel", is_decoder=True))
    with pytest.raises(ValueError, match="EncoderDecoderModel, made of several"):
        convert(model, calibration(tiny("bert")))


@pytest.fixture
def saved(tmp_path):
    tiny("bart").save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_open_model_opens_the_class_of_the_config(saved):
    model, tokenizer = open_model(saved)
    assert type(model) is type(tiny("bart"))
    assert len(tokenizer) == len(word_tokenizer())


ODD_CONFIGS: list[tuple[dict, str]] = [
    ({"architectures": None}, "names the class None"),
    ({"architectures": [7]}, "names the class 7|architectures"),
    ({"architectures": ["os"]}, "names the class 'os'"),
    ({"architectures": ["BartConfig"]}, "names the class 'BartConfig'"),
    ({"architectures": ["GPT2LMHeadModel"]}, "another family"),
    ({"architectures": ["BartForSequenceClassification"]}, "no weights for classification_head"),
    ({"encoder_layers": 3}, r"no weights for .*layers\.2"),
    ({"encoder_layers": 1}, r"no layer for the weights .*layers\.1"),
    ({"encoder_layers": -1}, "cannot be opened"),
]


@pytest.mark.parametrize(("changes", "message"), ODD_CONFIGS, ids=str)
def test_open_model_refuses_odd_configs_in_one_line(saved, changes, message):
    file = saved / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(InputError, match=message) as error:
        open_model(saved)
    assert "\n" not in str(error.value)


def test_open_model_refuses_a_missing_weight(saved):
    weights = load_file(saved / "model.safetensors")
    del weights["model.encoder.layers.0.self_attn.k_proj.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"no weights for model\.encoder\.layers\.0\.self_attn\.k_proj"):
        open_model(saved)


def test_nothing_of_it_is_imported_with_the_core():
    program = "import sys, open_nvib as nv; nv.NVIB; print({'transformers', 'open_nvib.pretrained'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
