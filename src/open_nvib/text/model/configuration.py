"""The configuration of a text autoencoder, as Hugging Face saves and loads it."""

from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from open_nvib.store.settings import BottleneckKind, ScheduledValues, check_model_options, check_numbers

LOSS_PARTS = ("cross_entropy", "kl_gaussian", "kl_dirichlet", "kept", "alpha0", "sigma")
"""Entries of `AutoencoderOutput` that are logged and measured."""


@strict
class TextAutoencoderConfig(PreTrainedConfig):
    """The options of `ModelSettings`, which explains them, those of `LossSettings` as numbers, and special tokens.

    ```python
    config = TextAutoencoderConfig(vocab_size=3000, d_model=128, keep_share=0.5)
    model = TextAutoencoder(config)
    ```
    """

    model_type = "open_nvib"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "decoder_layers",
        "num_attention_heads": "heads",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = [*LOSS_PARTS, "past_key_values"]

    # ModelSettings; `pretrained` is the config of the pretrained model here
    bottleneck: BottleneckKind = "nvae"
    pretrained: dict[str, Any] | None = None
    d_model: int = 256
    latent_size: int | None = None
    encoder_layers: int = 1
    decoder_layers: int = 1
    heads: int = 1
    ffn_size: int = 256
    dropout: float | int = 0.1
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: int = 512
    tie_word_embeddings: bool = False
    pooling: Literal["mean", "max", "cls"] = "mean"
    stride: float | int = 0.5
    stride_pooling: bool = False
    alpha0_p: float | int = 1.0
    alpha_activation: Literal["relu", "softplus", "gate"] = "relu"
    gate_share: float | int = 0.5
    gate_pooling: bool = True
    bound_queries: bool = False
    alpha_unit: Literal["one", "delta"] = "one"
    gamma_method: Literal["paper", "implicit"] = "paper"
    kappa: int = 1
    kl_form: Literal["expected", "exact"] = "expected"
    reading: Literal["mean", "points"] = "mean"

    # LossSettings
    lambda_g: float | int = 0.01
    lambda_d: float | int = 1.0
    delta: float | int = 1.0
    alpha_contrast: float | int | None = None
    keep_share: float | int | None = None
    shares: str | None = None
    smallest_share: float | int = 0.12

    # the vocabulary
    vocab_size: int = 30522
    pad_token_id: int | None = 0
    bos_token_id: int | None = 101
    eos_token_id: int | list[int] | None = 102
    decoder_start_token_id: int | None = 101
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        check_model_options(self)
        check_numbers(self, ScheduledValues)

    @property
    def p(self) -> int:
        """Size of a latent vector."""
        return self.d_model if self.latent_size is None else self.latent_size

    @property
    def head_size(self) -> int:
        """Size of one head's key."""
        return (self.pretrained or {}).get("d_kv", self.d_model // self.heads)
