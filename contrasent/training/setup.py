"""Setup of a run: from a recipe to its parts, everything checked before anything is written."""

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

from contrasent.data.examples import Examples, open_examples, open_training
from contrasent.data.loader import Loader, Mixture
from contrasent.data.views import Views, open_spans, open_views
from contrasent.data.word_vectors import WordTokenizer, open_words, sentence_marks
from contrasent.distributed import WHOLE, Split, launched, timeout
from contrasent.errors import ConfigError, ContrasentError, DataError, first_line, logger
from contrasent.evaluation.sts_data import RatedPairs
from contrasent.evaluation.suite import Suite
from contrasent.files import sha256_of
from contrasent.model import checkpoint
from contrasent.model.backbones.base import training_device
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import Convolutions, MlpHead
from contrasent.model.hub import are_words
from contrasent.model.loading import WordEncoder
from contrasent.model.masked_lm import MlmView
from contrasent.model.protocol import ROLES, EncoderParts
from contrasent.model.weights import add_lora
from contrasent.objectives import Objective, build
from contrasent.progress import progress_bar
from contrasent.recipe import Recipe
from contrasent.settings import EncoderSettings
from contrasent.training.compatibility import Combination, refuse
from contrasent.training.loop import Training, optimizer_of, trainable_parameters

if TYPE_CHECKING:
    from contrasent.training.scoring import DevTask


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts(Training):
    """The parts of a run."""

    loader: Mixture
    dev: "DevTask | None"  # the task that selects ``best``
    final: Suite | None  # the tasks scored before and after
    followed: RatedPairs | None  # pairs whose geometry is measured during training
    data: dict[str, Any]  # what is kept of the data in ``contrasent.json``


def prepare(
    recipe: Recipe,
    device: torch.device,
    show_progress: bool = False,
    holds_out: bool | None = None,
    split: Split = WHOLE,
) -> RunParts:
    """Read the data, load the encoder, build the objective of a :func:`complete` recipe.

    ContrasentError if settings, data or encoder cannot be used, or not together. ``holds_out`` says
    if the run that goes on keeps text out of training, None for a new one; ``split`` which process
    this is.
    """
    if not recipe.encoder.name or not recipe.data.file:
        missing = "a folder or model with --encoder, and the training text with --data"
        raise ConfigError(f"name {missing}")
    settings, evaluation = recipe.train, recipe.evaluation
    sources, whole = recipe.data.sources, dict[str, Examples]()
    recipes = {name: recipe.of(source) for name, source in sources.items()}
    for name, source in sources.items():
        with _naming(name, sources):
            chosen = recipes[name].data
            text = whole[name] = open_training(source.file, chosen.labels, chosen.columns)
            refuse(Combination(recipes[name], text.views))
            text.require(2)
            logger.info("data: %s", text.columns)
    dev = final = followed = None
    rests: dict[str, tuple[int, Path]] = {}
    if (evaluation.task, evaluation.final) != ("none", "none"):
        from contrasent.training.scoring import tasks_of

        plain = {name: it for name, it in whole.items() if recipes[name].data.labels == "none"}
        dev, final, rests = tasks_of(recipe, plain, holds_out)
    if evaluation.geometry_every is not None:
        followed = RatedPairs.read(evaluation.geometry_pairs, evaluation.data_dir)

    encoder = _trained_encoder(recipe, device)
    mlm_view = MlmView.of(recipe.view, encoder) if recipe.view.name == "mlm" else None
    how: dict[str, Any] = {"encoder": encoder, "width": encoder.full_width}
    how["batch_size"], objectives = settings.batch_size, dict[str, Objective]()
    for name, own in recipes.items():
        alike = [it for it in recipes if recipes[it].objective == own.objective]
        options, how["data_views"] = dict(own.objective), max(whole[it].views for it in alike)
        with _naming(name, sources):
            made = objectives.get(alike[0]) or build(str(options.pop("name")), options, **how)
        objectives[name] = made.to(device)
    several = len(set(objectives.values())) > 1
    longest, texts = mlm_view.generator.max_tokens if mlm_view else None, dict[str, Examples]()
    for name, source in sources.items():
        objective = objectives[name]
        text = open_examples(str(rests[name][1])) if name in rests else copy.copy(whole[name])
        text.prompts = _prompts(source.prompt, text.views, objective, encoder.conventions)
        with _naming(name, sources):
            given = recipes[name], whole[name].views, objective, encoder, longest
            refuse(Combination(*given, split.processes, text.prompts, several))
        texts[name] = text
    bare = [name for name, it in texts.items() if not (it.prompts or objectives[name].has_roles)]
    stated = encoder.conventions
    if bare and (prompts := {stated.resolve(), *map(stated.prompt_of, ROLES)} - {""}):
        logger.warning(
            "%s puts %s before sentences that it encodes, but not in training; put it before those "
            "of %s to train with it",
            *(recipe.encoder.name, " or ".join(map(repr, sorted(prompts))), ", ".join(bare)),
        )
    single = [objectives[name] for name, text in whole.items() if text.views == 1]
    copies = any(it.views > 1 and not it.provides_views for it in single)
    of_noise = copies and recipe.view.name == "dropout"
    if of_noise and recipe.encoder.dropout is None and not encoder.backbone.has_dropout:
        logger.warning(
            "no dropout of %s is above 0, so both views of a sentence are equal; set "
            "encoder.dropout, such as 0.1",
            recipe.encoder.name,
        )

    order: dict[str, Any] = {"shuffle": recipe.data.shuffle, "drop_last": recipe.data.drop_last}
    order |= {"seed": settings.seed, "batch_size": settings.batch_size}
    views, loaders = dict[str, Views](), dict[str, Loader]()
    for name, text in texts.items():
        with _naming(name, sources):
            read = _views(recipe, text, objectives[name], encoder.tokenizer, show_progress)
            views[name], loaders[name] = read, Loader(read.source, **order)
        counts = len(read.source.examples), read.source.views
        tell = logger.warning if read.skipped else logger.info
        tell("%s: %d examples of %d sentences; %s", name, *counts, read.left_out)
    loader = Mixture(loaders, [source.weight for source in sources.values()])
    records = {
        name: {
            "source": Path(text.source).name,
            "sha256": text.sha256,
            "columns": text.columns,
            "examples": len(views[name].source.examples),
            **({"held_out": rests[name][0]} if name in rests else {}),
            **({"batches": loader.counts[name]} if len(whole) > 1 else {}),
            **({"left_out": views[name].left_out} if views[name].skipped else {}),
            **views[name].origin,
        }
        for name, text in whole.items()
    }
    twin = copy.deepcopy(encoder) if recipe.encoder.encoders == "twin" else None
    return RunParts(
        encoder=encoder,
        twin=twin,
        objectives=objectives if len(sources) > 1 else {"": objectives[name]},
        optimizer=optimizer_of(settings, trainable_parameters(encoder, *objectives.values(), twin)),
        settings=settings,
        precision=encoder.resolve_precision(settings.precision),
        steps=settings.max_steps or settings.epochs * loader.steps_per_epoch,
        mlm_view=mlm_view,
        fixed_dropout=recipe.view.fixed_dropout,
        split=replace(split, chunk=settings.gradcache_chunk),
        loader=loader,
        dev=dev,
        final=final,
        followed=followed,
        data=_record(records, recipes.values(), dev),
    )


