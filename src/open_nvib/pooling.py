"""SetPool: a set of tokens without an order to any number of vectors."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from open_nvib._checks import check
from open_nvib._records import BatchRecord, unchecked


@dataclass(frozen=True, eq=False)
class PooledSet(BatchRecord):
    """Hidden states of the vectors of each set, and which of them there are: the input of `NVIB`."""

    hidden: Float[Tensor, "batch vectors size"]
    mask: Bool[Tensor, "batch vectors"]


class SetPool(nn.Module):
    """Attention pool with a learned query for each vector, masked to the number of vectors asked for.

    The queries attend to each other and so to how many there are, then to the tokens. The order of the tokens does not
    matter.

    >>> pool, nvib, tokens = SetPool(16, most=8), NVIB(16), torch.randn(2, 49, 16)
    >>> pooled = pool(tokens, vectors=torch.tensor([3, 8]))
    >>> nvib(pooled.hidden, pooled.mask).lengths
    tensor([3, 8])

    Args:
        size: size of the tokens and of the vectors.
        most: the largest number of vectors.
        heads: number of heads; divides `size`.
        ffn_size: size of the feed-forward layer; default 4·`size`.
    """

    def __init__(self, size: int, most: int, *, heads: int = 1, ffn_size: int | None = None) -> None:
        super().__init__()
        check("SetPool", size=(size, int), most=(most, int), heads=(heads, int))
        self.most = most
        self.queries = nn.Parameter(torch.randn(most, size))
        width = 4 * size if ffn_size is None else ffn_size
        self.layer = nn.TransformerDecoderLayer(size, heads, width, dropout=0.0, batch_first=True, norm_first=True)

    def forward(
        self,
        tokens: Float[Tensor, "batch n size"],
        mask: Bool[Tensor, "batch n"] | None = None,
        *,
        vectors: Int[Tensor, " batch"] | int | None = None,
    ) -> PooledSet:
        """Pool the tokens of each set into `vectors` vectors, for all sets or for each; `most` if not given.

        The result has `vectors` columns if that is one number for all sets, and then costs less; otherwise `most`.
        `mask` is True for real tokens; a set without any has no vectors.
        """
        mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool) if mask is None else mask
        vectors = self.most if vectors is None else vectors
        width = min(vectors, self.most) if isinstance(vectors, int) else self.most
        number = {"vectors": (vectors, "number batch; >= 1")}
        check("SetPool", tokens=(tokens, "batch n size"), mask=(mask, "bool batch n"), **number)
        counts = torch.as_tensor(vectors, device=tokens.device).expand(len(tokens)).clamp(max=self.most)
        wanted = torch.arange(width, device=tokens.device) < counts.unsqueeze(-1)  # (batch, width)
        empty = ~mask.any(-1, keepdim=True)
        pooled = self.layer(
            self.queries[:width].to(tokens.dtype).expand(len(tokens), -1, -1),
            tokens.masked_fill(~mask.unsqueeze(-1), 0.0),
            tgt_key_padding_mask=~wanted,
            memory_key_padding_mask=~mask & ~empty,  # a softmax over nothing is NaN
        )
        there = wanted & ~empty
        return unchecked(PooledSet, hidden=pooled.masked_fill(~there.unsqueeze(-1), 0.0), mask=there)
