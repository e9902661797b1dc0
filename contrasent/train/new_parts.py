"""What a recipe adds to an encoder that has not got it: an LSTM, convolutions, a head."""

from __future__ import annotations

from pathlib import Path

from contrasent.config import EncoderSettings
from contrasent.data.word_tokens import WordTokenizer, found_marks
from contrasent.data.words import open_words
from contrasent.errors import ConfigError
from contrasent.model.backbones.word_lstm import WordLstm, require_pooler
from contrasent.model.convolutions import Convolutions
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead
from contrasent.model.words import are_words


def add_new_parts(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Give ``encoder`` the convolutions and the head that ``settings`` ask for.

    Raises:
        ConfigError: it cannot have those convolutions.
    """
    if settings.lstm is not None:
        _renew_lstm(encoder, settings)
    _add_convolutions(encoder, settings)
    if settings.head == "mlp" and encoder.head is None:
        encoder.head = MlpHead(encoder.width)


def over_words(settings: EncoderSettings) -> SentenceEncoder:
    """A new LSTM over the vectors of a file, with the largest outputs as the embedding.

    Raises:
        ConfigError: its size is not said, ``settings`` have no sense for it, or a folder of fitted
            vectors is named.
        CheckpointError: there is no such file, or it is damaged.
    """
    if settings.lstm is None:
        raise ConfigError(
            f"{settings.name} holds word vectors, over which an LSTM is trained; say its size with "
            "encoder.lstm, as the recipe infersent does"
        )
    path = Path(settings.name).expanduser()
    if path.is_dir():
        raise ConfigError(
            f"{settings.name} has weights fitted to words (SIF), which an LSTM would leave out; "
            "name the file of word vectors that it was made from"
        )
    store = open_words(path)
    chosen = settings.pooler or "max"
    require_pooler(chosen)
    tokenizer = WordTokenizer(store, found_marks(store))
    encoder = SentenceEncoder(WordLstm(store, settings.lstm), tokenizer, chosen)
    encoder.name = settings.name
    if settings.dropout is not None:
        encoder.backbone.set_dropout(settings.dropout)
    return encoder


def _renew_lstm(encoder: SentenceEncoder, settings: EncoderSettings) -> None:
    """Draw the weights of a new LSTM, or make sure that the one there is what is asked for."""
    backbone = encoder.backbone
    if not isinstance(backbone, WordLstm) or backbone.width != 2 * (settings.lstm or 0):
        raise ConfigError(
            f"encoder.lstm is {settings.lstm}, for a new LSTM over a .txt or .vec file of word "
            f"vectors, but {settings.name} is an encoder of its own; leave encoder.lstm out"
        )
    if are_words(settings.name):
        backbone.lstm.reset_parameters()


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
