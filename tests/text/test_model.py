"""The five models: their losses by hand, padding, generation, and what is saved."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from open_nvib.merging import Cuts, split_tokens
from open_nvib.store.settings import LossSettings, ModelSettings
from open_nvib.text.model.autoencoder import IGNORED, LatentOutput, TextAutoencoder
from open_nvib.text.model.bottlenecks import kept_at_stride, plain_mixture, pool
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import decode
from open_nvib.text.model.layers import DecoderLayer, cross_entropy_of_head

PAD, BOS, EOS = 0, 1, 2
VOCABULARY, SIZE, LATENT = 211, 24, 13
BOTTLENECKS = {
    "t": {"bottleneck": "t"},
    "vt": {"bottleneck": "vt"},
    "vtp": {"bottleneck": "vtp", "pooling": "max"},
    "vts": {"bottleneck": "vts", "stride": 0.5},
    "nvae": {"bottleneck": "nvae", "delta": 0.3},
    "nvae-gathering": {"bottleneck": "nvae", "delta": 2.0, "alpha_unit": "delta", "keep_share": 0.5},
}
each_bottleneck = pytest.mark.parametrize("kind", BOTTLENECKS)


def make_model(kind: str = "nvae", *, seed: int = 0, **changes) -> Any:
    given = {
        "vocab_size": VOCABULARY,
        "d_model": SIZE,
        "latent_size": LATENT,
        "ffn_size": 29,
        "max_positions": 41,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }
    torch.manual_seed(seed)
    return TextAutoencoder(TextAutoencoderConfig(**{**given, **BOTTLENECKS[kind], **changes})).eval()


def make_batch(*lengths: int, padding: int = 0, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random texts; `padding` columns more than the longest needs."""
    generator = torch.Generator().manual_seed(seed)
    n = max(lengths) + padding
    input_ids = torch.full((len(lengths), n), PAD)
    labels = torch.full((len(lengths), n + 1), IGNORED)
    for row, length in enumerate(lengths):
        text = torch.randint(3, VOCABULARY, (length,), generator=generator)
        input_ids[row, :length] = labels[row, :length] = text
        labels[row, length] = EOS
    return {"input_ids": input_ids, "attention_mask": (input_ids != PAD).long(), "labels": labels}


def decoder_inputs(labels: torch.Tensor) -> torch.Tensor:
    rows = [[BOS, *(PAD if token == IGNORED else token for token in row[:-1])] for row in labels.tolist()]
    return torch.tensor(rows)


