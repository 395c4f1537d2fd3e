"""The configuration of a text autoencoder, as Hugging Face saves and loads it."""

from dataclasses import field, fields, make_dataclass
from typing import Any, ClassVar, get_args

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from open_nvib.store.settings import LossSettings, ModelSettings, ScheduledValues, check_model_options, check_numbers


def _options() -> list[tuple[str, Any, Any]]:
    """Name, type and default of every option of the model, from where it is defined."""
    types = {option.name: option.type for kind in (ModelSettings, ScheduledValues) for option in fields(kind)}
    options = [*fields(ModelSettings), *fields(LossSettings)]
    return [(option.name, _or_int(types[option.name]), field(default=option.default)) for option in options]


def _or_int(hint: Any) -> Any:
    """A whole number is a float in YAML and in Python, but not for `strict`."""
    return hint | int if hint is float or float in get_args(hint) else hint


_Options: Any = make_dataclass("_Options", _options(), init=False, repr=False, eq=False)


@strict
class TextAutoencoderConfig(_Options, PreTrainedConfig):
    """The options of `ModelSettings`, those of `LossSettings` as numbers, and the tokens of the vocabulary.

    Attributes:
        vocab_size: number of tokens.
        pad_token_id: of padding.
        bos_token_id: of the start of a text.
        eos_token_id: of its end.
        decoder_start_token_id: of what the decoder is given first.
    """

    model_type = "open_nvib"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "decoder_layers",
        "num_attention_heads": "heads",
    }

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
