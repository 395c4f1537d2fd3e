"""Any number of vectors: the search against brute force by real decoding, texts with numbers of their own, draws."""

import itertools
from pathlib import Path

import pytest
import torch

from open_nvib.cli import main
from open_nvib.evaluation.number import given_length, measure_number
from open_nvib.store.files import InputError
from open_nvib.store.settings import LossSettings, ModelSettings, OptimiserSettings, TrainConfig, WatchSettings
from open_nvib.text.data import load_prepared
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import decode, encode, evaluate_losses, make_batch, reconstruct_ids
from open_nvib.text.model.number import PLACES, Tries, decide_number, find_needed, numbers_to_try, vectors_at
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
    contrast = {"alpha_contrast": 1.0, "keep_share": 0.5} if request.param == "nvae" else {}
    sizes = ModelSettings(
        bottleneck=request.param,
        stride_pooling=True,
        alpha_unit="delta",
        d_model=32,
        ffn_size=32,
        decoder_layers=2,
        max_positions=64,
        dropout=0.0,
    )
    config = TrainConfig(
        data=str(folder / "data"),
        model=sizes,
        loss=LossSettings(lambda_g=1e-4, delta=10.0, shares="log_uniform", smallest_share=0.1, **contrast),
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
            cuts = {"vectors": torch.tensor([number]), "place": torch.tensor([place])}
            if reconstruct_ids(model, [text], cuts=cuts)[0] == text:
                return number, place, True
    return len(text), places[0], False


def test_the_search_is_brute_force_by_real_decoding(run, texts):
    texts = texts[::3]
    found = find_needed(run.model, texts)
    expected = [by_brute_force(run.model, text, PLACES) for text in texts]
    assert found.vectors.tolist() == [number for number, _, _ in expected]
    assert found.place.tolist() == pytest.approx([place for _, place, _ in expected])
    assert found.comes_back.tolist() == [back for _, _, back in expected]
    assert sum(found.comes_back) > 0
    assert len(set(found.vectors.tolist())) > 2


def test_every_text_is_tried_with_all_its_vectors(run, texts):
    """Also one of 17 or 19 tokens in a batch with longer ones, though above 16 not every number is tried."""
    long = [(texts[0] * 5)[:length] for length in range(15, 26)]
    tried = []

    class Watched(Tries):
        def latents(self, rows, **cuts):
            tried.extend(zip(self.mask.sum(-1)[rows].tolist(), cuts["vectors"].tolist(), strict=True))
            return super().latents(rows, **cuts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("open_nvib.text.model.number.Tries", Watched)
        found = find_needed(run.model, long, places=[0.0])
    for text, back in zip(long, found.comes_back.tolist(), strict=True):
        numbers = [number for length, number in tried if length == len(text)]
        assert back or numbers[-1] == len(text)
        assert numbers == sorted(set(numbers))
    assert not found.comes_back.all()


def test_what_comes_back_comes_back(run, texts):
    for found in (find_needed(run.model, texts), decide_number(run.model, texts)):
        decoded = reconstruct_ids(run.model, texts, cuts=found.cuts)
        for text, copy, back in zip(texts, decoded, found.comes_back.tolist(), strict=True):
            assert copy == text or not back


def test_two_looks_take_the_first_share_with_which_a_text_comes_back(run, texts):
    shares = (0.08, 0.15, 1.0)
    found = decide_number(run.model, texts, shares=shares, hard=None)
    lengths = torch.tensor(list(map(len, texts)))
    for row, text in enumerate(texts):
        numbers = [int(vectors_at(share, lengths)[row]) for share in shares]
        back = [reconstruct_ids(run.model, [text], cuts={"vectors": torch.tensor([m])})[0] == text for m in numbers]
        chosen = next((m for m, good in zip(numbers[:2], back[:2], strict=True) if good), numbers[2])
        assert (found.vectors[row], found.comes_back[row]) == (chosen, any(back[:2]))
    assert found.tries.max() == 2


def test_a_text_that_was_far_from_coming_back_gets_all_its_vectors(run, texts):
    shares = (0.08, 0.12, 0.3)
    lengths = torch.tensor(list(map(len, texts)))
    lost = ~decide_number(run.model, texts, shares=shares, hard=None).comes_back
    looks = [{"vectors": vectors_at(0.12, lengths)[row : row + 1]} for row in range(len(texts))]
    losses = [evaluate_losses(run.model, [text], cuts) for text, cuts in zip(texts, looks, strict=True)]
    nats = torch.tensor([loss["loss"] for loss in losses]) * (lengths + 1)
    middle = len(nats[lost]) // 2
    hard = nats[lost].sort().values[middle - 1 : middle + 1].mean().item()  # some are above, some are not
    found = decide_number(run.model, texts, shares=shares, hard=hard)
    otherwise = torch.where(nats > hard, lengths, vectors_at(0.3, lengths))
    torch.testing.assert_close(found.vectors[lost], otherwise[lost])
    assert len({*(found.vectors == lengths)[lost].tolist()}) == 2


def test_a_tolerance_takes_fewer_vectors(run, texts):
    strict, loose = find_needed(run.model, texts), find_needed(run.model, texts, max_wrong=12)
    assert (loose.vectors <= strict.vectors).all()
    assert loose.vectors.sum() < strict.vectors.sum()
    assert loose.wrong.max() <= 12
    assert loose.wrong.max() > 0
    assert (strict.wrong == 0).all()
    in_nats = find_needed(run.model, texts, max_nats=2.0)
    for row, text in enumerate(texts):
        batch = make_batch(run.model, [text])
        cuts = {name: values[row : row + 1] for name, values in in_nats.cuts.items()}
        with torch.no_grad():
            nats = run.model(**batch, cuts=cuts, sample=False).cross_entropy.item()
        assert (nats <= 2.0) or not in_nats.comes_back[row]
    assert in_nats.comes_back.any()


def test_texts_with_numbers_of_their_own_are_as_encoded_one_by_one(run, texts):
    torch.manual_seed(0)
    for cuts in (
        {"share": torch.rand(len(texts)).clamp(min=0.1)},
        {"vectors": torch.randint(1, 5, (len(texts),)), "place": torch.rand(len(texts))},
    ):
        together = encode(run.model, texts, cuts).mean()
        for row, text in enumerate(texts):
            alone = encode(run.model, [text], {name: x[row : row + 1] for name, x in cuts.items()}).mean()
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
        ({"vectors": "needed"}, run.find_needed(lines).vectors),
        ({"vectors": "decided"}, decide_number(run.model, texts[:5]).vectors),
    ):
        kept = (run.encode(lines, **number).kept.double() * lengths).round()
        if run.config.model.bottleneck == "vts":
            assert kept.tolist() == expected.tolist()
        else:  # a token with more than a vector's pseudo-count has the room of one; a share counts by Δ, not by tokens
            assert ((kept - expected).abs() <= (3 if "share" in number else 1)).all()
    needed = run.find_needed(lines)
    copies = run.reconstruct(lines, vectors="needed")
    assert all(a == b for a, b, back in zip(lines, copies, needed.comes_back, strict=True) if back)
    (report,) = run.inspect(lines[0], vectors=2)
    assert sum(token.kept for token in report.tokens) == 2
    assert len(run.interpolate(lines[0], lines[1], steps=3, vectors=2)) == 3
    assert sum(len(indices) for indices, _ in run.encode_batches(lines, vectors="needed")) == 5


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
    for number in ({"vectors": 2}, {"share": 0.5}, {"vectors": "needed"}, {"vectors": "decided"}):
        with pytest.raises(InputError, match="fixed number"):
            trained.reconstruct("a text", **number)


def test_commands_take_a_number(run, texts, capsys, tmp_path):
    line = run.tokenizer.decode(texts[0])
    (tmp_path / "x.txt").write_text(f"{line}\n")
    path = str(run.path)
    for number in (["--vectors", "2"], ["--share", "0.3"], ["--needed"], ["--decided"]):
        main(["reconstruct", path, line, *number])
        main(["inspect", path, line, *number])
        main(["interpolate", path, line, line, "--steps", "2", *number])
        main(["encode", path, "--file", str(tmp_path / "x.txt"), "--output", str(tmp_path / "x.npz"), *number])
        assert capsys.readouterr().out
    main(["sample", path, "--count", "2", "--vectors", "2"])
    with pytest.raises(SystemExit) as stop:
        main(["reconstruct", path, line, "--needed", "--vectors", "2"])
    assert stop.value.code == 2
    assert "expected one" in capsys.readouterr().err


def test_latents_are_written_with_a_number(run, texts, tmp_path):
    import numpy as np

    lines = run.tokenizer.batch_decode(texts[:4])
    path = write_latents(run, dict(enumerate(texts[:4])), lines, tmp_path / "x.npz", vectors=2)
    with np.load(path) as found:
        assert np.diff(found["offsets"]).tolist() == [2, 2, 2, 2]


def test_training_draws_a_share_for_each_text():
    torch.manual_seed(0)
    lengths = torch.full((4000,), 10)
    for shares, median in (("log_uniform", (0.12 * 1.25) ** 0.5), ("uniform", (0.12 + 1.25) / 2)):
        config = TextAutoencoderConfig(d_model=16, ffn_size=16, vocab_size=200, keep_share=0.5, shares=shares)
        drawn = TextAutoencoder(config).encoder.bottleneck.draw_cuts(lengths)
        assert drawn["share"].min() >= 0.12
        assert drawn["share"].max() == 1
        assert drawn["share"].median().item() == pytest.approx(median, abs=0.03)
        assert (drawn["place"] == 0).float().mean().item() == pytest.approx(0.5, abs=0.03)
        assert drawn["place"].max() < 1
    fixed = TextAutoencoder(TextAutoencoderConfig(d_model=16, ffn_size=16, vocab_size=200, keep_share=0.5))
    assert fixed.encoder.bottleneck.draw_cuts(lengths) == {}


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
    assert found.needed.exact == pytest.approx(find_needed(run.model, texts).comes_back.float().mean().item())
    assert found.needed.correlation == pytest.approx(1.0, abs=0.05)
    for each in found.shares:
        back = [decide_number(run.model, texts, shares=(each.share,) * 2, hard=None, places=[at]) for at in PLACES]
        assert each.any_place == pytest.approx(
            torch.stack([tried.comes_back for tried in back]).any(0).float().mean().item()
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
