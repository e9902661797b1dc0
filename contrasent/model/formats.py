"""Export of an encoder to the formats of other libraries, each checked against the encoder.

Shapes: S sentences, L tokens of the longest, T tokens end to end, D width.
"""

import logging
import warnings
from collections.abc import Set
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from contrasent import files
from contrasent.data.batch import Batch
from contrasent.errors import CheckpointError, ConfigError, first_line, pick, require_extra
from contrasent.model.backbones.base import Backbone, evaluating
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import POOLERS
from contrasent.model.hub import INFO_FILE
from contrasent.model.protocol import Encoder, EncoderParts
from contrasent.model.weights import quiet

FORMATS = {"onnx": 1e-4, "onnx-int8": 0.05}
"""The gap of a cosine to 1 that each format may have, unless the caller says otherwise."""

OPSET = 17
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
    tolerance: float | None = None,
    overwrite: bool = False,
) -> Parity:
    """Write an encoder in another format, checked against it, whole or not at all.

    ``onnx`` is a sentence-transformers folder with the graph in ``onnx/``, which its backend of
    that name loads, and with no head also fastembed; ``onnx-int8`` has a quantized graph beside it,
    ``model_quantized.onnx``, which transformers.js takes. CheckpointError if the cosine of a
    sentence's two embeddings is below 1 by more than ``tolerance``, else that of `FORMATS`.
    ConfigError if there is no such format; or it cannot hold this encoder; or ``output`` exists.
    MissingExtraError if packages are missing.
    """
    pick("format", format, FORMATS)
    require_extra(f"the format {format!r}", "onnx", "onnx", "onnxruntime")
    tolerance = FORMATS[format] if tolerance is None else tolerance
    files.recover_folder(output)
    info = output / INFO_FILE
    if not (overwrite and info.is_file() and "export" in files.read_json(info)):
        files.refuse_existing(output, "pass --overwrite to replace an export, or name a new folder")
    with files.exclusive(output), files.writing_folder(output) as partial:
        if POOLERS[encoder.pooler].layers != (-1,):
            raise ConfigError(f"onnx has the last layer; pooler {encoder.pooler!r} reads others")
        encoder.save(partial, {"encoder": encoder.name})
        # fastembed asks for it, transformers 5 no longer writes it
        names = partial / "special_tokens_map.json"
        if not names.is_file():
            files.write_json(names, encoder.tokenizer.special_names)
        known = files.read_json(config := partial / "tokenizer_config.json")
        known.pop("max_length", None)  # of a truncation that the encoder does not have
        files.write_json(config, known | {"model_max_length": encoder.max_tokens})
        graph = partial / "onnx" / "model.onnx"
        graph.parent.mkdir()
        export_onnx(encoder.backbone, graph)
        backbone = GraphBackbone(
            encoder.backbone, quantize(graph) if format == "onnx-int8" else graph
        )
        others = {it.name: getattr(encoder, it.name) for it in fields(EncoderParts)}
        exported = SentenceEncoder(EncoderParts(**{**others, "backbone": backbone})).eval()
        exported.name = str(output)
        parity = _measure(format, encoder, exported)
        if not parity.largest_gap <= tolerance:  # nor if it is a NaN
            raise CheckpointError(
                f"the {format} export gives other vectors than {encoder.name}: a cosine of "
                f"{1 - parity.largest_gap:.6f}, which is {parity.largest_gap:.1e} below 1 and not "
                f"within {tolerance:g}; nothing was written"
            )
        path = partial / INFO_FILE
        files.write_json(path, files.read_json(path) | {"export": asdict(parity)})
    return parity


def _measure(format_name: str, encoder: SentenceEncoder, exported: Encoder) -> Parity:
    text = Path(__file__).parents[1] / "quickstart_data" / "wikipedia.txt"
    lines = [*filter(None, text.read_text(encoding="utf-8").splitlines())][:_SENTENCES]
    texts = [*lines, "a", " ".join(lines[:_LONG])]
    ours, theirs = (
        it.encode(texts, precision="fp32", on_overflow="truncate").astype(np.float64)
        for it in (encoder, exported)
    )
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(axis=1) / lengths
    gap = float(np.maximum(0.0, (1 - cosines).max()))  # of a NaN that is a NaN
    return Parity(format_name, len(texts), gap)


class _LastState(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        output = self.model(input_ids=input_ids, attention_mask=attention_mask)
        state: Tensor = output.last_hidden_state
        return state


def export_onnx(backbone: Backbone, path: Path) -> None:
    """Write a transformer as ONNX; weights of over 2 GB lie in files beside.

    Inputs are `input_ids` and `attention_mask`, both ``(S, L)`` int64 and padded on the right; the
    output is `last_hidden_state (S, L, D)`. ConfigError for an architecture without such a form.
    """
    if backbone.depends_on_padding():
        backbone.refuse("padding, which graphs are given, changes the states of {}", "use torch")
    ids = torch.arange(1, 11).view(2, 5)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    names, states = ["input_ids", "attention_mask"], ["last_hidden_state"]
    try:
        with evaluating(backbone), quiet(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of how tracing will be done in the future
            torch.onnx.export(
                _LastState(backbone.model).eval(),  # the exporter puts this mode back
                (ids, mask),
                str(path),
                input_names=names,
                output_names=states,
                dynamic_axes={it: {0: "sentences", 1: "tokens"} for it in (*names, *states)},
                opset_version=OPSET,
                dynamo=False,  # the other exporter needs onnxscript
            )
    except Exception as error:  # the exporter and the tracer raise anything
        problem = f"cannot be written as ONNX: {first_line(error)}"
        raise ConfigError(f"{backbone.kind} {problem}") from error


def quantize(path: Path) -> Path:
    """Write ``model_quantized.onnx`` beside a graph, its weights in 8 bits; returns the path.

    Those of products have a scale for each column, and only 7 bits: processors with AVX2 alone add
    two products with an activation in 16 bits, and 2 * 255 * 64 fits there while 2 * 255 * 127 is
    cut off. Activations are scaled when it runs.
    """
    from onnxruntime import quantization

    target, kind = path.with_name("model_quantized.onnx"), quantization.QuantType.QInt8
    options: Any = {"weight_type": kind, "per_channel": True, "reduce_range": True}
    logging.disable(logging.WARNING)  # of shape inference, which adds nothing here
    try:
        quantization.quantize_dynamic(path, target, **options)
    finally:
        logging.disable(logging.NOTSET)
    return target


class GraphBackbone(Backbone):
    """The last states of ``backbone`` by ONNX Runtime, to check its export ``path``."""

    pads = True
    kind = "an exported graph"
    precisions = ("fp32",)
    device = torch.device("cpu")

    def __init__(self, backbone: Backbone, path: Path) -> None:
        import onnxruntime

        super().__init__()
        self.width, self.depth = backbone.width, backbone.depth
        self.max_tokens, self._padding = backbone.max_tokens, backbone.padding_id
        providers = ["CPUExecutionProvider"]
        self._session: Any = onnxruntime.InferenceSession(str(path), providers=providers)

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        sentences = torch.split(batch.token_ids, batch.lengths.tolist())
        padded = pad_sequence(list(sentences), batch_first=True, padding_value=self._padding)
        mask = torch.arange(padded.shape[1]) < batch.lengths.unsqueeze(1)
        inputs = {"input_ids": padded.numpy(), "attention_mask": mask.long().numpy()}
        return {self.depth: torch.from_numpy(self._session.run(None, inputs)[0])[mask]}
