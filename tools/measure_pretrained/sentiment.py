"""Fine-tune MiniLM on film reviews with several regularisers, and test it there and on texts of other kinds.

Its embeddings and first layers stay as they are, so that their states of each text are computed once. Every method has
the same steps, batches and learning rate, and as many settings to choose from. The setting is chosen by the accuracy on
validation texts of films; no test text has a part in it.
"""

import json
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from open_nvib.pretrained import convert
from open_nvib.pretrained.attention import nvibs
from open_nvib.store.files import write_json
from open_nvib.text.opening import open_saved, open_weights

DOMAINS = {
    "film": "movieReviewSnippets",
    "amazon": "amazonReviewSnippets",
    "nyt": "nytEditorialSnippets",
    "tweets": "tweets",
}
VALIDATION, TEST, TEST_ELSEWHERE = 600, 1000, 600
MAX_TOKENS = 40
BATCH = 16
CALIBRATION = 64
FROZEN = 3
"""Layers that are not trained, of six."""

STEPS = {0.1: 100, 1.0: 560}
TESTS = ("film", "amazon", "nyt", "tweets")


@dataclass(frozen=True)
class Setting:
    """A method and its regularisation; what is not given is off."""

    method: str
    learning_rate: float = 1e-4
    dropout: float = 0.0
    weight_decay: float = 0.0
    tau_alpha: float = math.inf
    tau_sigma: float = 0.0
    kl_weight: float = 0.0

    @property
    def name(self) -> str:
        given = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "method"}
        default = Setting("")
        return " ".join([self.method, *(f"{name}={x:g}" for name, x in given.items() if x != getattr(default, name))])


GRIDS: dict[str, tuple[dict[str, float], ...]] = {
    "plain": tuple({"learning_rate": rate} for rate in (1e-4, 2e-4)),
    "dropout": tuple({"dropout": share} for share in (0.05, 0.1)),
    "weight decay": tuple({"weight_decay": decay} for decay in (1.0, 10.0)),
    "VIB": tuple({"tau_sigma": sigma, "kl_weight": 1e-3} for sigma in (0.1, 0.3)),
    "NVIB": tuple({"tau_alpha": alpha, "tau_sigma": 0.1, "kl_weight": 1e-3} for alpha in (5.0, 2.0)),
}
"""Settings of each method. The learning rate that is best for plain fine-tuning is everybody's."""


class GaussianVIB:
    """Gaussian noise on what keys and values of each attention are made of, and its KL: NVIB without the process.

    The prior and the first σ are those of the NVIB of a converted model; a factor of σ for each dimension is learned.
    """

    def __init__(self, model: Any, converted: Any, tau_sigma: float) -> None:
        self.places = []
        for (name, nvib), attention in zip(
            nvibs(converted), (layer.attention.self for layer in model.bert.encoder.layer), strict=True
        ):
            assert name.endswith("self")
            attention.log_sigma = nn.Parameter(nvib.prior_log_sigma + math.log(tau_sigma))
            attention.prior = nvib.prior_mu.clone(), nvib.prior_log_sigma.clone()
            attention.key.register_forward_pre_hook(lambda _, inputs, place=attention: self._noisy(place, *inputs))
            attention.value.register_forward_pre_hook(lambda _, inputs, place=attention: place.noisy)
            self.places.append(attention)

    def _noisy(self, place: Any, x: Tensor) -> Tensor:
        place.seen = x
        place.noisy = x + place.log_sigma.exp() * torch.randn_like(x) if place.training else x
        return place.noisy

    def kl(self, mask: Tensor) -> Tensor:
        """L_G/np, averaged over texts and attentions."""
        terms = []
        for place in self.places:
            mu, log_sigma = place.prior
            square = ((place.seen - mu).square() + (2 * place.log_sigma).exp()) * (-2 * log_sigma).exp()
            each = 0.5 * (square - 1 - 2 * (place.log_sigma - log_sigma)).mean(-1)
            terms.append(((each * mask).sum(-1) / mask.sum(-1)).mean())
        return torch.stack(terms).mean()


Text = tuple[str, int]
Batch = tuple[dict[str, Tensor], Tensor]


