"""Export of an encoder to the formats of other libraries, each checked against the encoder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, pick
from contrasent.files import (
    exclusive,
    read_json,
    recover_folder,
    refuse_existing,
    write_json,
    writing_folder,
)
from contrasent.quickstart import TEXT

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.protocol import Encoder

FORMATS = ("onnx", "openvino", "simcse")
TOLERANCE = 1e-4
_GRAPHS = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
_INFO = "contrasent.json"
_WITH_POOLER = ("bert", "roberta", "xlm-roberta")
"""Architectures that transformers gives a Linear and Tanh over [CLS]."""
_SENTENCES, _LONG = 300, 40


@dataclass(frozen=True, slots=True)
class Parity:
    """An export beside its encoder."""

    format: str  # one of `FORMATS`
    sentences: int  # how many were embedded by both
    largest_gap: float  # 1 less the lowest cosine of the two embeddings of a sentence


def export(
    encoder: SentenceEncoder,
    output: Path,
    format: str = "onnx",  # noqa: A002 - the option's name
    *,
    tolerance: float = TOLERANCE,
    overwrite: bool = False,
) -> Parity:
    """Write an encoder in another format, checked against it, whole or not at all.

    ``onnx`` and ``openvino`` are sentence-transformers folders with the graph in ``onnx/`` or
    ``openvino/``, which its backends of that name load, and with no head also fastembed. ``simcse``
    is a plain Hugging Face folder with the head as ``pooler.dense``, as SimCSE's are: its tool, and
    ``AutoModel(...).pooler_output``, give the encoder's vectors. CheckpointError if the cosine of a
    sentence's two embeddings is below 1 by more than ``tolerance``. ConfigError if there is no such
    format; or it cannot hold this encoder; or ``output`` exists. MissingExtraError if the format's
    packages are not installed.
    """
    from contrasent.model.graphs import require_runtime

    pick("format", format, FORMATS)
    if format in _GRAPHS:
        require_runtime(format)
    recover_folder(output)
    info = output / _INFO
    if not (overwrite and info.is_file() and "export" in read_json(info)):
        refuse_existing(output, "pass --overwrite to replace an export, or name another folder")
    with exclusive(output), writing_folder(output) as partial:
        if format == "simcse":
            exported = _write_simcse(encoder, partial)
        else:
            exported = _write_graph(encoder, partial, format)
        exported.name = str(output)
        parity = _measure(format, encoder, exported)
        if not parity.largest_gap <= tolerance:  # nor if it is a NaN
            raise CheckpointError(
                f"the {format} export gives other vectors than {encoder.name}: a cosine of "
                f"{1 - parity.largest_gap:.6f}, which is {parity.largest_gap:.1e} below 1 and not "
                f"within {tolerance:g}; nothing was written"
            )
        path = partial / _INFO
        known = read_json(path) if path.is_file() else {}
        write_json(path, known | {"export": asdict(parity)})
    return parity


def _write_graph(encoder: SentenceEncoder, folder: Path, format_name: str) -> Encoder:
    """Save the encoder with its transformer as a graph; returns it as that graph computes it."""
    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.graphs import write_graph
    from contrasent.model.pooling import POOLERS
    from contrasent.model.protocol import EncoderParts

    if POOLERS[encoder.pooler].layers != (-1,):
        raise ConfigError(
            f"{format_name} backends of other libraries give the last layer only, and pooler "
            f"{encoder.pooler!r} reads others; save the encoder with another pooler"
        )
    encoder.save(folder, {"encoder": encoder.name})
    names = folder / "special_tokens_map.json"  # fastembed asks for it, transformers 5 no longer
    if not names.is_file():
        write_json(names, encoder.tokenizer.special_names)
    path = folder / _GRAPHS[format_name]
    path.parent.mkdir()
    others = {it.name: getattr(encoder, it.name) for it in fields(EncoderParts)}
    backbone = write_graph(encoder.backbone, path, format_name)
    return SentenceEncoder(EncoderParts(**{**others, "backbone": backbone})).eval()


def _write_simcse(encoder: SentenceEncoder, folder: Path) -> Encoder:
    """Write a transformer with the head as ``pooler.dense``, as SimCSE's are."""
    from safetensors.torch import load_file, save_file

    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.weights import quiet

    extra = [n for n in ("convolutions", "transform") if getattr(encoder, n) is not None]
    model: Any = encoder.backbone.model
    if encoder.pooler != "cls" or extra or model.config.model_type not in _WITH_POOLER:
        what = extra[0] if extra else f"pooler {encoder.pooler!r} of {model.config.model_type}"
        raise ConfigError(
            f"SimCSE's layout holds [CLS] of {' or '.join(_WITH_POOLER)}, with or without a head, "
            f"and no {what}; export another format"
        )
    with quiet():
        model.save_pretrained(folder)
        encoder.tokenizer.save(folder)
    if encoder.head is not None:
        path = folder / "model.safetensors"
        dense = encoder.head.linear.state_dict().items()
        head = {f"pooler.dense.{name}": tensor.detach().cpu() for name, tensor in dense}
        save_file(load_file(path) | head, path, metadata={"format": "pt"})
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", {**config, "architectures": [type(model).__name__]})
    loaded = SentenceEncoder.load(folder, pooler="cls", head=encoder.head_name, device="cpu")
    loaded.max_tokens, loaded.normalize = encoder.max_tokens, encoder.normalize
    return loaded


def _measure(format_name: str, encoder: SentenceEncoder, exported: Encoder) -> Parity:
    """Both on sentences that ship with the package: a long one and a short one among them."""
    lines = TEXT.read_text(encoding="utf-8").splitlines()[:_SENTENCES]
    texts = [*lines, "a", " ".join(lines[:_LONG])]
    ours, theirs = (
        it.encode(texts, precision="fp32", on_overflow="truncate").astype(np.float64)
        for it in (encoder, exported)
    )
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(axis=1) / lengths
    gap = float(np.maximum(0.0, (1 - cosines).max()))  # of a NaN that is a NaN
    return Parity(format_name, len(texts), gap)