@contextmanager
def _naming(name: str, sources: Sized) -> Iterator[None]:
    """Put the name of a source, where there are several, before an error."""
    try:
        yield
    except (ConfigError, DataError) as error:
        if len(sources) > 1:
            error.args = (f"{name}: {error}",)
        raise


def _prompts(own: Any, views: int, objective: Objective, conventions: Any) -> Sequence[str]:
    prompts: list[str] = [own] if isinstance(own, str) else [*own]
    if objective.has_roles and not any(prompts):
        prompts = [*map(conventions.prompt_of, ROLES)][:views]
    prompts += prompts[-1:] * (views - len(prompts))
    return prompts if any(prompts) else ()


def _views(
    recipe: Recipe, text: Examples, objective: Objective, tokenizer: Any, show_progress: bool
) -> Views:
    limit, taken = recipe.data.max_tokens, objective.views
    if objective.takes_fewer:
        taken = min(taken, text.views)
    elif taken < text.views:
        logger.warning("%s has %s; only %d are read", text.source, text.columns, taken)
    if objective.spans is not None:
        return open_spans(objective.spans, text, tokenizer, limit)
    with progress_bar("reading examples", shown=show_progress) as advance:
        return open_views(
            recipe.view,
            text,
            tokenizer,
            limit,
            views=taken,
            needs=objective.needs,
            own_columns=partial(objective.columns, show_progress=show_progress),
            progress=lambda count: advance(completed=count),
        )


def _record(
    records: Mapping[str, dict[str, Any]], recipes: Iterable[Recipe], dev: "DevTask | None"
) -> dict[str, Any]:
    """What is kept of the data, of an only source or of all and of each; the hashes of all read."""
    every = list(records.values())
    content = "\n".join(record["sha256"] for record in every)
    sums = {key: sum(record.get(key, 0) for record in every) for key in ("examples", "held_out")}
    kept = every[0]
    if len(every) > 1:
        kept = {
            "source": ", ".join(record["source"] for record in every),
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            **{key: count for key, count in sums.items() if count},
            "sources": dict(records),
        }
    teachers = {str(it.objective.get("teacher")) for it in recipes}
    hashes = {it: sha256_of(Path(it)) for it in teachers if Path(it).is_file()}
    for _, read in dev.suite.kinds if dev else ():
        hashes |= {n.label: it.sha256 for n, it in zip(read.names, read.tasks, strict=False)}
    return {**kept, "read": {"the training data": kept["sha256"], **hashes}}


