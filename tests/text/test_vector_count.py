"""Any number of vectors: the search against brute force by real decoding, texts with numbers of their own, draws."""

import copy
import itertools
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from open_nvib.cli import main
from open_nvib.evaluation.reconstruction import given_length, measure_number
from open_nvib.merging import VectorRequest
from open_nvib.process import vectors_at
from open_nvib.search import numbers_to_try
from open_nvib.store.files import InputError, OutsideTraining
from open_nvib.store.settings import LossSettings, ModelSettings, OptimiserSettings, TrainConfig, WatchSettings
from open_nvib.text.data import load_prepared
from open_nvib.text.model import vector_count
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import decode, encode, evaluate_losses, reconstruct_ids
from open_nvib.text.model.vector_count import OFFSETS, Tries, choose_auto, find_fewest
from open_nvib.text.training.train import train
from open_nvib.text.using.latents import write_latents
from open_nvib.text.using.run import Run, load_run

KINDS = ("nvae", "vts")


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory) -> Run:
    """A small model for any number, which learned some of its sentences by heart."""
    from small_text import make_sentences, prepare_in

    folder = tmp_path_factory.mktemp(request.param)
    prepare_in(folder, make_sentences(60, seed=1))
    nvae = request.param == "nvae"
    own = {"alpha_contrast": 1.0, "keep_share": 0.5, "delta": 10.0} if nvae else {}
    kind: dict[str, Any] = {"alpha_unit": "delta"} if nvae else {"stride_pooling": True}
    sizes = ModelSettings(
        bottleneck=request.param,
        **kind,
        d_model=32,
        ffn_size=32,
        decoder_layers=2,
        max_positions=64,
        dropout=0.0,
    )
    config = TrainConfig(
        data=str(folder / "data"),
        model=sizes,
        loss=LossSettings(lambda_g=1e-4, shares="log_uniform", smallest_share=0.1, **own),
        optimiser=OptimiserSettings(steps=130, batch_size=24, learning_rate=5e-3, clip=1.0),
        watch=WatchSettings(evaluate_every=130, bleu_sentences=4),
    )
    train(config, folder / "run")
    return load_run(folder / "run")


@pytest.fixture
def texts(run) -> list[list[int]]:
    """Sentences that it learned, and their tokens in another order, which need more vectors."""
    learned = [list(ids) for ids in load_prepared(run.config.data).split("short", "train")["input_ids"][:10]]
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(len(ids), generator=generator).tolist() for ids in learned)
    return learned + [[ids[index] for index in order] for ids, order in zip(learned, orders, strict=True)]


def by_brute_force(model, text, places):
    """The fewest vectors, and the first place, with which greedy decoding returns the text."""
    fewest = int(vectors_at(model.config.smallest_share, torch.tensor([len(text)])))
    for number in range(fewest, len(text) + 1):
        for place in places:
            request = VectorRequest(number, offset=place)
            if reconstruct_ids(model, [text], request=request)[0] == text:
                return number, place, True
    return len(text), places[0], False


def test_the_search_is_brute_force_by_real_decoding(run, texts):
    texts = texts[::3]
    found = find_fewest(run.model, texts)
    expected = [by_brute_force(run.model, text, OFFSETS) for text in texts]
    assert found.vectors.tolist() == [number for number, _, _ in expected]
    assert found.offset.tolist() == pytest.approx([place for _, place, _ in expected])
    assert found.exact.tolist() == [back for _, _, back in expected]
    assert sum(found.exact) > 0
    assert len(set(found.vectors.tolist())) > 2


