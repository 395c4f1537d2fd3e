"""Denoising attention in two dimensions, over a sample and over the mean: the paper's `fig:overview` (b) and (c).

python -m tools.figures_of_docs.attention docs/figures/denoising_attention.svg
"""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, FancyArrowPatch, PathPatch
from matplotlib.path import Path as MarkerPath
from torch import Tensor

from open_nvib.attention import attend_gaussians, attend_impulses
from open_nvib.process import ConditionalBDP, Posterior
from open_nvib.report.figures.style import canvas, style, to_svg
from open_nvib.store.files import write_text
from open_nvib.text.drawing import BLUE, GREEN, INK, LINE, MUTED, PAPER, PINK

D = 2
"""Size of a key: the noise of a query has the variance √d."""
SPAN = 5.2
SEED = 7
RINGS = (2.0, 1.7, 1.4, 1.1, 0.8, 0.5, 0.25)
"""Of a Gaussian, in standard deviations."""
QUERIES = [[-4.6, 3.9], [-0.9, 1.4], [4.4, 4.3], [4.6, 0.1], [1.6, -2.3], [-4.7, -0.4], [-1.9, -4.5]]
Attend = Callable[[Tensor], Tensor]


def example() -> Posterior:
    """A text of six tokens, one of which was dropped; the prior's component is last."""
    alpha = torch.tensor([[3.0, 1.2, 2.0, 0.0, 1.6, 2.4, 0.7]])
    mu = torch.tensor([[[-3.0, 2.6], [0.9, 3.6], [3.4, 1.9], [3.55, -3.5], [0.2, -3.4], [-3.1, -2.3], [0.0, 0.0]]])
    sigma = torch.tensor(
        [[[0.75, 0.45], [0.5, 0.5], [0.4, 0.85], [0.6, 0.6], [0.8, 0.4], [0.55, 0.7], [1.15, 1.15]]],
    )
    prior = ConditionalBDP(torch.zeros(2), torch.zeros(2), torch.tensor(1.0), torch.tensor(1.0))
    return Posterior(alpha, mu, sigma.log(), torch.ones(1, 7, dtype=torch.bool), prior)


def draw_attention() -> str:
    """Both panels, by the attention that models use."""
    posterior = example()
    sample = posterior.sample(generator=torch.Generator().manual_seed(SEED))
    mean = posterior.mean()
    with style():
        figure, (left, right) = canvas(3.9, columns=2, sharex=True, sharey=True)
        _draw_impulses(left, sample.z[0], sample.log_pi[0].exp())
        _draw_queries(left, lambda u: attend_impulses(u, sample.z[0], sample.log_pi[0], d=D))
        _draw_gaussians(right, posterior)
        attend: Attend = lambda u: attend_gaussians(u, mean.mu[0], mean.log_sigma[0], mean.log_alpha[0], d=D)  # noqa: E731
        _draw_queries(right, attend)
        left.set_title("training: over a sample, impulses πᵢ at zᵢ")
        right.set_title("test time: over the mean, Gaussians αᵢ, μᵢ, σᵢ")
        for axes in (left, right):
            axes.set(xlim=(-SPAN, SPAN), ylim=(-SPAN, SPAN), aspect="equal", xticks=[], yticks=[])
            axes.grid(visible=False)
            axes.spines[["left", "bottom", "top", "right"]].set(visible=True, color=LINE)
        _legend(figure)
        return to_svg(figure)


def _draw_impulses(axes: Axes, z: Tensor, weights: Tensor) -> None:
    for (x, y), weight in zip(z.tolist(), weights.tolist(), strict=True):
        if weight > 0:  # a vector that was dropped has none
            size = 4 + 34 * weight**0.5  # the area is the weight
            axes.plot([x], [y], "o", color=PINK, markersize=size, markeredgecolor=PAPER, alpha=0.85, zorder=2)


def _draw_gaussians(axes: Axes, posterior: Posterior) -> None:
    """Rings of each component out to two standard deviations, the darker the higher its density."""
    alpha, mu, sigma = posterior.alpha[0], posterior.mu[0], posterior.log_sigma[0].exp()
    names = ["" if weight else "α = 0:\ndropped" for weight in alpha.tolist()]
    names[-1] = "prior"
    for weight, (x, y), (width, height), name in zip(alpha.tolist(), mu.tolist(), sigma.tolist(), names, strict=True):
        opacity = 0.055 * (weight / (width * height)) ** 0.65
        for radius in RINGS if weight else ():
            axes.add_patch(
                Ellipse((x, y), 2 * radius * width, 2 * radius * height, color=PINK, alpha=min(1, opacity), lw=0)
            )
        edge = {"edgecolor": MUTED if name else PINK, "linestyle": (0, (2, 3)) if name else "-"}
        axes.add_patch(Ellipse((x, y), 4 * width, 4 * height, fill=False, linewidth=0.8, **edge))
        if name:
            back = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
            axes.annotate(name, (x, y), ha="center", va="center", color=MUTED, fontsize=7.5, bbox=back)


def _draw_queries(axes: Axes, attend: Attend) -> None:
    """A faint field of where every point goes, and some queries with the vectors that they get."""
    steps = torch.linspace(-SPAN + 0.32, SPAN - 0.32, 19)
    grid = torch.cartesian_prod(steps, steps)
    shift = attend(grid) - grid
    ends = grid + 0.4 * shift / shift.norm(dim=-1, keepdim=True).clamp(min=1.4)
    corners = torch.stack([grid, ends], 1).flatten(0, 1).numpy()
    field = MarkerPath(corners, [MarkerPath.MOVETO, MarkerPath.LINETO] * len(grid))  # one path: a tenth of the bytes
    axes.add_patch(PathPatch(field, edgecolor=MUTED, facecolor="none", linewidth=0.7, alpha=0.5, zorder=1))
    heads = MarkerPath(ends.repeat_interleave(2, 0).numpy(), [MarkerPath.MOVETO, MarkerPath.LINETO] * len(grid))
    axes.add_patch(PathPatch(heads, edgecolor=MUTED, linewidth=1.9, alpha=0.7, capstyle="round", zorder=1))
    queries = torch.tensor(QUERIES)
    for query, value in zip(queries.tolist(), attend(queries).tolist(), strict=True):
        arrow = FancyArrowPatch(
            (query[0], query[1]),
            (value[0], value[1]),
            arrowstyle="-|>,head_width=2.2,head_length=4",
            shrinkA=4,
            shrinkB=4,
            color=INK,
            linewidth=1.1,
            zorder=4,
        )
        axes.add_patch(arrow)
        axes.plot(*[[x] for x in query], "o", color=PAPER, markeredgecolor=BLUE, markeredgewidth=1.8, zorder=5)
        axes.plot(*[[x] for x in value], "o", color=GREEN, markeredgecolor=PAPER, markersize=7.5, zorder=6)


def _legend(figure: Figure) -> None:
    def dot(colour: str, edge: str, size: float = 7) -> Line2D:
        return Line2D([], [], marker="o", linestyle="", color=colour, markeredgecolor=edge, markersize=size)

    handles = [
        (dot(PINK, PAPER, 9), dot(PINK, PAPER, 5)),
        dot(PAPER, BLUE),
        dot(GREEN, PAPER),
        Line2D([], [], color=MUTED, linewidth=0.8),
    ]
    labels = [
        "the mixture: a prior over vectors",
        "query: a noisy observation",
        "result: its expected value",
        "where every other query goes",
    ]
    figure.legend(handles, labels, loc="outside lower center", ncols=2, handler_map={tuple: HandlerTuple(ndivide=None)})


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), draw_attention())
