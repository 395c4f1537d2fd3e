"""The causal scorer: a Transformer language model of the size of the model that is evaluated."""

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from open_nvib.text.model.autoencoder import IGNORED
from open_nvib.text.model.configuration import TextAutoencoderConfig

DROPOUT = 0.1


class LanguageModel(nn.Module):
    """GPT-2's architecture: a token sees the start of the text and what came before it, and nothing else."""

    def __init__(self, config: TextAutoencoderConfig) -> None:
        super().__init__()
        assert config.decoder_start_token_id is not None
        self.start = config.decoder_start_token_id
        self.model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=config.vocab_size,
                n_positions=config.max_positions,
                n_embd=config.d_model,
                n_layer=config.encoder_layers + config.decoder_layers,
                n_head=config.heads,
                n_inner=config.ffn_size,
                embd_pdrop=DROPOUT,
                attn_pdrop=0.0,
                resid_pdrop=DROPOUT,
                activation_function="relu",
                bos_token_id=config.bos_token_id,
                eos_token_id=config.eos_token_id,
                pad_token_id=config.pad_token_id,
            )
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The summed negative log-likelihood of `labels`, in nats."""
        labels = batch["labels"]
        real = labels != IGNORED
        seen = labels.masked_fill(~real, self.start).roll(1, dims=-1)
        seen[:, 0] = self.start
        hidden = self.model.transformer(input_ids=seen).last_hidden_state  # padding comes last: nothing real sees it
        logits = self.model.lm_head(hidden[real])
        return F.cross_entropy(logits.float(), labels[real], reduction="sum")