def test_every_text_is_tried_with_all_its_vectors(run, texts):
    """Also one of 17 or 19 tokens in a batch with longer ones, though above 16 not every number is tried."""
    long = [(texts[0] * 5)[:length] for length in range(15, 26)]
    tried = []

    class Watched(Tries):
        def latents(self, rows, request: Any):
            tried.extend(zip(self.mask.sum(-1)[rows].tolist(), request.vectors.tolist(), strict=True))
            return super().latents(rows, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("open_nvib.text.model.vector_count.Tries", Watched)
        found = find_fewest(run.model, long, offsets=[0.0])
    for text, back in zip(long, found.exact.tolist(), strict=True):
        numbers = [number for length, number in tried if length == len(text)]
        assert back or numbers[-1] == len(text)
        assert sorted(set(numbers)) == numbers[: len(set(numbers))]  # the last one once more, to count wrong tokens
    assert not found.exact.all()


def test_what_exact_exact(run, texts):
    for found in (find_fewest(run.model, texts), choose_auto(run.model, texts)):
        decoded = reconstruct_ids(run.model, texts, request=found.request)
        for text, again, back in zip(texts, decoded, found.exact.tolist(), strict=True):
            assert again == text or not back


def test_two_looks_take_the_first_share_with_which_a_text_exact(run, texts):
    shares = (0.08, 0.15, 1.0)
    found = choose_auto(run.model, texts, shares=shares, hard=None)
    lengths = torch.tensor(list(map(len, texts)))
    for row, text in enumerate(texts):
        numbers = [int(vectors_at(share, lengths)[row]) for share in shares]
        back = [reconstruct_ids(run.model, [text], request=VectorRequest(m))[0] == text for m in numbers]
        chosen = next((m for m, good in zip(numbers[:2], back[:2], strict=True) if good), numbers[2])
        assert (found.vectors[row], found.exact[row]) == (chosen, any(back[:2]))
    assert found.tries.max() == 2


def test_a_text_that_was_far_from_coming_back_gets_all_its_vectors(run, texts):
    shares = (0.08, 0.12, 0.3)
    lengths = torch.tensor(list(map(len, texts)))
    lost = ~choose_auto(run.model, texts, shares=shares, hard=None).exact
    looks = [VectorRequest(int(number)) for number in vectors_at(0.12, lengths)]
    losses = [evaluate_losses(run.model, [text], look) for text, look in zip(texts, looks, strict=True)]
    nats = torch.tensor([loss["loss"] for loss in losses]) * (lengths + 1)
    middle = len(nats[lost]) // 2
    hard = nats[lost].sort().values[middle - 1 : middle + 1].mean().item()  # some are above, some are not
    found = choose_auto(run.model, texts, shares=shares, hard=hard)
    otherwise = torch.where(nats > hard, lengths, vectors_at(0.3, lengths))
    torch.testing.assert_close(found.vectors[lost], otherwise[lost])
    assert len({*(found.vectors == lengths)[lost].tolist()}) == 2


def test_a_tolerance_takes_fewer_vectors(run, texts):
    strict, loose = find_fewest(run.model, texts), find_fewest(run.model, texts, max_wrong=12)
    assert (loose.vectors <= strict.vectors).all()
    assert loose.vectors.sum() < strict.vectors.sum()
    assert loose.wrong[loose.exact].max() <= 12
    assert loose.wrong.max() > 0
    assert ((strict.wrong == 0) == strict.exact).all()


def test_texts_with_numbers_of_their_own_are_as_encoded_one_by_one(run, texts):
    torch.manual_seed(0)
    for request in (
        VectorRequest(share=torch.rand(len(texts)).clamp(min=0.1)),
        VectorRequest(torch.randint(1, 5, (len(texts),)), offset=torch.rand(len(texts))),
    ):
        together = encode(run.model, texts, request).mean()
        for row, text in enumerate(texts):
            alone = encode(run.model, [text], request[[row]]).mean()
            limits = torch.tensor([2 * len(text)])
            assert decode(run.model, together[row], limits) == decode(run.model, alone, limits)


@pytest.mark.parametrize("longest", [1, 2, 7, 16, 17, 50, 511])
def test_the_numbers_to_try_end_with_all_and_grow_by_an_eighth(longest):
    numbers = list(numbers_to_try(longest))
    assert numbers[0] == 1
    assert numbers[-1] == longest
    assert numbers == sorted(set(numbers))
    assert numbers[:16] == list(range(1, min(longest, 16) + 1))
    assert all(after <= before * 1.125 + 1 for before, after in itertools.pairwise(numbers))


def test_runs_take_a_number_a_share_or_what_is_needed(run, texts):
    lines = run.tokenizer.batch_decode(texts[:5])
    lengths = torch.tensor(list(map(len, texts[:5])))
    for number, expected in (
        ({"vectors": 3}, torch.full((5,), 3)),
        ({"vectors": [1, 2, 3, 1, 2]}, torch.tensor([1, 2, 3, 1, 2])),
        ({"share": 0.5}, vectors_at(0.5, lengths)),
        ({"vectors": "fewest"}, run.find_fewest(lines).vectors),
        ({"vectors": "auto"}, choose_auto(run.model, texts[:5]).vectors),
    ):
        kept = (run.encode(lines, **number).kept.double() * lengths).round()
        if run.config.model.bottleneck == "vts":
            assert kept.tolist() == expected.tolist()
        else:  # a token with more than a vector's pseudo-count has the room of one; a share counts by Δ, not by tokens
            assert ((kept - expected).abs() <= (3 if "share" in number else 1)).all()
    needed = run.find_fewest(lines)
    copies = run.reconstruct(lines, vectors="fewest")
    assert all(a == b for a, b, back in zip(lines, copies, needed.exact, strict=True) if back)
    (report,) = run.inspect(lines[0], vectors=2)
    assert sum(token.kept for token in report.tokens) == 2
    assert len(run.interpolate(lines[0], lines[1], steps=3, vectors=2)) == 3
    assert sum(len(indices) for indices, _ in run.encode_batches(lines, vectors="fewest")) == 5


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ({"vectors": 0}, "above 0"),
        ({"vectors": [1, 2]}, "each of 1"),
        ({"vectors": True}, "whole"),
        ({"share": 0.0}, "0 to 1"),
        ({"share": 2}, "0 to 1"),
        ({"share": float("nan")}, "0 to 1"),
        ({"vectors": 1, "share": 0.5}, "one of the two"),
    ],
)
def test_numbers_that_are_none_are_explained(run, number, words):
    with pytest.raises(InputError, match=words):
        run.encode("a text", **number)


