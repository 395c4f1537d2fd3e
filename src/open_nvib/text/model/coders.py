"""TextEncoder and TextDecoder: tokens to a latent, and a latent to the hidden states that predict the next tokens."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.utils.generic import ModelOutput

from open_nvib._records import unchecked
from open_nvib.attention import Mixture, Projected
from open_nvib.merging import VectorRequest
from open_nvib.mixtures import GaussianMixture, ImpulseMixture
from open_nvib.text.model.bottlenecks import Bottleneck, Latent, make_bottleneck
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.layers import DecoderLayer, Embedding, EncoderLayer


@dataclass
class LatentOutput(ModelOutput):
    """A mixture as `generate()` passes it on: tensors with a batch axis.

    Args:
        last_hidden_state: the vectors of an ImpulseMixture or the means of a GaussianMixture, (batch, n, p).
        log_weight: their log π or log α, (batch, n).
        log_sigma: of a GaussianMixture, (batch, n, p).
        spread: of the points of a GaussianMixture, (batch, n).
    """

    last_hidden_state: Tensor | None = None
    log_weight: Tensor | None = None
    log_sigma: Tensor | None = None
    spread: Tensor | None = None

    @staticmethod
    def of(mixture: Mixture) -> "LatentOutput":
        """Convert a mixture."""
        if isinstance(mixture, ImpulseMixture):
            return LatentOutput(last_hidden_state=mixture.z, log_weight=mixture.log_pi, spread=mixture.spread)
        return LatentOutput(last_hidden_state=mixture.mu, log_weight=mixture.log_alpha, log_sigma=mixture.log_sigma)

    def mixture(self) -> Mixture:
        """Convert back."""
        if self.log_sigma is None:
            return unchecked(ImpulseMixture, z=self.last_hidden_state, log_pi=self.log_weight, spread=self.spread)
        return unchecked(
            GaussianMixture, mu=self.last_hidden_state, log_sigma=self.log_sigma, log_alpha=self.log_weight
        )


class TextEncoder(nn.Module):
    """Tokens to latent. `generate()` calls it and decodes from the mean, as is done at test time.

    The kinds are `NewEncoder` and `PretrainedEncoder`.
    """

    main_input_name = "input_ids"
    embedding: Any
    bottleneck: Bottleneck

    def hidden_states(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return the input of the bottleneck, a vector for each token."""
        raise NotImplementedError

    def posterior(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        request: VectorRequest | None = None,
        *,
        explore: bool = False,
    ) -> Latent:
        """Return the latent of each text; all tokens are real without a mask. Training explores: `Bottleneck`."""
        mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        encode = self.bottleneck.explore if explore else self.bottleneck
        return encode(self.hidden_states(input_ids, mask), mask, request)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> LatentOutput:
        return LatentOutput.of(self.posterior(input_ids, attention_mask).mean().compact())


class TextDecoder(nn.Module):
    """The embedded tokens so far and a mixture to the hidden states that predict the next tokens.

    The kinds are `NewDecoder` and those of `open_nvib.text.model.backbone`. `head_bias`: whether logits have a bias.
    """

    head_bias: bool = False
    layers: nn.ModuleList
    norm: nn.Module
    reading: str

    def embed(self, embedding: Any, ids: Tensor, *, first: int = 0) -> Tensor:
        """Embed written tokens with the encoder's embedding; `first` is the position of the first one."""
        return embedding(ids, first=first)

    def project(self, mixture: Mixture) -> list[Projected]:
        """Project the mixture for each layer, once for a whole sequence."""
        if self.reading == "points" and isinstance(mixture, GaussianMixture):
            mixture = mixture.points()
        return [layer.cross_attention.project(mixture) for layer in self.layers]  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]

    def forward(self, hidden: Tensor, memories: list[Projected], cache: Cache | None = None) -> Tensor:
        for layer, memory in zip(self.layers, memories, strict=True):
            hidden = layer(hidden, memory, cache)
        return self.norm(hidden)


class NewEncoder(TextEncoder):
    """An encoder that is trained from nothing."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.bottleneck = make_bottleneck(config)

    def hidden_states(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return self.norm(hidden)


class NewDecoder(TextDecoder):
    """A decoder that is trained from nothing."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.reading = config.reading
