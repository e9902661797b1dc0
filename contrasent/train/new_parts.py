"""What a recipe adds to an encoder that has not got it: convolutions, a head."""

from __future__ import annotations

from contrasent.config import EncoderSettings
from contrasent.errors import ConfigError
from contrasent.model.convolutions import Convolutions
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead


def add_new_parts(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Give ``encoder`` the convolutions and the head that ``settings`` ask for.

    Raises:
        ConfigError: it cannot have those convolutions.
    """
    _add_convolutions(encoder, settings)
    if settings.head == "mlp" and encoder.head is None:
        encoder.head = MlpHead(encoder.width)


def _add_convolutions(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Give ``encoder`` the convolutions that ``settings`` ask for, unless it has them.

    Raises:
        ConfigError: a width is even; the pooler is not the mean of the last layer; the encoder has
            other ones, or a head.
    """
    widths = settings.convolutions
    if widths is None:
        return
    if not widths or any(width % 2 == 0 for width in widths):
        raise ConfigError(
            f"encoder.convolutions is {widths}, but a convolution sees a token and as many on "
            "either side, so each width must be odd, such as 1, 3 or 5"
        )
    if encoder.pooler != "mean":
        raise ConfigError(
            f"encoder.convolutions are for the mean over tokens, but encoder.pooler is "
            f"{encoder.pooler}; set it to mean"
        )
    there = encoder.convolutions
    if there is not None:
        if (list(there.widths), there.channels) != (widths, settings.channels):
            raise ConfigError(
                f"{settings.name} has convolutions of widths {list(there.widths)} with "
                f"{there.channels} channels, not the {widths} with {settings.channels} of "
                "encoder.convolutions and encoder.channels; leave these out"
            )
        return
    if encoder.head is not None:
        raise ConfigError(
            f"{settings.name} has a head for embeddings without convolutions; set encoder.head to "
            "none to leave it out, or leave encoder.convolutions out"
        )
    encoder.convolutions = Convolutions(encoder.backbone.width, widths, settings.channels)