def full_cross_entropy(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits everywhere, as torch has it."""
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    logits = model(**text, decoder_input_ids=decoder_inputs(batch["labels"])).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)


# Sizes


def test_parameters_at_the_papers_sizes_are_17_million():
    """Counted part by part: two vocabulary matrices, one layer on each side, NVIB."""
    d, vocabulary = 256, 30522
    linear, norm = d * d + d, 2 * d
    encoder = 4 * linear + 2 * linear + 2 * norm + norm
    cross_attention = 2 * linear + 2 * d * d  # keys and values have no bias
    decoder = 4 * linear + cross_attention + 2 * linear + 3 * norm + norm
    nvib = 2 * linear + d + 1
    count = sum(parameter.numel() for parameter in TextAutoencoder(TextAutoencoderConfig()).parameters())
    assert count == 2 * vocabulary * d + encoder + decoder + nvib
    assert round(count / 1e6) == 17


def test_heads_that_do_not_divide_the_size_are_refused():
    with pytest.raises(ValueError, match="heads"):
        make_model(heads=5)


@pytest.mark.parametrize("kind", ["vt", "vtp", "vts", "nvae"])
def test_latents_begin_with_less_noise_than_the_prior(kind):
    """All models start alike: σ near e⁻¹, whatever Hugging Face does to the weights of a new model."""
    model = make_model(kind)
    batch = make_batch(7, 4, 11)
    latent = model.encoder.posterior(batch["input_ids"], batch["attention_mask"])
    log_sigma = latent.log_sigma[:, :-1] if kind == "nvae" else latent.log_sigma  # the prior's component comes last
    assert (log_sigma + 1).abs().max() < 0.5


# The loss


@each_bottleneck
def test_loss_is_the_sum_of_its_scaled_parts(kind):
    """Cross-entropy per real token + λ′_G/(n d) L_G + λ′_D/n L_D, each text with its own n."""
    model = make_model(kind, lambda_g=0.7, lambda_d=0.3)
    batch = make_batch(7, 4, 11)
    output = model(**batch)
    kl = model.encoder.posterior(batch["input_ids"], batch["attention_mask"]).kl()
    gaussian = sum(kl.gaussian[row] / (n * LATENT) for row, n in enumerate((7, 4, 11))) / 3
    dirichlet = sum(kl.dirichlet[row] / n for row, n in enumerate((7, 4, 11))) / 3
    cross_entropy = full_cross_entropy(model, batch)
    torch.testing.assert_close(output.cross_entropy, cross_entropy)
    torch.testing.assert_close(output.kl_gaussian, torch.as_tensor(gaussian))
    torch.testing.assert_close(output.kl_dirichlet, torch.as_tensor(dirichlet))
    torch.testing.assert_close(output.loss, cross_entropy + 0.7 * gaussian + 0.3 * dirichlet)
    model.lambda_g, model.lambda_d = 2.0, 5.0
    other = model(**batch)
    torch.testing.assert_close(other.loss, cross_entropy + 2.0 * gaussian + 5.0 * dirichlet)
    assert bool(kl.gaussian.min() > 0) == (kind != "t")
    assert bool(kl.dirichlet.abs().max() > 0) == kind.startswith("nvae")


@pytest.mark.parametrize(("kind", "vectors"), [("vt", [7, 4]), ("vtp", [1, 1]), ("vts", [4, 2])])
def test_gaussian_kl_is_of_the_vectors_that_are_there(kind, vectors):
    model = make_model(kind)
    batch = make_batch(7, 4)
    latent = model.encoder.posterior(batch["input_ids"], batch["attention_mask"])
    each = kl_divergence(Normal(latent.mu, latent.log_sigma.exp()), Normal(0.0, 1.0)).sum(-1)
    expected = torch.stack([each[row][latent.mask[row]].sum() for row in range(2)])
    torch.testing.assert_close(latent.kl().gaussian, expected)
    assert latent.mask.sum(-1).tolist() == vectors
    torch.testing.assert_close(latent.kept, torch.tensor([vectors[0] / 7, vectors[1] / 4]))


@pytest.mark.parametrize(("form", "kappa"), [("expected", 3), ("exact", 1), ("exact", 2)])
def test_loss_of_nvae_takes_the_form_and_kappa_of_its_configuration(form, kappa):
    model = make_model(kl_form=form, kappa=kappa)
    batch = make_batch(5, 5)
    kl = model.encoder.posterior(batch["input_ids"], batch["attention_mask"]).kl(form, kappa=kappa)
    torch.testing.assert_close(model(**batch).kl_dirichlet, (kl.dirichlet / 5).mean())
    torch.testing.assert_close(model(**batch).kl_gaussian, (kl.gaussian / (5 * LATENT)).mean())


def test_num_items_in_batch_divides_the_loss():
    model, batch = make_model("vt"), make_batch(7, 4)
    torch.testing.assert_close(13 * model(**batch).loss, 100 * model(**batch, num_items_in_batch=100).loss)


@each_bottleneck
def test_losses_of_parts_of_a_batch_add_up(kind):
    """Whatever the lengths, if the number of texts is given; a part of 3 texts and one of 1."""
    model, batch = make_model(kind, lambda_g=10.0, lambda_d=10.0), make_batch(7, 4, 2, 11)
    given = {"num_items_in_batch": 28, "num_texts_in_batch": 4}
    parts = [model(**{name: x[rows] for name, x in batch.items()}, **given) for rows in (slice(0, 3), slice(3, 4))]
    for name in ("loss", "cross_entropy", "kl_gaussian", "kl_dirichlet"):
        torch.testing.assert_close(parts[0][name] + parts[1][name], model(**batch)[name])


@pytest.mark.parametrize("kind", ["vt", "vtp", "vts", "nvae"])
def test_sample_has_noise_and_the_mean_has_none(kind):
    model, batch = make_model(kind), make_batch(7, 4)
    torch.manual_seed(1)
    assert model(**batch, sample=True).loss != model(**batch, sample=True).loss
    assert model(**batch).loss == model(**batch).loss


@pytest.mark.parametrize(
    "changes",
    [
        {"kappa": 3},
        {"heads": 3, "encoder_layers": 2, "decoder_layers": 2},
        {"alpha_activation": "softplus", "gamma_method": "implicit", "kl_form": "exact"},
        {"latent_size": None, "positions": "learned", "tie_word_embeddings": True},
        {"alpha_activation": "gate", "bound_queries": True},
        *({"kind": kind, "heads": 2} for kind in ("t", "vt", "vtp", "vts")),
    ],
    ids=str,
)
def test_every_parameter_learns(changes):
    model = make_model(changes.get("kind", "nvae"), **{name: x for name, x in changes.items() if name != "kind"})
    torch.manual_seed(0)
    model.train()(**make_batch(7, 4, 11), sample=True).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


# Padding


@each_bottleneck
def test_padded_batch_equals_cropped_batch(kind):
    model = make_model(kind, heads=2)
    tight, loose = make_batch(7, 4), make_batch(7, 4, padding=5)
    for name in ("loss", "cross_entropy", "kl_gaussian", "kl_dirichlet", "kept"):
        torch.testing.assert_close(model(**loose)[name], model(**tight)[name], msg=name)


@each_bottleneck
def test_a_text_does_not_depend_on_the_others_of_its_batch(kind):
    model = make_model(kind)
    batch = make_batch(9, 4)
    alone = model(input_ids=batch["input_ids"][1:, :4], decoder_input_ids=decoder_inputs(batch["labels"])[1:, :5])
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    together = model(**text, decoder_input_ids=decoder_inputs(batch["labels"]))
    torch.testing.assert_close(together.logits[1:, :5], alone.logits)


# Attention and the latent


@pytest.mark.parametrize("heads", [1, 3])
def test_cross_attention_of_t_is_ordinary_attention(heads):
    """`eq:probZ`: with weights of exp(‖z‖²/2√d) the norm cancels, and softmax(q·k/√d) v is left."""
    torch.manual_seed(0)
    attention = DecoderLayer(TextAutoencoderConfig(d_model=SIZE, latent_size=LATENT, heads=heads), 0).cross_attention
    query, z = torch.randn(2, 5, SIZE), 2 * torch.randn(2, 7, LATENT)
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    d = SIZE // heads
    q, k, v = attention.to_query(query), attention.to_key(z), attention.to_value(z)
    rows = []
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        scores = q[..., part] @ k[..., part].mT / math.sqrt(d)
        rows.append(scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ v[..., part])
    expected = attention.to_output(torch.cat(rows, -1))
    torch.testing.assert_close(attention(query, plain_mixture(z, mask, d)), expected)


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (0.0, range(20)),
        (0.25, [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18]),
        (0.5, range(0, 20, 2)),
        (0.75, range(0, 20, 4)),
        (0.9, range(0, 20, 10)),
    ],
)
def test_stride_drops_its_share_evenly(share, kept):
    assert kept_at_stride(20, share).nonzero().flatten().tolist() == list(kept)
    assert kept_at_stride(1, share).tolist() == [True]


@pytest.mark.parametrize(("share", "size"), [(0.5, 2), (0.75, 4)])
def test_a_stride_can_pool_what_it_drops(share, size):
    """A vector that stays is the mean of its run's hidden states, the last run cut short by the end of the text."""
    torch.manual_seed(0)
    bottleneck = make_model("vts", stride=share, stride_pooling=True).encoder.bottleneck
    hidden, n = torch.randn(1, 11, bottleneck.to_mu.in_features), 9
    mask = torch.arange(11).unsqueeze(0) < n
    latent = bottleneck(hidden, mask)
    starts = list(range(0, n, size))
    assert latent.mask[0].nonzero().flatten().tolist() == starts
    for start in starts:
        mean = hidden[0, start : min(start + size, n)].mean(0)
        torch.testing.assert_close(latent.mu[0, start], bottleneck.to_mu(mean))
    ahead = bottleneck(hidden.roll(2, 1), mask.roll(2, 1))  # padding in front
    torch.testing.assert_close(ahead.mu[ahead.mask], latent.mu[latent.mask])


@pytest.mark.parametrize("dropped", [0.25, 0.3, 0.5, 0.6, 0.75, 0.9])
@pytest.mark.parametrize("n", [1, 6, 20, 50])
def test_pooled_vectors_stand_where_the_stride_keeps_them(dropped, n):
    merged = split_tokens(torch.ones(1, n), Cuts(1 / (1 - dropped))).merge(torch.ones(1, n, 3))
    assert torch.equal(merged.alpha[0] > 0, kept_at_stride(n, dropped))


@pytest.mark.parametrize("how", ["mean", "max", "cls"])
def test_pooling_takes_real_vectors_only(how):
    torch.manual_seed(0)
    hidden = torch.randn(3, 7, 5)
    lengths = [7, 2, 4]
    mask = torch.arange(7) < torch.tensor(lengths).unsqueeze(-1)
    hidden[~mask] = 1e6
    by_hand = {
        "mean": lambda vectors: torch.tensor([sum(column) / len(column) for column in vectors.T.tolist()]),
        "max": lambda vectors: torch.tensor([max(column) for column in vectors.T.tolist()]),
        "cls": lambda vectors: vectors[0],
    }
    expected = torch.stack([by_hand[how](hidden[row, :n]) for row, n in enumerate(lengths)])
    torch.testing.assert_close(pool(hidden, mask, how), expected.unsqueeze(1))


@pytest.mark.parametrize(("kind", "vectors"), [("vt", [5, 2]), ("vtp", [1, 1]), ("vts", [3, 1]), ("nvae", [6, 3])])
def test_prior_has_as_many_vectors_as_a_text_of_that_length(kind, vectors):
    bottleneck = make_model(kind).encoder.bottleneck
    draw = bottleneck.prior(torch.tensor([5, 2]), torch.Generator().manual_seed(0))
    assert (~draw.log_pi.isneginf()).sum(-1).tolist() == vectors
    assert draw.z.shape[-1] == LATENT
    again = bottleneck.prior(torch.tensor([5, 2]), torch.Generator().manual_seed(0))
    assert torch.equal(draw.z, again.z)


def test_t_has_no_prior():
    with pytest.raises(ValueError, match="no prior"):
        make_model("t").encoder.bottleneck.prior(torch.tensor([5]))


@each_bottleneck
def test_bottlenecks_agree_with_themselves_on_where_tokens_are(kind):
    """Weights sum to 1, padding has none, and every vector that is kept holds most of some token."""
    model, batch = make_model(kind, alpha_contrast=0.0 if kind.startswith("nvae") else None), make_batch(7, 4)
    bottleneck, mask = model.encoder.bottleneck, batch["attention_mask"].bool()
    hidden = model.encoder.hidden_states(batch["input_ids"], mask)
    latent, kept = bottleneck(hidden, mask), bottleneck.kept_vectors(bottleneck(hidden, mask))
    weights = bottleneck.weights(latent)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[:, 0]))
    assert (weights[kept] > 0).all()
    components = bottleneck.component_of_token(hidden, mask)
    assert (components[~mask] == -1).all()
    for row in range(2):
        assert set(components[row].tolist()) - {-1} == set(kept[row].nonzero().flatten().tolist())
    torch.testing.assert_close(kept.sum(-1) / latent.lengths, latent.kept)


