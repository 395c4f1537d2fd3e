"""The configuration of a text autoencoder, as Hugging Face saves and loads it."""

from typing import ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

BottleneckKind = Literal["t", "vt", "vtp", "vts", "nvae"]


@strict
class TextAutoencoderConfig(PreTrainedConfig):
    """One encoder and one decoder around a bottleneck. The defaults are the paper's sizes.

    Attributes:
        vocab_size: number of tokens.
        d_model: size of embeddings and hidden states.
        latent_size: size of a latent vector; `d_model` if not given.
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers.
        heads: heads of each attention.
        ffn_size: size of the feed-forward layers.
        dropout: share dropped after embeddings, attentions and feed-forward layers.
        positions: "sinusoidal", which any length has, or "learned" up to `max_positions`.
        max_positions: longest text in tokens.
        tie_word_embeddings: whether the output projection is the embedding matrix.
        bottleneck: "t" (none), "vt" (a Gaussian for each vector), "vtp" (one pooled vector), "vts" (vectors dropped at
            a stride) or "nvae" (NVIB).
        pooling: of "vtp": "mean", "max" or "cls", the first vector.
        stride: of "vts": the share of vectors dropped.
        stride_pooling: of "vts": whether a vector that stays is the mean of its token and of those dropped after it, as
            NVIB gathers them with `keep_share`, and not that of its token alone.
        alpha0_p: of "nvae": see `open_nvib.NVIB`.
        delta: of "nvae": likewise.
        alpha_activation: of "nvae": likewise.
        alpha_unit: of "nvae": likewise.
        alpha_contrast: of "nvae": likewise.
        keep_share: of "nvae": likewise.
        gamma_method: of "nvae": how weights are sampled, "paper" or "implicit".
        kappa: of "nvae": vectors sampled from each component.
        kl_form: of "nvae": "expected" or "exact".
        lambda_g: weight λ′_G of L_G in the loss.
        lambda_d: weight λ′_D of L_D in the loss.
    """

    model_type = "open_nvib"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "decoder_layers",
        "num_attention_heads": "heads",
    }

    vocab_size: int = 30522
    d_model: int = 256
    latent_size: int | None = None
    encoder_layers: int = 1
    decoder_layers: int = 1
    heads: int = 1
    ffn_size: int = 256
    dropout: float | int = 0.1
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: int = 512
    bottleneck: BottleneckKind = "nvae"
    pooling: Literal["mean", "max", "cls"] = "mean"
    stride: float | int = 0.5
    stride_pooling: bool = False
    alpha0_p: float | int = 1.0
    delta: float | int = 1.0
    alpha_activation: Literal["relu", "softplus"] = "relu"
    alpha_unit: Literal["one", "delta"] = "one"
    alpha_contrast: float | int | None = None
    keep_share: float | int | None = None
    gamma_method: Literal["paper", "implicit"] = "paper"
    kappa: int = 1
    kl_form: Literal["expected", "exact"] = "expected"
    lambda_g: float | int = 0.01
    lambda_d: float | int = 1.0
    pad_token_id: int | None = 0
    bos_token_id: int | None = 101
    eos_token_id: int | list[int] | None = 102
    decoder_start_token_id: int | None = 101
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: object) -> None:
        super().__post_init__(**kwargs)
        if self.d_model % self.heads:
            raise ValueError(f"d_model = {self.d_model} is not a multiple of heads = {self.heads}. Change one.")
        if not 0 <= self.stride < 1:
            raise ValueError(f"stride is {self.stride}, wanted a share of at least 0 and below 1.")

    @property
    def p(self) -> int:
        """Size of a latent vector."""
        return self.d_model if self.latent_size is None else self.latent_size