def test_a_model_with_a_fixed_number_says_so(trained):
    for number in ({"vectors": 2}, {"share": 0.5}, {"vectors": "fewest"}, {"vectors": "auto"}):
        with pytest.raises(InputError, match="fixed number"):
            trained.reconstruct("a text", **number)


def test_commands_take_a_number(run, texts, capsys, tmp_path):
    line = run.tokenizer.decode(texts[0])
    (tmp_path / "x.txt").write_text(f"{line}\n")
    path = str(run.path)
    for number in (["--vectors", "2"], ["--share", "0.3"], ["--vectors", "fewest"], ["--decided"]):
        main(["reconstruct", path, line, *number])
        main(["inspect", path, line, *number])
        main(["interpolate", path, line, line, "--steps", "2", *number])
        main(["encode", path, "--file", str(tmp_path / "x.txt"), "--output", str(tmp_path / "x.parquet"), *number])
        assert capsys.readouterr().out
    main(["sample", path, "--count", "2", "--vectors", "2"])
    with pytest.raises(SystemExit) as stop:
        main(["reconstruct", path, line, "--share", "0.5", "--vectors", "2"])
    assert stop.value.code == 2
    assert "expected one" in capsys.readouterr().err


def test_latents_are_written_with_a_number(run, texts, tmp_path):
    import pyarrow.parquet as pq

    lines = run.tokenizer.batch_decode(texts[:4])
    path = write_latents(run, dict(enumerate(texts[:4])), lines, tmp_path / "x.parquet", request=VectorRequest(2))
    assert [len(vectors) for vectors in pq.read_table(path)["mu"].to_pylist()] == [2, 2, 2, 2]


