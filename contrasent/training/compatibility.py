"""Compatibility: the combinations of settings, data and objective that a run refuses.

One table, read from top to bottom. A message says what was asked for, why it cannot be, and what
to do; it is filled in with the attributes of the `Combination`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from contrasent.data.batch import Need
from contrasent.data.view_sources import example_of
from contrasent.data.views import VIEWS
from contrasent.errors import ConfigError
from contrasent.evaluation.task_names import HELD_OUT
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.base import Objective
from contrasent.recipe import Recipe

_WITH_SHARE = ", ".join(name for name, view in VIEWS.items() if view.takes_share)
_EDITING = ", ".join(sorted(name for name, view in VIEWS.items() if view.edited))


@dataclass(frozen=True, slots=True)
class Combination:
    """Settings, data, objective and encoder of a run; the last two as soon as they are loaded.

    ``generator_tokens`` is the longest sentence that the generator of the view mlm takes,
    ``processes`` the number of those that train together.
    """

    recipe: Recipe
    data_views: int
    objective: Objective | None = None
    encoder: SentenceEncoder | None = None
    generator_tokens: int | None = None
    processes: int = 1

    @property
    def twin(self) -> bool:
        """Whether a second encoder is trained."""
        return self.recipe.encoder.encoders == "twin"

    @property
    def example(self) -> str:
        """The sentences of an example, in words."""
        return example_of(self.data_views)

    @property
    def batch_norm(self) -> str:
        """The first part of the encoder that normalises over the batch; empty if there is none."""
        modules = self.encoder.named_modules() if self.encoder else ()
        norms = (
            f"{type(module).__name__} {name!r}"
            for name, module in modules
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
        )
        return next(norms, "")

    @property
    def rate_steps(self) -> str:
        """The steps of the learning rate, in words."""
        return str(self.recipe.train.rate_steps or "empty")

    @property
    def plateau_setting(self) -> str:
        """The first setting that only the schedule plateau reads; empty if none is given."""
        train = self.recipe.train
        given = {
            "rate_decay": train.rate_decay != 1,
            "rate_shrink": train.rate_shrink != 1,
            "min_rate": train.min_rate is not None,
        }
        return next((name for name, is_given in given.items() if is_given), "")

    def needs(self, *needs: Need) -> bool:
        """Whether the objective has one of these needs."""
        return self.objective is not None and not self.objective.needs.isdisjoint(needs)

    def longer_than(self, limit: int | None) -> bool:
        """Whether a sentence may have more tokens than ``limit``."""
        return limit is not None and self.recipe.data.max_tokens > limit


@dataclass(frozen=True, slots=True)
class Rule:
    """A combination that is refused, by a format string with value, reason and remedy.

    A ``built`` rule needs the objective and the encoder, and so is looked at later.
    """

    refuses: Callable[[Combination], Any]
    message: str
    built: bool = False


def _late(refuses: Callable[[Combination, Objective], Any], message: str) -> Rule:
    return Rule(lambda c: refuses(c, c.objective) if c.objective else False, message, True)


def _chosen_by_dev(name: str) -> tuple[Rule, Rule]:
    """Rules of a setting of ``train`` that makes more candidates for ``best``."""
    given = f"train.{name} is {{recipe.train.{name}}}, "
    return (
        Rule(
            lambda c: getattr(c.recipe.train, name) and c.twin,
            given + "which is for one encoder, but encoder.encoders is twin; leave it out, or "
            "choose encoder.encoders shared",
        ),
        Rule(
            lambda c: getattr(c.recipe.train, name) and c.recipe.evaluation.task == "none",
            given + "of which the dev score chooses, but evaluation.task is none; name a task, or "
            f"leave train.{name} out",
        ),
    )


_ONE_EMBEDDING = "view.fixed_dropout is true, so one embedding stands for all views of an example"
_SPANS = "the objective {recipe.objective[name]} draws spans of documents as its views"
_NO_CACHE = "train without train.gradcache_chunk, with a smaller train.batch_size"

RULES = (
    # the settings alone
    Rule(
        lambda c: c.recipe.train.warmup_steps and c.recipe.train.warmup_share,
        "train.warmup_steps is {recipe.train.warmup_steps} and train.warmup_share "
        "{recipe.train.warmup_share:g}, which both say how long the warm-up is; give one of them",
    ),
    Rule(
        lambda c: (c.recipe.train.schedule == "steps") != bool(c.recipe.train.rate_steps),
        "train.schedule is {recipe.train.schedule} and train.rate_steps is "
        "{rate_steps}; they belong together, as in schedule steps with rate_steps "
        "'{{500: 1e-5, 1000: 5e-6}}'",
    ),
    Rule(
        lambda c: c.recipe.train.optimizer != "adamw" and not c.recipe.train.bias_correction,
        "train.bias_correction is false, but train.optimizer {recipe.train.optimizer} has none to "
        "leave out; leave it at true",
    ),
    Rule(
        lambda c: c.plateau_setting and c.recipe.train.schedule != "plateau",
        "train.schedule is {recipe.train.schedule}, which has no use for train.{plateau_setting}; "
        "leave that out, or choose train.schedule plateau",
    ),
    Rule(
        lambda c: c.recipe.encoder.keep == "better" and not c.twin,
        "encoder.keep is better, but encoder.encoders is shared, so there is one encoder; choose "
        "encoder.encoders twin, or encoder.keep first",
    ),
    Rule(
        lambda c: c.recipe.evaluation.task == HELD_OUT and c.recipe.data.labels != "none",
        "evaluation.task is {recipe.evaluation.task}, but data.labels is {recipe.data.labels}, and "
        "no task is made of labelled pairs; name stsb-dev, scored pairs of your own, or none",
    ),
    *(rule for name in ("start_shares", "whitening_sentences") for rule in _chosen_by_dev(name)),
    Rule(
        lambda c: c.recipe.encoder.lora and c.recipe.train.start_shares,
        "train.start_shares is {recipe.train.start_shares}, means of all weights, but encoder.lora "
        "is {recipe.encoder.lora}, which trains changes of them; leave one of the two out",
    ),
    # the view and the data
    Rule(
        lambda c: c.recipe.view.name != "dropout" and c.data_views > 1,
        "view.name is {recipe.view.name}, which makes the positive of a single sentence, but the "
        "data has {example}; choose one of its columns with data.columns, or view.name dropout",
    ),
    Rule(
        lambda c: c.recipe.view.share and not VIEWS[c.recipe.view.name].takes_share,
        "view.share is {recipe.view.share:g}, but the view {recipe.view.name} takes none; leave it "
        f"out, or choose view.name {_WITH_SHARE}",
    ),
    Rule(
        lambda c: c.recipe.view.sides == "both" and not VIEWS[c.recipe.view.name].edited,
        "view.sides is both, but the view {recipe.view.name} edits no sentence; leave it out, or "
        f"choose view.name {_EDITING}",
    ),
    Rule(
        lambda c: c.recipe.view.generator is not None and c.recipe.view.name != "mlm",
        "view.generator is {recipe.view.generator}, but the view {recipe.view.name} has none; "
        "leave it out, or choose view.name mlm",
    ),
    # the objective and how its views are embedded
    _late(
        lambda c, objective: (
            objective.spans and (c.recipe.view.name != "dropout" or c.recipe.view.fixed_dropout)
        ),
        f"{_SPANS}, so view.name and view.fixed_dropout have nothing to do; leave them out",
    ),
    _late(
        lambda c, objective: objective.spans and c.twin,
        f"{_SPANS}, of which the first are all anchors, but encoder.encoders is twin, which embeds "
        "the first one alone; choose encoder.encoders shared",
    ),
    _late(
        lambda c, _: c.recipe.view.fixed_dropout and c.data_views > 1,
        f"{_ONE_EMBEDDING}, but the data has {{data_views}} sentences per example; leave it out, "
        "or choose one column with data.columns",
    ),
    _late(
        lambda c, _: c.recipe.view.fixed_dropout and c.recipe.view.name != "dropout",
        f"{_ONE_EMBEDDING}, but the view {{recipe.view.name}} makes another sentence; leave it "
        "out, or choose view.name dropout",
    ),
    _late(
        lambda c, _: c.recipe.view.fixed_dropout and c.twin,
        f"{_ONE_EMBEDDING}, but encoder.encoders is twin, which embeds them apart; choose one of "
        "the two",
    ),
    _late(
        lambda c, objective: c.recipe.view.fixed_dropout and objective.provides_views,
        f"{_ONE_EMBEDDING}, but the objective {{recipe.objective[name]}} makes views of its own, "
        "which differ; leave it out",
    ),
    _late(
        lambda c, _: c.recipe.view.fixed_dropout and c.needs(Need.TOKEN_STATES),
        f"{_ONE_EMBEDDING}, but the objective also reads the token states of every view; leave it "
        "out, or that term",
    ),
    _late(
        lambda c, objective: c.twin and objective.views < 2 and not objective.provides_views,
        "encoder.encoders is twin, but the objective takes one view of each example, so that there "
        "is nothing for a second encoder; choose encoder.encoders shared",
    ),
    _late(
        lambda c, objective: c.recipe.view.name != "dropout" and objective.views < 2,
        "view.name is {recipe.view.name}, but the objective takes one view of each example, so "
        "that there is no positive; choose view.name dropout",
    ),
    _late(
        lambda c, _: (
            c.recipe.view.name == "crop_sentences"
            and c.needs(Need.POSITIONS, Need.NEXT_SENTENCES, Need.TARGETS)
        ),
        "view.name is crop_sentences, whose examples are whole texts, but the objective "
        "{recipe.objective[name]} reads something of each sentence; choose view.name dropout",
    ),
    _late(
        lambda c, _: c.needs(Need.POSITIONS) and c.recipe.data.shuffle,
        "the objective {recipe.objective[name]} tells the neighbours of a sentence in its document "
        "from the other sentences of the batch, but data.shuffle is true, so that a batch has "
        "hardly any; set data.shuffle to false",
    ),
    _late(
        lambda c, _: c.twin and c.needs(Need.TOKEN_STATES),
        "encoder.encoders is twin, but the objective also reads token states, which would be those "
        "of two encoders; choose encoder.encoders shared, or leave that term out",
    ),
    _late(
        lambda c, _: c.twin and c.needs(Need.ENCODER),
        "encoder.encoders is twin, but the objective {recipe.objective[name]} also runs the "
        "encoder itself, of which there would be two; choose encoder.encoders shared",
    ),
    _late(
        lambda c, _: not c.recipe.objective.get("teacher", "not needed"),
        "the objective {recipe.objective[name]} follows the embeddings of another encoder, but "
        "objective.teacher is empty; name a folder or a model with --objective.teacher",
    ),
    _late(
        lambda c, objective: objective.needs_pairs and c.data_views == 1,
        "the objective {recipe.objective[name]} takes pairs here, but {recipe.data.file} has "
        "{example}; set data.file to one of two columns or more (anchor, positive, hard "
        "negatives), or choose a recipe for single sentences, such as unsup-simcse",
    ),
    _late(
        lambda c, _: c.needs(Need.LABELS) and c.recipe.data.labels == "none",
        "the objective {recipe.objective[name]} needs the label of each pair, but data.labels is "
        "none; set it to nli, with data that has the columns premise, hypothesis and label "
        "('contrasent data build nli ... --make labelled' writes such a file)",
    ),
    _late(
        lambda c, _: c.needs(Need.SCORES) and c.recipe.data.labels != "scores",
        "the objective {recipe.objective[name]} needs the score of each pair, but data.labels is "
        "{recipe.data.labels}; set it to scores, with data that has the columns sentence1, "
        "sentence2 and score",
    ),
    _late(
        lambda c, _: not c.needs(Need.SCORES) and c.recipe.data.labels == "scores",
        "data.labels is scores, but the objective {recipe.objective[name]} reads no scores: it "
        "would take every pair for one of the same meaning; choose objective scored_pairs, or "
        "leave data.labels out and give pairs that mean the same",
    ),
    _late(
        lambda c, _: not c.needs(Need.LABELS) and c.recipe.data.labels == "nli",
        "data.labels is {recipe.data.labels}, but the objective {recipe.objective[name]} reads no "
        "labels: it would take contradictions for positives; leave data.labels out and give pairs "
        "or triplets ('contrasent data build nli' makes them), or choose objective nli_softmax",
    ),
    # gradient caching
    _late(
        lambda c, _: c.recipe.train.gradcache_chunk is not None and c.batch_norm,
        "train.gradcache_chunk is {recipe.train.gradcache_chunk}, so a batch is encoded in chunks, "
        "but {batch_norm} of the encoder normalises over the batch, so its embeddings would be "
        f"others; {_NO_CACHE}, or choose an encoder with LayerNorm",
    ),
    _late(
        lambda c, objective: (
            c.recipe.train.gradcache_chunk is not None
            and c.needs(Need.TOKEN_STATES, Need.TOKENS)
            and not objective.in_parts
        ),
        "train.gradcache_chunk is {recipe.train.gradcache_chunk}, but the objective also reads the "
        "states or the tokens of all sentences at once, which need the memory that it saves; "
        f"{_NO_CACHE}, and with train.gradient_checkpointing to save memory",
    ),
    # several processes
    _late(
        lambda c, _: c.processes > 1 and c.batch_norm,
        "{processes} processes share the train.batch_size of {recipe.train.batch_size}, but "
        "{batch_norm} of the encoder normalises over the batch, so its embeddings would be others; "
        "train in one process, or choose an encoder with LayerNorm",
    ),
    _late(
        lambda c, objective: (
            c.processes > 1 and c.needs(Need.TOKEN_STATES) and not objective.in_parts
        ),
        "{processes} processes share the train.batch_size of {recipe.train.batch_size}, but the "
        "objective {recipe.objective[name]} reads the token states of all sentences at once; train "
        "in one process, or choose another objective",
    ),
    # tokens of a sentence
    _late(
        lambda c, _: c.encoder and c.longer_than(c.encoder.max_tokens),
        "data.max_tokens is {recipe.data.max_tokens}, but {recipe.encoder.name} takes at most "
        "{encoder.max_tokens} tokens; lower it",
    ),
    _late(
        lambda c, objective: (
            "generator" not in c.recipe.objective and c.longer_than(objective.max_tokens)
        ),
        "data.max_tokens is {recipe.data.max_tokens}, but the objective {recipe.objective[name]} "
        "leaves room for {objective.max_tokens} tokens of a sentence; lower it",
    ),
    _late(
        lambda c, objective: c.longer_than(objective.max_tokens),
        "data.max_tokens is {recipe.data.max_tokens}, but the generator of objective "
        "{recipe.objective[name]} takes at most {objective.max_tokens} tokens; lower it, or name "
        "another objective.generator",
    ),
    _late(
        lambda c, _: c.longer_than(c.generator_tokens),
        "data.max_tokens is {recipe.data.max_tokens}, but the generator of view mlm takes at most "
        "{generator_tokens} tokens; lower it, or name another view.generator",
    ),
)


def refused_by(combination: Combination) -> Rule | None:
    """The first rule that refuses ``combination``; those of the objective once it is built."""
    built = combination.objective is not None
    return next((rule for rule in RULES if rule.built == built and rule.refuses(combination)), None)


def refuse(combination: Combination) -> None:
    """Raise ConfigError where settings, data and objective do not go together."""
    rule = refused_by(combination)
    if rule is not None:
        derived = ("example", "batch_norm", "rate_steps", "plateau_setting")
        values = {name: getattr(combination, name) for name in (*combination.__slots__, *derived)}
        raise ConfigError(rule.message.format(**values))
