"""Text autoencoders around tiny T5, BART and Marian models, made on the spot."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_text import make_sentences
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoModel, PreTrainedTokenizerFast

from open_nvib.merging import VectorRequest
from open_nvib.store.files import InputError
from open_nvib.store.settings import LossSettings, ModelSettings, OptimiserSettings, TrainConfig, WatchSettings
from open_nvib.text.data import PrepareConfig, load_prepared, prepare
from open_nvib.text.data.tokenizer import load_tokenizer, token_names, train_tokenizer
from open_nvib.text.model import bottlenecks
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.backbone import options_of
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import make_batch, reading
from open_nvib.text.training.train import make_model, train
from open_nvib.text.using.inspection import attention_map
from open_nvib.text.using.run import load_run

SIZES = {"d_model": 24, "max_position_embeddings": 64, "init_std": 0.3, "forced_eos_token_id": None}
SIDES = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 2), ("ffn_dim", 37))}
HEADS = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
T5 = {"d_model": 24, "d_kv": 5, "d_ff": 37, "num_layers": 2, "num_heads": 3}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", T5),
    "flan": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("BartForConditionalGeneration", SIZES | SIDES | HEADS),
    "marian": ("MarianMTModel", SIZES | SIDES | HEADS | {"scale_embedding": True}),
}
SENTENCES = make_sentences(80, seed=3)
ANY = {"model": ModelSettings(alpha_unit="delta", alpha0_p=0.01), "loss": LossSettings(delta=10.0, keep_share=0.5)}
KINDS: dict[str, dict[str, Any]] = {
    "t": {"model": ModelSettings("t")},
    "vt": {"model": ModelSettings("vt")},
    "vtp": {"model": ModelSettings("vtp")},
    "vts": {"model": ModelSettings("vts", stride_pooling=True), "loss": LossSettings(shares="log_uniform")},
    "nvae": {},
    "any": {**ANY, "loss": replace(ANY["loss"], shares="log_uniform")},
    "gates": {"model": ModelSettings(alpha_activation="gate")},
}


def unigram() -> PreTrainedTokenizerFast:
    """A tokenizer as T5's: sentencepiece, which knows neither all characters nor two spaces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("  ", " ")])  # pyright: ignore
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore
    tokenizer.decoder = decoders.Metaspace()  # pyright: ignore
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def write_model(folder: Path, family: str) -> None:
    """Write a tiny model and its tokenizer, as they are on the hub."""
    name, settings = FAMILIES[family]
    t5 = family in ("t5", "flan")
    tokenizer = unigram() if t5 else train_tokenizer(SENTENCES, vocab_size=300, kind="bytes")
    tokenizer.save_pretrained(str(folder))
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": end if family == "bart" else pad}
    ids |= {} if t5 else {"bos_token_id": tokenizer.bos_token_id}
    torch.manual_seed(1)
    kind = getattr(transformers, name)
    rows = len(tokenizer) + 5  # some for no token, as many models have
    model = kind(kind.config_class(vocab_size=rows, **settings, **ids))
    if family == "marian":
        model.final_logits_bias.normal_()
    if family == "flan":  # T5 1.1 has a head of its own
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    model.save_pretrained(folder)
    if family == "flan":  # transformers does not write what it reads the scale of the output from
        file = folder / "config.json"
        file.write_text(file.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function of the family to the configuration of a short training."""
    root = tmp_path_factory.mktemp("pretrained")
    (root / "corpus.txt").write_text("\n".join([*SENTENCES, "A ² and a ł,  twice."] * 2))

    def config(family: str) -> TrainConfig:
        folder = root / family
        if not folder.exists():
            folder.mkdir()
            write_model(folder / "model", family)
            source, partitions = str(root / "corpus.txt"), {"short": [3, 60]}
            options: dict[str, Any] = {"layout": "sentences", "partitions": partitions, "workers": 1}
            prepare(PrepareConfig(source, str(folder / "data"), tokenizer=str(folder / "model"), **options))
        return TrainConfig(
            data=str(folder / "data"),
            model=ModelSettings(pretrained=str(folder / "model"), dropout=0.0),
            optimiser=OptimiserSettings(steps=4, batch_size=8, learning_rate=1e-3, clip=1.0),
            watch=WatchSettings(evaluate_every=2, evaluate_sentences=8, bleu_sentences=4, log_every=1),
        )

    return config


def of_kind(config: TrainConfig, kind: str) -> TrainConfig:
    model = replace(KINDS[kind].get("model", ModelSettings()), pretrained=config.model.pretrained, dropout=0.0)
    return replace(config, model=model, loss=KINDS[kind].get("loss", LossSettings()))


def pretrained_logits(source: Any, texts: list[list[int]], written: Tensor) -> Tensor:
    """What the pretrained model computes if its encoder reads the special tokens and its decoder does not."""
    config = source.config
    before = [config.bos_token_id] if config.model_type == "bart" else []
    longest = max(map(len, texts)) + len(before) + 1
    ids = torch.full((len(texts), longest), config.pad_token_id)
    seen, read = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, text in enumerate(texts):
        whole = [*before, *text, config.eos_token_id]
        ids[row, : len(whole)], seen[row, : len(whole)] = torch.tensor(whole), 1
        read[row, len(before) : len(before) + len(text)] = 1
    encoded = source.get_encoder()(input_ids=ids, attention_mask=seen)
    return source(encoder_outputs=encoded, attention_mask=read, decoder_input_ids=written).logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("kind", "scale", "tolerance"),
    [("t", 0.1, 1e-5), ("vt", 0.1, 1e-5), ("nvae", 0.1, 0.05), ("nvae", 0.01, 1e-3), ("any", 0.01, 1e-3)],
)
@torch.no_grad()
def test_at_first_the_logits_are_the_pretrained_ones(prepared, family, kind, scale, tolerance, monkeypatch):
    """Relative to the largest logit. NVIB differs by its norm term, which vanishes with the scale, and by σ."""
    monkeypatch.setattr(bottlenecks, "PRETRAINED_SCALE", scale)
    monkeypatch.setattr(bottlenecks, "PRETRAINED_SIGMA", scale)
    config = of_kind(prepared(family), kind)
    config = replace(config, model=replace(config.model, alpha0_p=1e-6) if kind in ("nvae", "any") else config.model)
    data = load_prepared(config.data)
    model = make_model(config, data).eval()
    source = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(config.model.pretrained)).eval()
    assert model.config.tie_word_embeddings == (family != "flan")
    texts = data.split("short", "train")[:5]["input_ids"]
    batch = make_batch(model, texts)
    written = model.shift_right(batch["labels"])
    expected = pretrained_logits(source, texts, written)
    request = VectorRequest(share=1.0) if kind == "any" else None
    latent = model.encoder.posterior(batch["input_ids"], batch["attention_mask"], request)
    for what in ("mean", "points"):
        with reading(model, what):
            hidden = model.decoder(model.embed(written), model.decoder.project(latent.mean()))
        found = model.head(hidden)[..., : expected.shape[-1]]
        error = (found - expected)[batch["labels"] >= 0].abs().max() / expected.abs().max()
        assert error < tolerance, f"{what}: {error}"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_trains_goes_on_and_is_used(prepared, family, tmp_path):
    config = of_kind(prepared(family), "any")
    train(config, tmp_path / "run")
    run = load_run(tmp_path / "run")
    texts = ["Nobody sold  the ² of Łódź.", SENTENCES[0]]
    assert run.tokenizer.batch_decode(run.tokenize(texts)) == texts  # nothing is unknown, nothing is lost
    ids = run.tokenize(texts)
    assert len(run.reconstruct(texts, vectors="fewest")) == len(run.reconstruct(texts, share=1.0)) == 2
    assert len(run.sample(2)) == 2
    assert len(run.interpolate(*texts, steps=3)) == 3
    latent = run.encode(texts[1], share=0.5)
    assert run.encode(texts).lengths.tolist() == [len(text) for text in ids]  # the end of a text gets no vector
    assert len(run.inspect(texts)) == 2
    rows = attention_map(run.model, latent.mean(), ids[1]).sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))
    opened: Any = AutoModel.from_pretrained(tmp_path / "run" / "model")
    batch = make_batch(run.model, ids)
    torch.testing.assert_close(opened(**batch, sample=False).loss, run.model(**batch, sample=False).loss)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_cache_changes_nothing(prepared, family):
    config = of_kind(prepared(family), "any")
    model: Any = make_model(config, load_prepared(config.data)).eval()
    torch.manual_seed(0)
    batch = make_batch(model, [[5, 6, 7, 8, 9, 10], [11, 12, 13]])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 9, "do_sample": False, "num_beams": 2}
    with_cache, without = (model.generate(**inputs, **options, use_cache=use) for use in (True, False))
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("kind", KINDS)
def test_every_bottleneck_stands_between_them(prepared, kind):
    config = of_kind(prepared("t5"), kind)
    data = load_prepared(config.data)
    model = make_model(config, data)
    batch = make_batch(model, data.split("short", "train")[:6]["input_ids"])
    model(**batch, sample=True).loss.backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.encoder.parameters())


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_training_that_was_stopped_goes_on_to_the_same_weights(prepared, family, tmp_path):
    config = of_kind(prepared(family), "any")
    train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", callbacks=[Interrupt()])
    train(config, tmp_path / "stopped")
    whole, stopped = (load_run(tmp_path / name).model.state_dict() for name in ("whole", "stopped"))
    for name, weights in whole.items():
        torch.testing.assert_close(stopped[name], weights, msg=name)


class Interrupt(transformers.TrainerCallback):
    """Interrupts training after its first checkpoint."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("family", ["flan", "bart"])
def test_gradient_checkpointing_changes_no_gradient(prepared, family):
    config = of_kind(prepared(family), "nvae")
    data = load_prepared(config.data)
    model = make_model(config, data)
    batch = make_batch(model, data.split("short", "train")[:6]["input_ids"])

    def gradients() -> list[Tensor]:
        torch.manual_seed(5)
        model.zero_grad()
        model(**batch, sample=True).loss.backward()
        return [each.grad.clone() for each in model.parameters() if each.grad is not None]

    plain = gradients()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(gradients(), plain)


def test_bf16_trains(prepared, tmp_path):
    config = of_kind(prepared("flan"), "any")
    precision = replace(config.optimiser, precision="bf16", gradient_checkpointing=True)
    train(replace(config, optimiser=precision), tmp_path / "run")


@pytest.mark.parametrize("part", ["decoder", "bottleneck"])
def test_what_is_not_trained_stays(prepared, part, tmp_path):
    config = of_kind(prepared("flan"), "any")
    config = replace(config, optimiser=replace(config.optimiser, trained=part))
    transformers.set_seed(config.seed)
    before = make_model(config, load_prepared(config.data)).state_dict()
    train(config, tmp_path / "run")
    after = load_run(tmp_path / "run").model.state_dict()
    changed = {name for name, weights in after.items() if not torch.equal(weights, before[name])}
    trained = ("encoder.bottleneck", "decoder.", "head.") if part == "decoder" else ("encoder.bottleneck", "decoder.")
    assert changed
    assert all(name.startswith(trained) for name in changed)
    if part == "bottleneck":
        assert all("bottleneck" in name or "cross_attention" in name for name in changed)
    else:
        assert {"head.weight", "decoder.norm.norm.weight"} <= changed


# What is refused


@pytest.mark.parametrize("name", ["d_model", "latent_size", "encoder_layers", "heads", "ffn_size", "max_positions"])
def test_a_size_beside_a_pretrained_model_is_refused(prepared, name, tmp_path):
    config = prepared("t5")
    with pytest.raises(InputError, match=f"model.{name}"):
        train(replace(config, model=replace(config.model, **{name: 32})), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_trained_without_a_pretrained_model_is_refused(prepared, tmp_path):
    config = prepared("t5")
    config = replace(config, model=ModelSettings(), optimiser=replace(config.optimiser, trained="decoder"))
    with pytest.raises(InputError, match=r"optimiser\.trained"):
        train(config, tmp_path / "run")


def test_data_of_another_tokenizer_is_refused(prepared, tmp_path):
    config = replace(prepared("t5"), model=prepared("bart").model)
    with pytest.raises(InputError, match="tokenizer"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["GPT2", "Pegasus"])
def test_another_family_is_refused(prepared, kind, tmp_path):
    config = getattr(transformers, f"{kind}Config")()
    config.save_pretrained(tmp_path / "other")
    given = prepared("t5")
    with pytest.raises(InputError, match=f"{config.model_type}.*expected one of t5"):
        train(replace(given, model=replace(given.model, pretrained=str(tmp_path / "other"))), tmp_path / "run")


def test_weights_that_are_not_there_are_refused(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = prepared("t5")
    for name, reason in ((str(tmp_path / "nothing"), "no such folder"), ("nobody/no-such-model", "offline")):
        with pytest.raises(InputError, match=rf"model\.pretrained.*{reason}"):
            train(replace(given, model=replace(given.model, pretrained=name)), tmp_path / "run")


def test_texts_longer_than_the_positions_are_refused(prepared, tmp_path):
    given = prepared("bart")
    data, folder = load_prepared(given.data), tmp_path / "short"
    write_model(folder, "bart")
    source = transformers.BartForConditionalGeneration.from_pretrained(folder)
    config = source.config
    config.max_position_embeddings = 8
    transformers.BartForConditionalGeneration(config).save_pretrained(folder)
    longest = len(data.length_histogram("short")) - 1
    with pytest.raises(InputError, match=f"{longest} tokens.*max_positions = 7"):
        train(replace(given, model=replace(given.model, pretrained=str(folder))), tmp_path / "run")


# Parts


def test_names_of_sentencepiece_tokens_have_no_marks_of_spaces(tmp_path):
    unigram().save_pretrained(str(tmp_path))
    tokenizer = load_tokenizer(str(tmp_path), lowercase=False)
    names = token_names(tokenizer, tokenizer(f"{SENTENCES[0]} ł")["input_ids"])
    words = "".join(name[2:] if name.startswith("##") else f" {name}" for name in names if name != "␣").split()
    assert words[:5] == SENTENCES[0].split()[:5]
    assert names[-2:] == ["�", "�"]
    assert not any("▁" in name for name in names)


def test_a_sentencepiece_tokenizer_gives_every_text_back(tmp_path):
    plain = unigram()
    plain.save_pretrained(str(tmp_path))
    tokenizer, known = load_tokenizer(str(tmp_path), lowercase=False), plain.get_vocab()
    assert {name: tokenizer.get_vocab()[name] for name in known} == known
    for text in ("Łódź, 5 km²…", "two  spaces", "{[(`~^漢字🙂", SENTENCES[0]):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_bias_of_the_head_is_in_the_loss(prepared):
    """`cross_entropy_of_head` and the logits agree, and the bias has its gradient."""
    config = of_kind(prepared("marian"), "t")
    data = load_prepared(config.data)
    model = make_model(config, data).eval()
    assert model.head.bias.abs().max() > 0
    output = model(**make_batch(model, data.split("short", "train")[:3]["input_ids"]))
    labels = make_batch(model, data.split("short", "train")[:3]["input_ids"])["labels"]
    expected = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(output.loss, expected)
    (gradient,) = torch.autograd.grad(output.loss, model.head.bias, retain_graph=True)
    (right,) = torch.autograd.grad(expected, model.head.bias)
    torch.testing.assert_close(gradient, right)


def test_the_configuration_builds_the_model_without_the_original(prepared):
    config = of_kind(prepared("marian"), "any")
    source = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(config.model.pretrained))
    settings = TextAutoencoderConfig(vocab_size=source.config.vocab_size, **options_of(source))
    model: Any = TextAutoencoder(TextAutoencoderConfig.from_dict(settings.to_dict()))
    assert model.config.head_size == 8
    assert model.encoder.bottleneck.nvib.p == 24