def test_training_draws_a_share_for_each_text():
    torch.manual_seed(0)
    lengths = torch.full((4000,), 10)
    for shares, median in (("log_uniform", (0.12 * 1.25) ** 0.5),):
        config = TextAutoencoderConfig(d_model=16, ffn_size=16, vocab_size=200, keep_share=0.5, shares=shares)
        drawn: Any = TextAutoencoder(config).encoder.bottleneck.draw_request(lengths)
        assert drawn.share.min() >= 0.12
        assert drawn.share.max() == 1
        assert drawn.share.median().item() == pytest.approx(median, abs=0.03)
        assert (drawn.offset == 0).float().mean().item() == pytest.approx(0.5, abs=0.03)
        assert drawn.offset.max() < 1
    fixed = TextAutoencoder(TextAutoencoderConfig(d_model=16, ffn_size=16, vocab_size=200, keep_share=0.5))
    assert fixed.encoder.bottleneck.draw_request(lengths) is None


def test_samples_have_as_many_vectors_as_sentences_of_their_length_need(run, monkeypatch):
    assert run.numbers is not None
    seen = []
    bottleneck = run.model.encoder.bottleneck
    prior = bottleneck.prior

    def watched(lengths, generator=None, **options):
        seen.extend(zip(lengths.tolist(), options["vectors"].tolist(), strict=True))
        return prior(lengths, generator, **options)

    monkeypatch.setattr(bottleneck, "prior", watched)
    run.sample(40)
    known = {(length, number) for length, number, _ in run.numbers.counts}
    assert set(seen) <= known
    assert len({number for _, number in seen}) > 1
    for number, expected in (({"vectors": 2}, 2), ({"share": 0.5}, 6)):
        seen.clear()
        run.sample(3, length=12, **number)
        assert seen == [(12, expected)] * 3
    seen.clear()
    run.sample(3, length=40)  # longer than any that was counted
    assert all(1 <= number <= 40 for _, number in seen)


def test_a_published_model_keeps_its_numbers(run, tmp_path):
    run.save_pretrained(tmp_path / "published")
    assert load_run(tmp_path / "published").numbers == run.numbers


def test_the_evaluation_of_numbers(run, texts):
    found = measure_number(run, texts)
    assert [each.share for each in found.shares] == sorted((each.share for each in found.shares), reverse=True)
    assert found.fewest.exact == pytest.approx(find_fewest(run.model, texts).exact.float().mean().item())
    assert found.fewest.correlation == pytest.approx(1.0, abs=0.05)
    for each in found.shares:
        back = [choose_auto(run.model, texts, shares=(each.share,) * 2, hard=None, offsets=[at]) for at in OFFSETS]
        assert each.any_offset == pytest.approx(
            torch.stack([tried.exact for tried in back]).any(0).float().mean().item()
        )
    for few, many in zip(found.examples[::2], found.examples[1::2], strict=True):
        assert few.tokens == many.tokens
        assert few.vectors <= many.vectors


def test_correlation_given_the_length():
    texts = [[0] * length for length in (3, 3, 3, 5, 5, 5)]
    assert given_length(texts, [1, 2, 3, 11, 12, 13], [1, 2, 3, 4, 5, 6]) == pytest.approx(1.0)
    assert given_length(texts, [1, 2, 3, 3, 2, 1], [1, 2, 3, 1, 2, 3]) == pytest.approx(0.0)
    assert given_length(texts, [1, 1, 1, 2, 2, 2], [1, 2, 3, 4, 5, 6]) is None


def test_numbers_json_is_checked(run, tmp_path):
    import shutil

    copy = shutil.copytree(run.path, tmp_path / "copy")
    Path(copy / "numbers.json").write_text('{"counts": [[5, 0, 1]]}')
    with pytest.raises(InputError, match=r"numbers\.json"):
        load_run(copy)


