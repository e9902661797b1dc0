"""Compatibility: the combinations of settings, data and objective that a run refuses.

Rows of a condition and a message (what was asked for, why it cannot be, what to do), from top to
bottom: those of the settings before anything is loaded, of objective and encoder once they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from contrasent.data.batch import Need
from contrasent.data.columns import SPECS
from contrasent.data.examples import SIDE_COLUMNS
from contrasent.data.loader import example_of
from contrasent.data.views import VIEWS
from contrasent.errors import ConfigError
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives import Objective
from contrasent.recipe import Recipe, dotted

Row = tuple[Any, str]


@dataclass(frozen=True, slots=True)
class Combination:
    """Settings, data, objective and encoder of a run; the last two as soon as they are loaded."""

    recipe: Recipe
    data_views: int
    objective: Objective | None = None
    encoder: SentenceEncoder | None = None
    generator_tokens: int | None = None
    processes: int = 1
    prompts: Sequence[str] = ()
    several: bool = False  # other sources have other objectives


_READ_BY = {
    "train.rate_decay": ("train.schedule", ("plateau",)),
    "train.rate_shrink": ("train.schedule", ("plateau",)),
    "train.min_rate": ("train.schedule", ("plateau",)),
    "train.rate_steps": ("train.schedule", ("steps",)),
    "train.bias_correction": ("train.optimizer", ("adamw",)),
    **dict.fromkeys(("train.betas", "train.eps"), ("train.optimizer", ("adamw", "rmsprop"))),
    "encoder.lora_alpha": ("encoder.lora", ()),
    "encoder.channels": ("encoder.convolutions", ()),
    "evaluation.geometry_pairs": ("evaluation.geometry_every", ()),
    "train.start_shares": ("encoder.encoders", ("shared",)),
    "encoder.keep": ("encoder.encoders", ("twin",)),
    "view.share": ("view.name", [name for name, view in VIEWS.items() if view.takes_share]),
    "view.sides": ("view.name", [name for name, view in VIEWS.items() if view.edits]),
    "view.generator": ("view.name", ("mlm",)),
    "view.fixed_dropout": ("view.name", ("dropout",)),
}
"""Settings that another one makes use of, with these of its values; none for any but null."""


def _of_settings(recipe: Recipe, data_views: int) -> Iterator[Row]:
    train, encoder, view = recipe.train, recipe.encoder, recipe.view
    settings, usual = dotted(recipe), dotted(Recipe())
    for setting, (other, values) in _READ_BY.items():
        value, chosen = settings[setting], settings[other]
        yield (
            value != usual[setting] and (chosen not in values if values else chosen is None),
            f"{setting} is {value}, but {other} {chosen} has no use for it; leave it out, or "
            f"choose {other} {', '.join(values)}".rstrip(),
        )
    yield (
        train.warmup_steps and train.warmup_share,
        f"train.warmup_steps is {train.warmup_steps} and train.warmup_share {train.warmup_share}, "
        "which both say how long the warm-up is; give one of them",
    )
    yield (
        recipe.evaluation.task == "held-out" and recipe.data.labels != "none",
        f"evaluation.task is held-out, but data.labels is {recipe.data.labels}, and no task is "
        "made of labelled pairs; name stsb-dev, scored pairs of your own, or none",
    )
    yield (
        encoder.lora and train.start_shares,
        f"train.start_shares is {train.start_shares}, means of all weights, but encoder.lora is "
        f"{encoder.lora}, which trains changes of them; leave one of the two out",
    )
    yield (
        view.name != "dropout" and data_views > 1,
        f"view.name is {view.name}, which makes the positive of a single sentence, but the data "
        f"has {example_of(data_views)}; choose one of its columns with data.columns, or view.name "
        "dropout",
    )


def _of_views(c: Combination, objective: Objective) -> Iterator[Row]:
    recipe, view, needs = c.recipe, c.recipe.view, objective.needs
    name, twin = recipe.objective["name"], recipe.encoder.encoders == "twin"
    yield (
        objective.spans and (view.name != "dropout" or view.fixed_dropout),
        f"the objective {name} draws spans of documents as its views, so view.name and "
        "view.fixed_dropout have nothing to do; leave them out",
    )
    yield (
        len(c.prompts) > c.data_views,
        f"there are {len(c.prompts)} prompts, but the data has {example_of(c.data_views)}; give "
        "each of its columns one at most",
    )
    yield (
        c.prompts and (VIEWS[view.name].edits or objective.spans),
        f"the prompt {''.join(c.prompts[:1])!r} would be edited like the text; leave it out",
    )
    reads_states = Need.TOKEN_STATES in needs
    yield (
        view.fixed_dropout
        and (c.data_views > 1 or twin or objective.provides_views or reads_states),
        "view.fixed_dropout is true, so one embedding stands for all views of an example. That "
        "takes single sentences, encoder.encoders shared, and an objective that makes no views and "
        f"reads no token states; here the data has {example_of(c.data_views)}, "
        f"encoder.encoders is {recipe.encoder.encoders} and the objective {name}; leave it out",
    )
    alone = objective.views < 2 and not objective.provides_views
    yield (
        twin and (objective.spans or alone or reads_states or Need.ENCODER in needs),
        "encoder.encoders is twin, where a second encoder embeds the positives of the data, but "
        f"the objective {name} has none of these, or also reads token states or the encoder; "
        "choose shared",
    )
    yield (
        view.name != "dropout" and objective.views < 2,
        f"view.name is {view.name}, but the objective takes one view of each example, so that "
        "there is no positive; choose view.name dropout",
    )
    of_each = {Need.POSITIONS, Need.NEXT_SENTENCES, Need.TARGETS}
    yield (
        view.name == "crop_sentences" and not needs.isdisjoint(of_each),
        "view.name is crop_sentences, whose examples are whole texts, but the objective "
        f"{name} reads something of each sentence; choose view.name dropout",
    )


def _of_data(c: Combination, objective: Objective) -> Iterator[Row]:
    recipe, needs, labels = c.recipe, objective.needs, c.recipe.data.labels
    name = recipe.objective["name"]
    yield (
        Need.POSITIONS in needs and recipe.data.shuffle,
        f"the objective {name} tells the neighbours of a sentence in its document from the other "
        "sentences of the batch, but data.shuffle is true, so that a batch has hardly any; set it "
        "to false",
    )
    yield (
        not recipe.objective.get("teacher", "not needed"),
        f"the objective {name} follows the embeddings of another encoder, but objective.teacher "
        "is empty; name a folder or a model with --objective.teacher",
    )
    yield (
        objective.needs_pairs and c.data_views == 1,
        f"the objective {name} takes pairs here, but the data has {example_of(1)}; set data.file "
        "to one of two columns or more (anchor, positive, hard negatives), or choose a recipe for "
        "single sentences, such as unsup-simcse; a source may have an objective of its own",
    )
    yield (
        c.several and objective.alone,
        f"the objective {name} changes what is saved, which sources with other objectives would "
        "share; give all sources this one, or leave out objective.keep_head and objective.space",
    )
    yield (
        c.several and not recipe.train.bias_correction,
        "train.bias_correction is false, which takes all weights to change in every step, but the "
        f"weights of the objective {name} change in those of its sources alone; set it to true",
    )
    for kind, side in SIDE_COLUMNS.items():
        what, columns = side.name.lower().replace("_", " "), ", ".join(SPECS[side.rows].roles)
        yield (
            Need[side.name] in needs and labels != kind,
            f"the objective {name} reads {what}: {columns}, but data.labels is "
            f"{labels}; set it to {kind}, with data that has these columns",
        )
    for kind, side in SIDE_COLUMNS.items():
        yield (
            Need[side.name] not in needs and labels == kind,
            f"data.labels is {labels}, but the objective {name} reads none and would take every "
            "pair for a positive; leave it out and give pairs that mean the same, or choose "
            "another objective",
        )


def _of_shares(c: Combination, objective: Objective, encoder: SentenceEncoder) -> Iterator[Row]:
    recipe, chunk = c.recipe, c.recipe.train.gradcache_chunk
    name, longest = recipe.objective["name"], recipe.data.max_tokens
    lstm, backbone = recipe.encoder.lstm, encoder.backbone
    yield (
        lstm and (not isinstance(backbone, WordLstm) or backbone.width != 2 * lstm),
        f"encoder.lstm is {lstm}, for a new LSTM over a .txt or .vec file of word vectors, but "
        f"{recipe.encoder.name} is an encoder of its own; leave encoder.lstm out",
    )
    norms = [
        f"{type(module).__name__} {name!r}"
        for name, module in encoder.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    states = {Need.TOKEN_STATES}
    for shared, how, remedy, needs in (
        (
            chunk is not None,
            f"train.gradcache_chunk is {chunk}, so a batch is encoded in chunks",
            "train without train.gradcache_chunk",
            {*states, Need.TOKENS},
        ),
        (
            c.processes > 1,
            f"{c.processes} processes share the train.batch_size of {recipe.train.batch_size}",
            "train in one process",
            states,
        ),
    ):
        yield (
            shared and norms,
            f"{how}, but {''.join(norms[:1])} of the encoder normalises over the batch, so its "
            f"embeddings would be others; {remedy}, or choose an encoder with LayerNorm",
        )
        yield (
            shared and not objective.in_parts and not objective.needs.isdisjoint(needs),
            f"{how}, but the objective {name} reads the states or the tokens of all sentences at "
            f"once; {remedy}, or choose another objective",
        )
    for limit, of in (
        (encoder.max_tokens, recipe.encoder.name),
        (objective.max_tokens, f"the objective {name}"),
        (c.generator_tokens, "the generator of view mlm"),
    ):
        yield (
            limit is not None and longest > limit,
            f"data.max_tokens is {longest}, but {of} takes at most {limit} tokens of a sentence; "
            "lower it",
        )


def rows(c: Combination) -> list[Row]:
    """Return what is looked at: a condition each, and the message where it holds."""
    if c.objective is None or c.encoder is None:
        return [*_of_settings(c.recipe, c.data_views)]
    views, data = _of_views(c, c.objective), _of_data(c, c.objective)
    return [*views, *data, *_of_shares(c, c.objective, c.encoder)]


def refuse(combination: Combination) -> None:
    """Raise ConfigError where settings, data and objective do not go together."""
    for refused, message in rows(combination):
        if refused:
            raise ConfigError(message)
