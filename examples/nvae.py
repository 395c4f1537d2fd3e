"""NVAE, the paper's variational autoencoder, in one file: python examples/nvae.py

The text is the documentation that ships with Python. Sentences of 4 to 12 words are encoded, NVIB turns the tokens into
a Dirichlet process, a decoder reads a sample of it in training and its mean at test time. A gate for each token decides
which tokens keep a vector. It trains in about two minutes on one core and prints reconstructions, with dropped words in
brackets, and samples from the prior.
"""

import argparse
import collections
import pydoc_data.topics
import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import open_nvib as nv

PAD, START, END, UNKNOWN = range(4)
SPECIAL = ["<pad>", "<start>", "<end>", "<unk>"]
LONGEST = 12


def read_sentences() -> list[list[str]]:
    """Read the sentences of Python's help topics."""
    texts = pydoc_data.topics.topics.values()
    words = (re.findall(r"[a-z]+", part.lower()) for text in texts for part in re.split(r"[.:;\n]\s", text))
    return [list(x) for x in sorted({tuple(sentence) for sentence in words if 4 <= len(sentence) <= LONGEST})]


class NVAE(nn.Module):
    """Encoder, bottleneck and decoder: one Transformer layer each, around an NVIB."""

    def __init__(self, words: int, size: int = 96, heads: int = 4) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(words, size), nn.Embedding(LONGEST + 1, size)
        self.encoder = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, batch_first=True, norm_first=True)
        self.nvib = nv.NVIB(size, alpha_activation="gate", gate_count=1.5, gate_share=2 / 3)
        self.decoder = nv.MixtureDecoderLayer(size, heads, 2 * size, 0.0, norm_first=True, bound_queries=True)
        self.head = nn.Linear(size, words)
        nn.init.normal_(self.embed.weight, std=size**-0.5)

    def encode(self, tokens: Tensor, *, gate_noise: bool = False) -> nv.Posterior:
        """Tokens (batch, n), 0 for padding, to the posterior of n + 1 components."""
        hidden = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        hidden = self.encoder(hidden, src_key_padding_mask=tokens == PAD)
        return self.nvib(hidden, tokens != PAD, gate_noise=gate_noise)

    def decode(self, so_far: Tensor, mixture: nv.ImpulseMixture | nv.GaussianMixture) -> Tensor:
        """Tokens so far (batch, m) and a mixture to the logits of each next token, (batch, m, words)."""
        m = so_far.shape[1]
        causal = torch.ones(m, m, dtype=torch.bool).triu(1)
        return self.head(self.decoder(self.embed(so_far) + self.position.weight[:m], mixture, tgt_mask=causal))

    @torch.no_grad()
    def generate(self, mixture: nv.ImpulseMixture | nv.GaussianMixture) -> Tensor:
        """Decode greedily."""
        tokens = torch.full((len(mixture), 1), START)
        for _ in range(LONGEST + 1):
            tokens = torch.cat([tokens, self.decode(tokens, mixture)[:, -1:].argmax(-1)], 1)
        return tokens[:, 1:]


def make_batch(sentences: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Pad sentences: the encoder's input, the decoder's input and the labels."""
    width = max(map(len, sentences))

    def padded(rows: list[list[int]], to: int) -> Tensor:
        return torch.tensor([row + [PAD] * (to - len(row)) for row in rows])

    shifted, labels = [[START, *row] for row in sentences], [[*row, END] for row in sentences]
    return padded(sentences, width), padded(shifted, width + 1), padded(labels, width + 1)


def train(model: NVAE, sentences: list[list[int]], steps: int) -> None:
    """Train on samples of the posterior: cross-entropy, and the two parts of the KL, which come up slowly."""
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    pressure = nv.Schedule(0.05, 1.0, to_step=max(1, steps // 2))
    for step in range(steps):
        chosen = torch.randint(len(sentences), (64,)).tolist()
        tokens, shifted, labels = make_batch([sentences[i] for i in chosen])
        posterior = model.encode(tokens, gate_noise=True)
        logits = model.decode(shifted, posterior.sample())
        reconstruction = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD)
        regulariser = posterior.loss(lambda_g=0.01, lambda_d=2.0)
        loss = reconstruction + pressure.at(step) * regulariser
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if step % max(1, steps // 10) == 0:
            print(f"step {step}: cross-entropy {reconstruction.item():.3f}, kept {posterior.kept.mean().item():.2f}")


def main(steps: int, seed: int = 0) -> float:
    """Train, show what the model does, and return the share of held-out words that are exact."""
    torch.manual_seed(seed)
    texts = read_sentences()
    counts = collections.Counter(word for text in texts for word in text)
    vocabulary = SPECIAL + [word for word, count in counts.most_common() if count >= 3]
    index = {word: i for i, word in enumerate(vocabulary)}
    sentences = [[index.get(word, UNKNOWN) for word in text] for text in texts]
    order = torch.randperm(len(sentences)).tolist()
    held_out, training = [sentences[i] for i in order[:200]], [sentences[i] for i in order[200:]]
    print(f"{len(training):,} sentences, {len(vocabulary):,} words")
    model = NVAE(len(vocabulary))
    train(model, training, steps)

    tokens, shifted, labels = make_batch(held_out)
    with torch.no_grad():
        posterior = model.encode(tokens)
        right = model.decode(shifted, posterior.mean()).argmax(-1) == labels
    accuracy = right[labels != PAD].float().mean().item()
    print(f"\nexact: {accuracy:.3f} of the held-out words; vectors per word: {posterior.kept.mean().item():.2f}")

    def text(ids: Tensor) -> str:
        found = ids.tolist()
        return " ".join(vocabulary[i] for i in found[: found.index(END) if END in found else len(found)])

    for row, written in enumerate(model.generate(posterior[:6].mean())):
        pairs = zip(held_out[row], (posterior.alpha[row] > 0).tolist(), strict=False)
        print("  " + " ".join(vocabulary[i] if kept else f"[{vocabulary[i]}]" for i, kept in pairs))
        print("→ " + text(written))
    print("\nsamples from the prior:")
    for written in model.generate(model.nvib.prior.sample([5, 7, 9, 11])):
        print("  " + text(written))
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    main(parser.parse_args().steps)
