"""TextAutoencoder: one encoder, one bottleneck, one decoder, as a Hugging Face model."""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, Cache, GenerationMixin, PreTrainedModel
from transformers.utils.generic import ModelOutput

from open_nvib.attention import DenoisingAttention, Mixture
from open_nvib.layer import NVIB
from open_nvib.merging import VectorRequest
from open_nvib.store.settings import ScheduledValues
from open_nvib.text.model.backbone import extend_rows, make_pretrained, read_scaled
from open_nvib.text.model.bottlenecks import Latent
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.layers import LatentOutput, TextDecoder, TextEncoder, cross_entropy_of_head, make_new

IGNORED = -100
"""Label of padding."""


@dataclass
class AutoencoderOutput(ModelOutput):
    """The result of a forward pass. The parts of the loss are scaled as in the loss and not yet weighted by λ′.

    Args:
        loss: cross_entropy + λ′_G·kl_gaussian + λ′_D·kl_dirichlet.
        cross_entropy: per real token, the end of the text included.
        kl_gaussian: mean over texts of L_G/(n d).
        kl_dirichlet: mean over texts of L_D/n.
        kept: mean share of vectors kept.
        alpha0, sigma: mean concentration and standard deviation of the latent, where it has them.
        logits: (batch, length, vocabulary). With labels, only in evaluation mode if `sample` is not given: the loss
            never holds all of them.
    """

    loss: Tensor | None = None
    cross_entropy: Tensor | None = None
    kl_gaussian: Tensor | None = None
    kl_dirichlet: Tensor | None = None
    kept: Tensor | None = None
    alpha0: Tensor | None = None
    sigma: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None