# Generation


@each_bottleneck
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_equals_generation_without(kind, beams):
    model = make_model(kind, heads=2, decoder_layers=2)
    batch = make_batch(7, 4, 9)
    options = {"max_new_tokens": 11, "num_beams": beams, "output_scores": True, "return_dict_in_generate": True}
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    cached, whole = (model.generate(**text, **options, use_cache=use_cache) for use_cache in (True, False))
    assert torch.equal(cached.sequences, whole.sequences)
    for mine, theirs in zip(cached.scores, whole.scores, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@each_bottleneck
def test_generation_is_greedy_over_the_logits_of_forward(kind):
    """Each token is the best one after those before it, from a forward pass over all of them."""
    model = make_model(kind)
    batch = make_batch(7, 4)
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    generated = model.generate(**text, max_new_tokens=9, suppress_tokens=[EOS])
    logits = model(**text, decoder_input_ids=generated[:, :-1]).logits
    logits[..., EOS] = -torch.inf
    assert torch.equal(logits.argmax(-1), generated[:, 1:])


@each_bottleneck
def test_generation_from_a_latent_equals_generation_from_text(kind):
    model = make_model(kind)
    batch = make_batch(7, 4)
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    latent = model.encoder.posterior(**text)
    options = {"max_new_tokens": 9, "suppress_tokens": [EOS]}
    from_latent = model.generate(encoder_outputs=LatentOutput.of(latent.mean()), **options)
    assert torch.equal(from_latent, model.generate(**text, **options))
    assert decode(model, latent.mean(), torch.tensor([9, 9]), suppress_tokens=[EOS]) == [
        [token for token in row if token not in (PAD, BOS)] for row in from_latent[:, 1:].tolist()
    ]


def test_test_time_reads_what_the_configuration_says():
    """The points in place of the mean, whichever way it comes to the decoder; a sample is read as it is."""
    batch = make_batch(9, 4)
    mean, points = make_model(reading="mean"), make_model(reading="points")
    latent = mean.encoder.posterior(batch["input_ids"], batch["attention_mask"])
    decoded = torch.randint(3, VOCABULARY, (2, 6))

    def hidden(model: Any, mixture: Any) -> torch.Tensor:
        return model.decoder(model.encoder.embedding(decoded), model.decoder.project(mixture))

    assert not torch.allclose(hidden(mean, latent.mean()), hidden(mean, latent.points()), atol=1e-4)
    for mixture in (latent.mean(), latent.points(), latent.mix(latent[[1, 0]], 0.0)):
        torch.testing.assert_close(hidden(points, mixture), hidden(mean, latent.points()))
    sample = latent.sample()
    assert torch.equal(hidden(points, sample), hidden(mean, sample))
    assert points(**batch, sample=False).loss != mean(**batch, sample=False).loss


def test_beam_search_with_a_beam_for_every_token_finds_the_best_pair():
    vocabulary = 11
    model = make_model("nvae", vocab_size=vocabulary, max_positions=9)
    input_ids = torch.tensor([[5, 3, 7, 7]])
    options = {"num_beams": vocabulary, "min_new_tokens": 2, "max_new_tokens": 2}
    found = model.generate(input_ids=input_ids, **options)[0, 1:].tolist()
    scores = {}
    for pair in itertools.product([token for token in range(vocabulary) if token != EOS], repeat=2):
        logits = model(input_ids=input_ids, decoder_input_ids=torch.tensor([[BOS, pair[0]]])).logits[0]
        logits[:, EOS] = -torch.inf
        first, second = logits.log_softmax(-1)
        scores[pair] = (first[pair[0]] + second[pair[1]]).item()
    assert tuple(found) == max(scores, key=lambda pair: scores[pair])


def test_decoding_stops_at_each_texts_own_limit():
    model = make_model("vt")
    batch = make_batch(7, 2, 5)
    latent = model.encoder.posterior(batch["input_ids"], batch["attention_mask"])
    texts = decode(model, latent.mean(), 2 * latent.lengths, suppress_tokens=[PAD, BOS, EOS])
    assert [len(text) for text in texts] == [14, 4, 10]


def test_decoding_stops_at_the_end_of_the_text():
    """A head that wants nothing but the end."""
    model = make_model("vt")
    latent = model.encoder.posterior(torch.tensor([[5, 6, 7]]))
    with torch.no_grad():
        model.decoder.norm.weight.zero_()
        model.decoder.norm.bias.fill_(1.0)
        model.head.weight.zero_()[EOS] = 1.0
    assert decode(model, latent.mean(), torch.tensor([6])) == [[]]


# Files


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("kind", ["t", "vts", "nvae"])
def test_saved_model_comes_back_bit_equal(kind, tied, positions, tmp_path):
    model = make_model(kind, tie_word_embeddings=tied, positions=positions)
    batch = make_batch(7, 4)
    expected = model(**batch).loss
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() | {"_name_or_path": ""} == model.config.to_dict()
    for opened in (TextAutoencoder, AutoModel, AutoModelForSeq2SeqLM):
        again = opened.from_pretrained(tmp_path)
        assert isinstance(again, TextAutoencoder)
        assert again.state_dict().keys() == model.state_dict().keys()
        assert all(torch.equal(again.state_dict()[name], x) for name, x in model.state_dict().items())
        assert torch.equal(again.eval()(**batch).loss, expected)
        assert (again.head.weight is again.encoder.embedding.tokens.weight) == tied


def test_share_that_a_schedule_set_is_saved(tmp_path):
    model = make_model("nvae-gathering")
    model.encoder.bottleneck.nvib.set_keep_share(0.25)
    model.save_pretrained(tmp_path)
    again: Any = TextAutoencoder.from_pretrained(tmp_path)
    assert again.encoder.bottleneck.nvib.keep_share.item() == 0.25


def test_prior_of_a_gathering_model_has_as_many_vectors_as_its_texts():
    """At the start all counts are nearly equal, so that texts keep about what the prior expects."""
    model = make_model("nvae-gathering")
    kept = model.encoder.posterior(make_batch(20)["input_ids"]).kept.item() * 20
    drawn = model.encoder.bottleneck.prior(torch.tensor([20])).log_pi.isfinite().sum().item()
    assert drawn == 11  # and the prior's component
    assert abs(kept - 10) <= 2


def test_delta_that_a_schedule_set_is_saved(tmp_path):
    model = make_model("nvae")
    model.encoder.bottleneck.nvib.set_delta(0.625)
    model.save_pretrained(tmp_path)
    again: Any = TextAutoencoder.from_pretrained(tmp_path)
    assert again.encoder.bottleneck.nvib.delta.item() == 0.625


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_cross_entropy_of_head_is_that_of_all_logits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(150, 8, generator=generator, dtype=dtype)
    weight = torch.randn(20_000, 8, generator=generator, dtype=dtype)  # three chunks
    hidden[0] *= 1_000  # a label that the softmax has at 0
    labels = torch.randint(0, 20_000, (150,), generator=generator)
    ours = [x.clone().requires_grad_() for x in (hidden, weight)]
    theirs = [x.clone().requires_grad_() for x in (hidden, weight)]
    loss = cross_entropy_of_head(ours[0], ours[1], labels)
    expected = F.cross_entropy((theirs[0] @ theirs[1].T).float(), labels, reduction="sum")
    torch.testing.assert_close(loss, expected)
    (2 * loss).backward()
    (2 * expected).backward()
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy_of_head(ours[0], ours[1], labels), expected)


def test_cross_entropy_of_head_of_no_token_is_zero() -> None:
    hidden, weight = torch.randn(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    loss = cross_entropy_of_head(hidden, weight, torch.zeros(0, dtype=torch.long))
    loss.backward()
    assert loss == 0
    torch.testing.assert_close(weight.grad, torch.zeros_like(weight))


@each_bottleneck
def test_evaluation_with_labels_has_logits_and_training_has_none(kind):
    model, batch = make_model(kind), make_batch(7, 4)
    assert model.train()(**batch).logits is None
    logits = model.eval()(**batch).logits
    assert logits.shape[:2] == batch["labels"].shape
    torch.testing.assert_close(
        logits, model(**batch | {"labels": None}, decoder_input_ids=model.shift_right(batch["labels"])).logits
    )


def test_the_configuration_has_the_options_of_the_settings():
    config = TextAutoencoderConfig()
    for settings in (ModelSettings(), LossSettings()):
        for name, value in vars(settings).items():
            assert getattr(config, name) == value, name
