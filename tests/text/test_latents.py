"""`nvib encode`: the latents of the lines of a file, and batches of latents in Python."""

import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from test_cli import fails, out
from test_model import make_batch, make_model

from open_nvib.store.files import InputError
from open_nvib.text.model import decoding


@pytest.fixture
def lines(tmp_path, known):
    """Texts on lines 1, 3 and 4 of a file; 2 and 6 are empty, 5 is too long."""
    file = tmp_path / "x.txt"
    file.write_text("\n".join([known[0], "", known[1], known[2], "war " * 64, "  "]) + "\n")
    return file


def test_file_has_the_kept_vectors_of_each_line(trained, known, lines, tmp_path, capsys):
    capsys.readouterr()
    out(capsys, "encode", trained.path, "--file", lines, "--output", tmp_path / "x.parquet")
    found = pq.read_table(tmp_path / "x.parquet").to_pydict()
    assert found["line"] == [1, 3, 4]
    assert found["text"] == known[:3]
    latent = trained.encode(known[:3])
    assert found["length"] == latent.lengths.tolist()
    for row in range(3):
        kept = (latent.alpha[row] > 0) & latent.mask[row]
        kept[-1] = False
        weight = latent.alpha[row] / latent.alpha0[row]
        expected = {"mu": latent.mu[row], "sigma": latent.log_sigma[row].exp(), "alpha": latent.alpha[row]}
        for name, values in (expected | {"weight": weight}).items():
            np.testing.assert_allclose(np.array(found[name][row]), values[kept].float().numpy(), rtol=1e-5)


def test_lines_that_are_left_out_are_named(trained, known, lines, capsys):
    capsys.readouterr()
    from open_nvib.cli import main

    main(["reconstruct", str(trained.path), "--file", str(lines)])
    said = capsys.readouterr()
    assert said.out.splitlines() == trained.reconstruct(known[:3])
    assert all(f"{number} (" in said.err for number in (2, 5, 6))
    lines.write_text("\n\n")
    assert "text" in fails(capsys, "reconstruct", trained.path, "--file", lines)


def test_only_files_of_its_own_are_replaced(trained, lines, tmp_path, capsys):
    output = tmp_path / "x.parquet"
    pq.write_table(pa.table({"mine": [1, 2, 3]}), output)
    before = output.read_bytes()
    command = ("encode", trained.path, "--file", lines, "--output")
    assert "x.parquet" in fails(capsys, *command, output)
    assert output.read_bytes() == before
    out(capsys, *command, output, "--overwrite")
    out(capsys, *command, output)
    assert len(pq.read_table(output)["line"]) == 3
    assert "x.csv" in fails(capsys, *command, tmp_path / "x.csv")
    (tmp_path / "folder.parquet").mkdir()
    assert "folder.parquet" in fails(capsys, *command, tmp_path / "folder.parquet")
    assert "x.txt" in fails(capsys, *command, lines / "x.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.parquet", "x.parquet", "x.txt"]


def test_one_text_is_one_text(trained, known):
    assert trained.reconstruct(known[0]) == trained.reconstruct([known[0]])
    assert len(trained.encode(known[0])) == 1
    assert [report.text for report in trained.inspect(known[0])] == [known[0]]
    for texts, name in (([known[0], "", " "], r"\[1\].*\[2\]"), (["a\ud800"], r"texts\[0\]")):
        with pytest.raises(InputError, match=name):
            trained.encode(texts)
    with pytest.raises(InputError, match="texts"):
        trained.encode([])


def test_batches_have_each_text_once(trained, known, monkeypatch):
    monkeypatch.setattr(decoding, "BATCH", 4)
    batches = list(trained.encode_batches(known[:11]))
    assert [len(latent) for _, latent in batches] == [4, 4, 3]
    assert sorted(index for indices, _ in batches for index in indices) == list(range(11))


@pytest.mark.parametrize("kind", ["t", "vt", "vtp", "vts", "nvae"])
def test_many_texts_in_batches_are_the_latents_of_one_batch(kind, monkeypatch):
    model = make_model(kind).eval()
    batch = make_batch(7, 4, 11, 3, 9)
    texts = [ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    expected = decoding.encode(model, texts)
    monkeypatch.setattr(decoding, "BATCH", 2)
    found = decoding.encode(model, texts)
    assert type(found) is type(expected)
    assert not found.mu.requires_grad
    torch.testing.assert_close(found.lengths, expected.lengths)
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.mu[found.mask], expected.mu[expected.mask])
    kl = model.encoder.bottleneck.kl
    torch.testing.assert_close(kl(found).gaussian, kl(expected).gaussian)


def test_memory_of_encoding_is_that_of_a_batch(trained, known, monkeypatch):
    """The encoder never sees more than a batch, however many texts there are."""
    sizes = []
    posterior = type(trained.model.encoder).posterior

    def counted(self, ids, *rest):
        sizes.append(len(ids))
        return posterior(self, ids, *rest)

    monkeypatch.setattr(type(trained.model.encoder), "posterior", counted)
    assert len(trained.encode(known * 12)) == 12 * len(known)
    assert max(sizes) <= decoding.BATCH


def test_encoding_many_texts_takes_little_more_memory_than_the_result(trained, known):
    """In a process of its own, whose peak is that of this program: the latents of 8,000 texts are 82 MB."""
    program = """
    import resource, sys
    from open_nvib.text import load_run

    def peak():
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    run, texts = load_run(sys.argv[1]), sys.argv[2:]
    run.encode(texts * 10)
    before = peak()
    for _ in run.encode_batches(texts * 400):
        pass
    streamed = peak() - before
    latent = run.encode(texts * 400)
    size = sum(x.numel() * x.element_size() for x in (latent.mu, latent.log_sigma))
    assert size > 40e6, size
    assert streamed < 40e6, streamed
    assert peak() - before < 1.6 * size, ((peak() - before) / size, size)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(trained.path), *known[:20]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