class TextAutoencoder(PreTrainedModel, GenerationMixin):
    """T, VT, VTP, VTS and NVAE, which differ in the bottleneck only.

    ```python
    model = TextAutoencoder(TextAutoencoderConfig(vocab_size=3000))
    model(input_ids, attention_mask, labels=labels).loss.backward()
    ```
    """

    config_class = TextAutoencoderConfig
    base_model_prefix = "autoencoder"
    main_input_name = "input_ids"
    accepts_loss_kwargs = True
    supports_gradient_checkpointing = True
    _tied_weights_keys = {"head.weight": "encoder.embedding.tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__(config)
        self.encoder: TextEncoder
        self.decoder: TextDecoder
        self.encoder, self.decoder = (make_new if config.pretrained is None else make_pretrained)(config)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=self.decoder.head_bias)
        self.lambda_g, self.lambda_d = config.lambda_g, config.lambda_d
        self.post_init()
        self.encoder.bottleneck.reset_parameters()  # transformers passes over modules that only hold others

    @torch.no_grad()
    def start_from(self, source: Any, input_ids: Tensor, attention_mask: Tensor) -> None:
        """Take the weights of the pretrained model that the configuration describes.

        The texts measure its hidden states, for a bottleneck that starts as the identity.
        """
        tokens, output = (x.weight for x in (source.get_input_embeddings(), source.get_output_embeddings()))
        encoder: Any = self.encoder
        decoder: Any = self.decoder
        states = source.get_encoder().state_dict()
        encoder.stack.load_state_dict({name: x for name, x in states.items() if "embed_tokens" not in name})
        decoder.load_state_dict(type(decoder)(self.config, source).state_dict())
        self.get_input_embeddings().weight.copy_(extend_rows(tokens, self.config.vocab_size))
        if not self.config.tie_word_embeddings:
            self.head.weight.copy_(extend_rows(output, self.config.vocab_size))
        if self.head.bias is not None:
            bias = torch.as_tensor(source.final_logits_bias)[0]
            self.head.bias.zero_()[: len(bias)] = bias
        training, mask = self.training, attention_mask.bool()
        hidden = self.eval().encoder.hidden_states(input_ids, mask)
        shift, factor = self.train(training).encoder.bottleneck.start_as_identity(hidden, mask)
        for layer in self.decoder.layers:
            read_scaled(layer.cross_attention, shift, factor)

    def train_only(self, part: Literal["all", "decoder", "bottleneck"]) -> None:
        """Choose what is trained: all, the decoder with the bottleneck, or the bottleneck with what reads it."""
        self.requires_grad_(part == "all")
        if part == "decoder":
            self.decoder.requires_grad_(True)
            self.head.requires_grad_(not self.config.tie_word_embeddings)
        for trained in (self.encoder.bottleneck, *(layer.cross_attention for layer in self.decoder.layers)):
            trained.requires_grad_(True)

    def embed(self, ids: Tensor, *, first: int = 0) -> Tensor:
        """Embed written tokens for the decoder; `first` is the position of the first one."""
        return self.decoder.embed(self.encoder.embedding, ids, first=first)

    def set_schedule(self, values: ScheduledValues) -> None:
        """Set the weights of the loss and what the bottleneck schedules; at first they are the configuration's."""
        self.lambda_g, self.lambda_d = values.lambda_g, values.lambda_d
        self.encoder.bottleneck.set_schedule(values)

    def scheduled(self) -> dict[str, float]:
        """Return what `set_schedule` set, by name."""
        return {"lambda_g": self.lambda_g, "lambda_d": self.lambda_d, **self.encoder.bottleneck.scheduled()}

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Decode latents, or the means of the latents of `input_ids`; not for a text-generation pipeline."""
        frame = sys._getframe(1)  # the pipeline gives no other sign, and would echo the prompt
        for _ in range(4):  # decorators may stand between
            if frame is not None and type(frame.f_locals.get("self")).__name__ == "TextGenerationPipeline":
                raise ValueError(
                    "TextAutoencoder reconstructs a text and does not continue one. Use load_run(…).sample()."
                )
            frame = frame and frame.f_back
        return super().generate(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def get_encoder(self, *args: Any, **kwargs: Any) -> TextEncoder:
        return self.encoder

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embedding.tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        if not isinstance(value, nn.Embedding):
            raise TypeError(f"set_input_embeddings: value is a {type(value).__name__}, expected an nn.Embedding.")
        self.encoder.embedding.tokens = value

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.head = new_embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (NVIB, DenoisingAttention, nn.LayerNorm)):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.d_model**-0.5)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: LatentOutput | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        sample: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        num_texts_in_batch: int | None = None,
        request: VectorRequest | None = None,
        **kwargs: Any,
    ) -> AutoencoderOutput | LatentOutput:
        """Compute the loss of reconstructing `labels`, or the logits of `decoder_input_ids`, or the mean of the latent.

        Without `labels` and `decoder_input_ids`, the result is a `LatentOutput`, whose vectors are the features.

        Args:
            input_ids: the text to encode, (batch, n).
            attention_mask: 1 where a token is real; all are if not given.
            labels: the text to predict with its end, (batch, n + 1), -100 on padding.
            encoder_outputs: a latent to decode from instead, see `LatentOutput.of`.
            sample: whether the loss is that of a sample of the latent or of its mean; a sample in training mode and
                the mean in evaluation mode if not given.
            num_items_in_batch: divides the cross-entropy: the real labels of all batches of an optimiser step, which a
                Trainer gives; those of this batch if not given.
            num_texts_in_batch: divides the sum of the KL over texts: the texts of those batches. If not given, as many
                as `num_items_in_batch` labels are at this batch's number of labels for each text.
            request: how many vectors each text gets. If not given, training draws it if the configuration says so.
        """
        memories = getattr(past_key_values, "memories", None)
        if input_ids is None and encoder_outputs is None and memories is None:
            raise ValueError("input_ids is None, expected the token ids of texts, which tokenizer(texts) returns.")
        if labels is not None:
            if input_ids is None:
                raise ValueError("labels are given without input_ids, expected both: the loss is that of encoding too.")
            with_logits = sample is None and not self.training
            sample = self.training if sample is None else sample
            if request is None and sample:
                request = self.encoder.bottleneck.draw_request((labels != IGNORED).sum(-1) - 1)
            latent = self.encoder.posterior(input_ids, attention_mask, request, explore=sample)
            mixture = self.encoder.bottleneck.sample(latent) if sample else latent.mean()
            return self._loss(latent, mixture, labels, num_items_in_batch, num_texts_in_batch, with_logits=with_logits)
        if memories is None:
            latent = self.encoder(input_ids, attention_mask) if encoder_outputs is None else encoder_outputs
            if decoder_input_ids is None:
                return latent
            memories = self.decoder.project(latent.mixture())
            if past_key_values is not None:
                past_key_values.memories = memories  # pyright: ignore[reportAttributeAccessIssue]
        if decoder_input_ids is None:
            raise ValueError("decoder_input_ids is None, expected the tokens that follow those of past_key_values.")
        own = getattr(past_key_values, "self_attention_cache", past_key_values)  # of an EncoderDecoderCache
        first = 0 if own is None else own.get_seq_length()
        hidden = self.decoder(self.embed(decoder_input_ids, first=first), memories, own)
        return AutoencoderOutput(logits=self.head(hidden), past_key_values=past_key_values)

    def _loss(
        self, latent: Latent, mixture: Mixture, labels: Tensor, items: Any, texts: Any, *, with_logits: bool
    ) -> AutoencoderOutput:
        """Compute the loss of decoding `labels` from a mixture that is read of a latent."""
        bottleneck = self.encoder.bottleneck
        hidden = self.decoder(self.embed(self.shift_right(labels)), self.decoder.project(mixture))
        real = labels != IGNORED
        # most of the work is here
        total = cross_entropy_of_head(hidden[real], self.head.weight, labels[real], self.head.bias)
        items = real.sum() if items is None else items
        cross_entropy = total / items
        kl = bottleneck.kl(latent).per_token(latent.lengths, self.config.p)
        texts = len(labels) * (items / real.sum()) if texts is None else texts
        kl_gaussian = kl.gaussian.sum() / texts
        kl_dirichlet = kl.dirichlet.sum() / texts
        return AutoencoderOutput(
            loss=cross_entropy + self.lambda_g * kl_gaussian + self.lambda_d * kl_dirichlet,
            cross_entropy=cross_entropy.detach(),
            kl_gaussian=kl_gaussian.detach(),
            kl_dirichlet=kl_dirichlet.detach(),
            kept=latent.kept.mean().detach(),
            alpha0=None if latent.alpha0 is None else latent.alpha0.mean().detach(),
            sigma=bottleneck.mean_sigma(latent),
            logits=self.head(hidden) if with_logits else None,
        )

    def shift_right(self, labels: Tensor) -> Tensor:
        """Return the decoder's input when it predicts `labels`: the start, then all but the last of them."""
        shifted = labels.roll(1, dims=-1)
        shifted = shifted.masked_fill(shifted == IGNORED, self.config.pad_token_id)
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted


AutoConfig.register("open_nvib", TextAutoencoderConfig)
AutoModel.register(TextAutoencoderConfig, TextAutoencoder)
AutoModelForSeq2SeqLM.register(TextAutoencoderConfig, TextAutoencoder)