def _trained_encoder(recipe: Recipe, device: torch.device) -> SentenceEncoder:
    settings = recipe.encoder
    encoder = start_encoder(settings)
    backbone = encoder.backbone
    torch.manual_seed(recipe.train.seed)
    if isinstance(backbone, WordLstm) and are_words(settings.name):
        backbone.lstm.reset_parameters()
    if (widths := settings.convolutions) is not None:
        present = encoder.convolutions
        other = present and (list(present.widths), present.channels) != (widths, settings.channels)
        if other or encoder.pooler != "mean" or (encoder.head is not None and not present):
            raise ConfigError(
                "encoder.convolutions are for the mean over tokens without a head or others, but "
                f"{settings.name} has pooler {encoder.pooler}, head {encoder.head_name} and "
                f"{'other' if present else 'no'} convolutions; set the first two, or leave them out"
            )
        if present is None:
            encoder.convolutions = Convolutions(backbone.width, widths, settings.channels)
    if settings.head == "mlp" and encoder.head is None:
        encoder.head = MlpHead(encoder.full_width)
    if settings.lora is not None:
        add_lora(backbone, settings.lora, settings.lora_alpha)
    encoder.to(device)
    encoder.resolve_precision(recipe.train.precision)  # refused before the text is read
    if settings.freeze_embeddings:
        backbone.freeze_embeddings()
    if settings.freeze_layers:
        backbone.freeze_layers(settings.freeze_layers)
    backbone.set_checkpointing(recipe.train.gradient_checkpointing)
    return encoder


def start_encoder(settings: EncoderSettings) -> SentenceEncoder:
    """The encoder a run starts from, before new weights are added.

    A sentence encoder's stored head is taken on; the layer over [CLS] of a masked language model is
    not: SimCSE starts anew. Of word vectors it is a new LSTM, with the largest outputs.
    """
    if are_words(settings.name):
        path = Path(settings.name).expanduser()
        if settings.lstm is None or path.is_dir():
            raise ConfigError(
                f"{settings.name} holds word vectors, over which an LSTM is trained; say its size "
                "with encoder.lstm, as the recipe infersent does, and name the file of the vectors"
            )
        store = open_words(path)
        words, lstm = WordTokenizer(store, sentence_marks(store)), WordLstm(store, settings.lstm)
        parts = EncoderParts(backbone=lstm, tokenizer=words, pooler=settings.pooler or "max")
        encoder = SentenceEncoder(parts)
        encoder.name = settings.name
    else:
        finished = checkpoint.is_sentence_encoder(settings.name)
        encoder = SentenceEncoder.load(
            settings.name,
            pooler=settings.pooler or (None if finished else "cls"),
            head=settings.head if settings.head == "none" else None if finished else "none",
            device="cpu",
        )
    if encoder.transform is not None and not encoder.transform.is_trained:
        raise ConfigError(
            f"{settings.name} ends with a map that is not trained ({encoder.transform.described}); "
            "train the encoder without it, and fit one again with 'contrasent fit'"
        )
    if settings.layers is not None:
        encoder.backbone.keep_layers(settings.layers)
    if settings.prompt is not None:
        encoder.tokenizer = encoder.tokenizer.with_prompt(settings.prompt)
    if settings.dropout is not None:
        encoder.backbone.set_dropout(settings.dropout)
    if settings.bidirectional:
        encoder.backbone.see_both_sides()
    if encoder.pooler == "cls" and encoder.backbone.is_causal():
        if settings.pooler is not None or checkpoint.is_sentence_encoder(settings.name):
            encoder.backbone.refuse("the first token of {} sees no other", "set its pooler to last")
        encoder.pooler = "last"
    return encoder


def start_as_it_comes(settings: EncoderSettings) -> SentenceEncoder | WordEncoder:
    """The encoder that a run has to beat: its start with its own pooler and head.

    A masked language model gets the pooler of the run; of word vectors it is their mean.
    """
    if are_words(settings.name):
        return WordEncoder(open_words(Path(settings.name).expanduser()), settings.name)
    changes: dict[str, Any] = {"dropout": None, "bidirectional": False}
    if checkpoint.is_sentence_encoder(settings.name):
        if settings.layers is None:
            return SentenceEncoder.load(settings.name, device="cpu")
        changes |= {"pooler": None, "head": None, "prompt": None}
    return start_encoder(replace(settings, **changes))


def accelerator_on(
    device: str | torch.device | None, names: Sequence[str], folder: Path
) -> Accelerator:
    """The accelerator of a run on ``device``, with trackers that write to ``folder``."""
    here, patience = launched(), timeout()
    try:
        return Accelerator(
            cpu=training_device(device).type == "cpu",
            log_with=list(names) or None,
            project_config=ProjectConfiguration(logging_dir=str(folder)),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=patience)],
        )
    except RuntimeError as error:
        if here.processes == 1:
            raise
        raise ContrasentError(
            f"process {here.rank} of {here.processes} did not meet the others within "
            f"{patience.total_seconds():g} seconds ({first_line(error)[:200]}); give all the "
            "same MASTER_ADDR and MASTER_PORT, or wait longer with CONTRASENT_TIMEOUT (seconds)"
        ) from error
