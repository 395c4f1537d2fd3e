"""SetPool: a set of tokens without an order to any number of vectors."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from open_nvib._checks import check
from open_nvib._tensors import BatchRecord, unchecked


@dataclass(frozen=True, eq=False)
class PooledSet(BatchRecord):
    """Hidden states of the vectors of each set, and which of them there are: the input of `NVIB`.

    Args:
        hidden: the hidden states; 0 where there is no vector.
        mask: which vectors there are.
        groups: the vector that each token has joined, by index; -1 for padding.
    """

    hidden: Float[Tensor, "batch vectors size"]
    mask: Bool[Tensor, "batch vectors"]
    groups: Int[Tensor, "batch n"]


def nearest_centres(
    places: Float[Tensor, "batch n dims"], mask: Bool[Tensor, "batch n"], counts: Int[Tensor, " batch"], width: int
) -> Int[Tensor, "batch n"]:
    """Find the centre nearest to each token, by number, among `counts` ≤ `width` centres in each set.

    The centres are tokens, by farthest-point sampling: the first is the one nearest to the mean of the set, each other
    is the one farthest from those before it. Of tokens at the same distance, the first is taken.
    """
    wide = places.detach().masked_fill(~mask.unsqueeze(-1), 0.0)
    middle = wide.sum(1, keepdim=True) / mask.sum(-1).clamp(min=1)[:, None, None]
    centre = (wide - middle).square().sum(-1).masked_fill(~mask, torch.inf).argmin(-1)  # (batch,)
    nearest = torch.full(mask.shape, torch.inf, dtype=wide.dtype, device=wide.device)
    cells = torch.zeros(mask.shape, dtype=torch.long, device=wide.device)
    for number in range(width):
        at = wide.gather(1, centre[:, None, None].expand(-1, 1, wide.shape[-1]))
        distance = (wide - at).square().sum(-1)
        closer = (distance < nearest) & (number < counts).unsqueeze(-1)
        cells, nearest = torch.where(closer, number, cells), torch.where(closer, distance, nearest)
        centre = nearest.masked_fill(~mask, -1.0).argmax(-1)
    return cells


class SetPool(nn.Module):
    """Merge tokens around evenly spread centres into the number of vectors asked for.

    Farthest-point sampling spreads the centres, a token joins the nearest one, and a vector is the mean of its tokens
    plus a feed-forward layer whose hidden units are averaged over them. With as many vectors as tokens, each token has
    its own. The order of the tokens does not matter.

    >>> pool, nvib, tokens = SetPool(16), NVIB(16), torch.randn(2, 49, 16)
    >>> pooled = pool(tokens, vectors=torch.tensor([3, 8]))
    >>> nvib(pooled.hidden, pooled.mask).lengths
    tensor([3, 8])

    Args:
        size: size of the tokens and of the vectors.
        ffn_size: size of the feed-forward layer; default 4·`size`.
    """

    def __init__(self, size: int, *, ffn_size: int | None = None) -> None:
        super().__init__()
        width = 4 * size if ffn_size is None else ffn_size
        check("SetPool", size=(size, int), ffn_size=(width, int))
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, width), nn.Linear(width, size)

    def forward(
        self,
        tokens: Float[Tensor, "batch n size"],
        mask: Bool[Tensor, "batch n"] | None = None,
        *,
        vectors: Int[Tensor, " batch"] | int | None = None,
        places: Float[Tensor, "batch n dims"] | None = None,
    ) -> PooledSet:
        """Pool the tokens of each set into `vectors` vectors, for all sets or for each; default one for each token.

        The result has `vectors` columns if that is one number for all sets, and n otherwise. A set has at most as many
        vectors as tokens at different places. `places` are the coordinates that distances are measured in; default the
        tokens themselves. `mask` is True for real tokens; a set without any has no vectors.
        """
        n = tokens.shape[1]
        mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask
        vectors = n if vectors is None else vectors
        places = tokens if places is None else places
        given = {"vectors": (vectors, "number batch; >= 1"), "places": (places, "real batch n dims")}
        check("SetPool", tokens=(tokens, "batch n size"), mask=(mask, "bool batch n"), **given)
        width = min(vectors, n) if isinstance(vectors, int) else n
        counts = torch.as_tensor(vectors, device=tokens.device).expand(len(tokens))
        cells = nearest_centres(places, mask, counts, width)
        shares = F.one_hot(cells, width).to(tokens.dtype) * mask.unsqueeze(-1)  # (batch, n, width)
        size = shares.sum(1).unsqueeze(-1)  # tokens of each vector
        shares = shares.mT / size.clamp(min=1.0)
        tokens = tokens.masked_fill(~mask.unsqueeze(-1), 0.0)
        hidden = shares @ tokens + self.down(shares @ F.gelu(self.up(self.norm(tokens))))
        there = size.squeeze(-1) > 0
        hidden, groups = hidden.masked_fill(~there.unsqueeze(-1), 0.0), cells.masked_fill(~mask, -1)
        return unchecked(PooledSet, hidden=hidden, mask=there, groups=groups)