@pytest.fixture
def one_share(run) -> Run:
    """The same model, as if it had been trained with one share."""
    model = copy.deepcopy(run.model)
    model.config.shares = None
    return replace(run, model=model)


def test_without_an_exact_number_a_model_of_one_share_gives_that_share(one_share, texts):
    """The search never makes a text worse than the default does: it is exact, or reconstructed as without it."""
    default = reconstruct_ids(one_share.model, texts)
    for search in (find_fewest, choose_auto):
        found = search(one_share.model, texts)
        chosen = reconstruct_ids(one_share.model, texts, request=found.request)
        assert found.own_share.any()
        for row, text in enumerate(texts):
            assert chosen[row] == (default[row] if found.own_share[row] else text)
            assert (found.wrong[row] == 0) == found.exact[row]


def test_another_number_than_the_trained_share_warns(one_share, run, texts):
    with pytest.warns(OutsideTraining, match="one share"):
        find_fewest(one_share.model, texts[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_fewest(run.model, texts[:1])


@pytest.mark.parametrize("max_wrong", [-1, True])
def test_wrong_tokens_are_a_whole_number(run, texts, max_wrong):
    with pytest.raises(InputError, match="max_wrong"):
        run.find_fewest(texts[:1], max_wrong=max_wrong)


def test_token_ids_are_checked(run):
    for ids, words in (([run.model.config.vocab_size], "vocabulary"), ([5] * 1000, "tokens"), ([], "tokens")):
        with pytest.raises(InputError, match=words):
            run.find_fewest([[5, 6], ids])
        with pytest.raises(InputError, match=words):
            run.inspect_ids(ids)
        with pytest.raises(InputError, match=words):
            run.encode_ids([[5, 6], ids])


def test_old_names_work_and_warn(run, texts):
    text = run.tokenizer.decode(texts[0])
    with pytest.warns(DeprecationWarning, match="find_fewest"):
        old = run.find_needed(text)
    assert old.vectors.tolist() == run.find_fewest(text).vectors.tolist()
    with pytest.warns(DeprecationWarning, match="fewest"):
        run.encode(text, vectors="needed")


def test_lengths_that_training_did_not_have_are_warned_about(run):
    low, high = run.trained_lengths
    assert run.length_warning([[5] * low, [5] * high]) is None
    assert str(high) in run.length_warning([[5] * (high + 1)])
    with pytest.warns(OutsideTraining, match=f"{low} to {high}"):
        run.reconstruct("one")
    with pytest.warns(OutsideTraining, match=f"{low} to {high}"):
        run.sample(1, length=high + 1)


def test_a_warning_of_a_length_quotes_the_text_and_not_an_index(run, texts):
    _, high = run.trained_lengths
    long = run.tokenizer.decode((texts[0] * 20)[: high + 1])
    with pytest.warns(OutsideTraining, match="1 more text[.]") as caught:  # an index misleads in a file
        run.reconstruct([run.tokenizer.decode(texts[0]), long, long])
    assert str(caught[0].message).startswith(repr(long[:40])[:-1])
    with pytest.warns(OutsideTraining, match="^length is"):
        run.sample(1, length=high + 1)


def test_interpolate_searches_once(run, texts, monkeypatch):
    searches = []
    search = vector_count.find_fewest

    def counted(*given, **options):
        searches.append(given)
        return search(*given, **options)

    monkeypatch.setattr(vector_count, "find_fewest", counted)
    first, second = run.tokenizer.batch_decode(texts[:2])
    path = run.interpolate(first, second, steps=3, vectors="fewest")
    assert len(searches) == 1
    assert path == [run.between(first, second, weight, vectors="fewest") for weight in (0, 0.5, 1)]


def test_a_sample_of_the_latent_is_decoded_with_a_seed(run, texts):
    lines = run.tokenizer.batch_decode(texts[:5])
    assert run.reconstruct(lines, seed=0) == run.reconstruct(lines, seed=0)
    assert len(run.reconstruct(lines, seed=1)) == 5
