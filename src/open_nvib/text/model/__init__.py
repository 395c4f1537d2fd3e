"""T, VT, VTP, VTS and NVAE as one Hugging Face model, and decoding from its latents."""

from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig

__all__ = ["TextAutoencoder", "TextAutoencoderConfig"]
