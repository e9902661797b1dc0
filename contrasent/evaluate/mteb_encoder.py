"""An encoder as MTEB asks for one: ``mteb.evaluate(MtebEncoder(encoder), tasks)``.

Shapes: N texts of one call, M of another, D embedding width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contrasent.errors import ConfigError, MissingExtraError
from contrasent.evaluate.embedded import encoded, require_usable
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.words import WordEncoder

if TYPE_CHECKING:
    from mteb.models.model_meta import ModelMeta
    from torch import Tensor
    from torch.nn import Parameter


class MtebEncoder:
    """What MTEB calls ``EncoderProtocol``, around an encoder of ours.

    Text is embedded as MTEB hands it over, without prompts; similarity is the cosine.

    Attributes:
        encoder: what embeds.
        precision: what it embeds in.
        mteb_model_meta: what MTEB keeps of it: the hash of the weights as revision; pooler, head,
            precision, engine and longest sentence as settings, so that its files of results are
            told apart by them.
    """

    def __init__(self, encoder: SentenceEncoder | WordEncoder, precision: str = "fp32") -> None:
        """Describe the encoder to MTEB.

        Args:
            encoder: what embeds.
            precision: ``fp32``, ``bf16`` or ``auto``, or what the encoder's engine computes in.

        Raises:
            ConfigError: no such precision.
            MissingExtraError: MTEB is not installed.
        """
        self.encoder = encoder
        self.precision = encoder.resolve_precision(precision)
        self.mteb_model_meta = _described(encoder, self.precision)
        self._texts: dict[str, Any] = {}

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Embed what MTEB's loader holds, ``(N, D)`` float32.

        Args:
            inputs: batches of text; they are put together, as batches here are made by tokens.
            task_metadata: the task that asks.
            hf_split: its split, which changes nothing.
            hf_subset: its subset, which changes nothing.
            prompt_type: query or document, which changes nothing, as encoders here have no prompts.
            kwargs: MTEB's settings: ``show_progress_bar`` is followed, ``batch_size`` is not.

        Raises:
            ConfigError: MTEB is to quantise the embeddings.
            CheckpointError: an embedding is not finite.
        """
        del hf_split, hf_subset, prompt_type
        quantised = kwargs.get("precision")
        if quantised not in (None, "float32"):
            raise ConfigError(
                f"embeddings are float32, not {quantised!r}; leave 'precision' out of encode_kwargs"
            )
        texts = [text for batch in inputs for text in batch["text"]]
        digest = self._texts.setdefault(task_metadata.name, hashlib.sha256())
        for text in texts:
            raw = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(raw) + raw)
        show_progress = bool(kwargs.get("show_progress_bar", False))
        found = encoded(self.encoder, texts, precision=self.precision, show_progress=show_progress)
        require_usable(self.encoder.name, texts, found, of=task_metadata.name, zeros=True)
        return found

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Cosine of every row of one ``(N, D)`` with every row of the other ``(M, D)``."""
        from contrasent.functional import cosine_matrix

        return cosine_matrix(_rows(embeddings1), _rows(embeddings2))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Cosine of each row of one ``(N, D)`` with its row of the other, ``(N,)``."""
        from torch.nn import functional as F

        return F.cosine_similarity(_rows(embeddings1).float(), _rows(embeddings2).float(), dim=-1)

    def texts_sha256(self, task: str) -> str:
        """Hash of all texts embedded for a task so far, in MTEB's order."""
        return str(self._texts.get(task, hashlib.sha256()).hexdigest())


def import_mteb() -> Any:
    """MTEB's package.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import mteb
    except ImportError as error:
        raise MissingExtraError(
            "running MTEB needs its package; pip install 'contrasent[mteb]'"
        ) from error
    return mteb


def _described(encoder: SentenceEncoder | WordEncoder, precision: str) -> ModelMeta:
    import_mteb()
    from mteb.models.model_meta import ModelMeta

    parameters: list[Parameter] = []
    if isinstance(encoder, SentenceEncoder) and encoder.engine == "torch":
        parameters = [*encoder.parameters()]
    known: dict[str, Any] = {
        "name": _name(encoder.name),
        "revision": encoder.fingerprint()[:16],
        "n_parameters": sum(it.numel() for it in parameters) or None,
        "max_tokens": encoder.max_tokens or None,
        "embed_dim": encoder.width,
        "framework": ["PyTorch"],
        "similarity_fn_name": "cosine",
        "use_instructions": False,
        "experiment_kwargs": {
            "pooler": encoder.pooler,
            "head": encoder.head_name,
            "precision": precision,
            "engine": encoder.engine,
            "max_tokens": encoder.max_tokens,
        },
    }
    # Which fields are there, and have to be, differs between versions of MTEB.
    needed = {name for name, field in ModelMeta.model_fields.items() if field.is_required()}
    return ModelMeta(**{**dict.fromkeys(needed - known.keys()), **known})


def _name(name: str) -> str:
    """A name with an organisation, as MTEB wants it; that of a folder does not tell where it is."""
    path = Path(name)
    if path.exists() or name.count("/") != 1:
        return f"contrasent/{path.resolve().name}"
    return name


def _rows(embeddings: Any) -> Tensor:
    import torch

    rows: Tensor = torch.as_tensor(embeddings)
    return rows if rows.ndim > 1 else rows[None]
