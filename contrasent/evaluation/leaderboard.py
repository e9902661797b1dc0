"""MTEB's leaderboard: results under a name on the hub, and what goes with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.errors import CheckpointError
from contrasent.evaluation.embed import Problem
from contrasent.evaluation.mteb_encoder import first_line, import_mteb, model_meta
from contrasent.files import sha256_of
from contrasent.model.hub import resolve

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo
    from mteb.abstasks import AbsTask
    from mteb.models.model_meta import ModelMeta


_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True)
class Submission:
    """What the two pull requests to MTEB's leaderboard need."""

    meta: str  # ``ModelMeta`` as Python
    results: Path  # folder of MTEB's files of results, named by the hub's revision
    scores: Mapping[str, float]  # the main score of each task
    problems: Sequence[Problem]  # tasks that could not be run


def run_leaderboard(
    model: str, hub_id: str, tasks: Sequence[AbsTask], output: str | Path, device: str | None = None
) -> Submission:
    """Score an encoder as MTEB's leaderboard wants it, tasks with results in ``output`` left out.

    The encoder is loaded by sentence-transformers and run by MTEB's own wrapper of it, under its
    name and revision on the hub, without settings of an experiment. CheckpointError if it is not on
    the hub, or other weights are; MissingExtraError if MTEB or sentence-transformers is not
    installed. ``model`` is a folder or a run that was pushed as ``hub_id``, or ``hub_id`` itself;
    ``output`` is the folder of MTEB's files of results.
    """
    mteb = import_mteb()
    from mteb.models import SentenceTransformerEncoderWrapper

    pushed, folder = _pushed(hub_id), resolve(model)
    _require_same_weights(folder, pushed, hub_id)
    wrapper = SentenceTransformerEncoderWrapper(str(folder), device=device)
    meta = _meta(wrapper.model, pushed, hub_id)
    wrapper.mteb_model_meta = meta
    cache, scores, problems = mteb.ResultCache(Path(output)), {}, []
    for task in tasks:
        name = task.metadata.name
        try:
            result = mteb.evaluate(
                wrapper, task, cache=cache, overwrite_strategy="only-missing", co2_tracker=False
            )
            scores[name] = float(result.task_results[0].get_score())
        except Exception as error:  # noqa: BLE001 - data, network, memory: the others are run
            problems.append(Problem(name, f"{name}: {first_line(error)}"))
    results = Path(output) / "results" / hub_id.replace("/", "__") / str(pushed.sha)
    return Submission(_as_python(meta), results, scores, problems)


def _pushed(hub_id: str) -> ModelInfo:
    from huggingface_hub import HfApi

    try:
        return HfApi().model_info(hub_id, files_metadata=True)
    except Exception as error:  # of httpx or of requests, by the version of huggingface_hub
        raise CheckpointError(
            f"{hub_id} cannot be read from the Hugging Face Hub ({first_line(error)}); the "
            "leaderboard shows encoders that are there, so upload yours first"
        ) from error


def _require_same_weights(folder: Path, pushed: ModelInfo, hub_id: str) -> None:
    of_hub = {it.rfilename: it.lfs.sha256 for it in pushed.siblings or [] if it.lfs}
    both = [it for it in of_hub if it.endswith(_WEIGHTS) and (folder / it).is_file()]
    if not both:
        raise CheckpointError(
            f"{hub_id} and {folder} have no file of weights in common, so nothing shows that they "
            f"are the same; upload it again, or name {hub_id} as the model"
        )
    for name in both:
        if (found := sha256_of(folder / name)) != of_hub[name]:
            raise CheckpointError(
                f"{name} of {hub_id} is not that of {folder} (sha256 {of_hub[name][:12]} there, "
                f"{found[:12]} here); upload it again, or name {hub_id} as the model"
            )


def _meta(model: Any, pushed: ModelInfo, hub_id: str) -> ModelMeta:
    from mteb.models import sentence_transformers_loader

    card = pushed.card_data
    parameters = sum(it.numel() for it in model.parameters())
    words = getattr(getattr(model[0], "auto_model", None), "get_input_embeddings", None)
    old_name = "get_sentence_embedding_dimension"  # until sentence-transformers 5
    width = getattr(model, "get_embedding_dimension", None) or getattr(model, old_name)
    known: dict[str, Any] = {
        "loader": sentence_transformers_loader,
        "name": hub_id,
        "revision": pushed.sha,
        "release_date": pushed.created_at.date().isoformat() if pushed.created_at else None,
        "n_parameters": parameters,
        "n_embedding_parameters": words().weight.numel() if words else None,
        "memory_usage_mb": round(parameters * 4 / 2**20),
        "max_tokens": model.max_seq_length,
        "embed_dim": width(),
        "license": getattr(card, "license", None),
        "open_weights": True,
        "framework": ["Sentence Transformers", "PyTorch"],
        "reference": f"https://huggingface.co/{hub_id}",
        "similarity_fn_name": model.similarity_fn_name,
        "use_instructions": any(model.prompts.values()),
        "adapted_from": getattr(card, "base_model", None),
    }
    return model_meta(known)


def _as_python(meta: ModelMeta) -> str:
    """A module for MTEB's folder of models; None is for what only the authors know."""
    required = {name for name, field in type(meta).model_fields.items() if field.is_required()}
    values = meta.model_dump(mode="json", exclude={"loader"})
    unbounded = 'float("inf")'
    lines = [
        f"    {name}={unbounded if value == inf else repr(value)},\n"
        for name, value in values.items()
        if name in required or name in meta.model_fields_set
    ]
    variable = re.sub(r"\W", "_", (meta.name or "").rpartition("/")[2])
    return (
        "from mteb.models import ModelMeta, sentence_transformers_loader\n\n"
        f"{variable} = ModelMeta(\n    loader=sentence_transformers_loader,\n{''.join(lines)})\n"
    )