class Data:
    """Texts and their classes: those to train with, and those of each test; and their states in a frozen MiniLM."""

    def __init__(self, folder: Path, minilm: str) -> None:
        self.train: list[Text] = []
        self.parts: dict[str, list[Text]] = {}
        self.tokenizer = open_saved(AutoTokenizer, minilm)
        self.frozen = open_weights(AutoModel, minilm)
        self.frozen.encoder.layer = self.frozen.encoder.layer[:FROZEN]
        self.states: dict[str, Tensor] = {}
        for name, prefix in DOMAINS.items():
            self._read(name, (folder / f"{prefix}_GroundTruth.txt").read_text("utf-8", errors="replace"))

    def _read(self, name: str, text: str) -> None:
        """Split the texts of films; of every other kind take as many of either class."""
        rows = [line.split("\t") for line in text.splitlines()[1:]]
        texts = sorted({(row[2], int(float(row[1]) > 0)) for row in rows if len(row) == 3 and float(row[1]) != 0})
        random.Random(0).shuffle(texts)
        if name == "film":
            self.parts["validation"], self.parts["film"] = texts[:VALIDATION], texts[VALIDATION : VALIDATION + TEST]
            self.train = texts[VALIDATION + TEST :]
        else:
            classes = ([text for text in texts if text[1] == label] for label in (0, 1))
            self.parts[name] = [text for each in classes for text in each[: TEST_ELSEWHERE // 2]]

    @torch.no_grad()
    def batches(self, rows: list[Text], size: int) -> list[Batch]:
        """Make batches of similar length: states, masks and classes."""
        self._encode([text for text, _ in rows if text not in self.states])
        rows = sorted(rows, key=lambda row: len(self.states[row[0]]))
        found = []
        for first in range(0, len(rows), size):
            texts, labels = zip(*rows[first : first + size], strict=True)
            states = [self.states[text].float() for text in texts]
            masks = [torch.ones(len(x), dtype=torch.long) for x in states]
            inputs = {"inputs_embeds": pad_sequence(states, True), "attention_mask": pad_sequence(masks, True)}
            found.append((inputs, torch.tensor(labels)))
        return found

    def _encode(self, texts: list[str]) -> None:
        texts = sorted(texts, key=len)
        for first in range(0, len(texts), 64):
            some = texts[first : first + 64]
            tokens = self.tokenizer(some, truncation=True, max_length=MAX_TOKENS, padding=True, return_tensors="pt")
            with autocast():
                states = self.frozen(**tokens).last_hidden_state
            for text, x, mask in zip(some, states, tokens["attention_mask"].bool(), strict=True):
                self.states[text] = x[mask].bfloat16()


class Given(nn.Module):
    """In place of the embeddings: states that are given."""

    def forward(self, inputs_embeds: Tensor, **kwargs: Any) -> Tensor:
        return inputs_embeds


def train_batches(data: Data, share: float, seed: int) -> list[Batch]:
    """Draw the texts of a seed, and its batches: of similar length, in random order, again and again."""
    generator = random.Random(seed)
    rows = generator.sample(data.train, round(share * len(data.train)))
    found: list[Any] = []
    while len(found) < STEPS[share]:
        generator.shuffle(rows)
        blocks = [rows[first : first + 8 * BATCH] for first in range(0, len(rows), 8 * BATCH)]
        epoch = [batch for block in blocks for batch in data.batches(block, BATCH)]
        generator.shuffle(epoch)
        found += epoch
    return found[: STEPS[share]]


def build(minilm: str, setting: Setting, data: Data, seed: int) -> tuple[Any, Any]:
    """Build the classifier and the function that computes its KL."""
    torch.manual_seed(seed)
    model: Any = open_saved(
        AutoModelForSequenceClassification,
        minilm,
        num_labels=2,
        hidden_dropout_prob=setting.dropout,
        attention_probs_dropout_prob=setting.dropout,
    )
    model.bert.embeddings, model.bert.encoder.layer = Given(), model.bert.encoder.layer[FROZEN:]
    kl = None
    if setting.method in ("VIB", "NVIB"):
        some = random.Random(0).sample(data.train, CALIBRATION)
        converted = convert(model, [inputs for inputs, _ in data.batches(some, BATCH)])
        if setting.method == "VIB":
            vib = GaussianVIB(model, converted, setting.tau_sigma)
            kl = vib.kl
        else:
            model = converted
            model.set_tau(alpha=setting.tau_alpha, sigma=setting.tau_sigma)
            kl = lambda mask: model.nvib_kl()  # noqa: E731
    torch.manual_seed(seed)
    return model, kl


def autocast() -> Any:
    """Compute products in bfloat16: a third faster, and the same for all methods."""
    return torch.autocast("cpu", torch.bfloat16)


def train(model: Any, kl: Any, setting: Setting, found: list[Any]) -> dict[str, float]:
    """Train with AdamW, a warm-up over a tenth of the steps and a linear decay to 0."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=setting.learning_rate, weight_decay=setting.weight_decay, fused=True)
    steps = len(found)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
    )
    model.train()
    losses, kls = [], []
    for inputs, labels in found:
        with autocast():
            loss = F.cross_entropy(model(**inputs).logits.float(), labels)
            losses.append(loss.item())
            if kl is not None:
                term = kl(inputs["attention_mask"])
                kls.append(term.item())
                loss = loss + setting.kl_weight * term
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        schedule.step()
    last = slice(-max(1, steps // 10), None)
    record = {"loss": sum(losses[last]) / len(losses[last])}
    if kls:
        record |= {"kl at first": kls[0], "kl": sum(kls[last]) / len(kls[last])}
    return record


@torch.inference_mode()
def test(model: Any, data: Data, parts: tuple[str, ...], kept: bool) -> dict[str, float]:
    """Compute the accuracy on each part in percent, and the tokens kept of film reviews."""
    model.eval()
    found: dict[str, float] = {}
    for part in parts:
        right, shares, tokens = 0, [], []
        for inputs, labels in data.batches(data.parts[part], 64):
            with autocast():
                right += (model(**inputs).logits.argmax(-1) == labels).sum().item()
            tokens.append(inputs["attention_mask"].sum(-1))
            if kept:
                shares.append(torch.stack(list(model.kept().values())))  # (attentions, batch)
        found[part] = 100 * right / len(data.parts[part])
        if kept:
            number = torch.cat(tokens)
            kept_share = torch.cat(shares, -1)
            found[f"{part}: tokens"] = number.float().mean().item()
            found[f"{part}: tokens kept"] = (kept_share * number).mean().item()
            found[f"{part}: tokens kept, last attention"] = (kept_share[-1] * number).mean().item()
    return found


def sentiment(arguments: Any) -> dict[str, Any]:
    """Choose a setting of each method on validation texts with seed 0, and test it with several seeds."""
    file = Path(arguments.output) / "sentiment.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    data = Data(Path(arguments.reviews), arguments.minilm)

    def run(setting: Setting, share: float, seed: int, at_least: float = 0.0) -> float:
        """Train, validate and, if the accuracy is at least `at_least`, test. The validation's accuracy is returned."""
        key = f"{setting.name} share={share:g} seed={seed}"
        if key not in found:
            start = time.process_time()
            model, kl = build(arguments.minilm, setting, data, seed)
            steps = train_batches(data, share, seed)
            cell: dict[str, Any] = {"method": setting.method, "setting": setting.name, "share": share, "seed": seed}
            cell |= {"steps": len(steps)} | train(model, kl, setting, steps)
            kept = setting.method == "NVIB"
            cell |= test(model, data, ("validation",), kept)
            if cell["validation"] >= at_least:
                cell |= test(model, data, TESTS, kept)
            found[key] = cell | {"seconds": time.process_time() - start}
            write_json(file, found, indent=1)
        return found[key]["validation"]

    chosen: dict[str, Setting] = {}
    for method, grid in GRIDS.items():
        rate = {} if method == "plain" else {"learning_rate": chosen["plain"].learning_rate}
        best = -1.0
        for each in grid:
            setting = Setting(method, **rate, **each)
            accuracy = run(setting, 0.1, 0, at_least=best)
            if accuracy > best:
                chosen[method], best = setting, accuracy
    for share in arguments.shares:
        for seed in arguments.seeds:
            for setting in chosen.values():
                run(setting, share, seed)
    return found
