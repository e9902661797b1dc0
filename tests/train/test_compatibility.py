"""Combinations of settings, data and objective that are refused, each with value and remedy."""

import re
from dataclasses import dataclass, field

import pytest
from torch import nn

from contrasent.data.batch import Need
from contrasent.data.spans import Spans
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.base import Objective
from contrasent.recipe import load_recipe
from contrasent.training.compatibility import RULES, Combination, refuse, refused_by


class Stub(Objective):
    """An objective of two views without a further need."""

    views = 2

    def __init__(self, **changes):
        super().__init__()
        for name, value in changes.items():
            setattr(self, name, value)

    def forward(self, encoded, batch):
        raise NotImplementedError


SINGLE = {"views": 1}
STATES = {"needs": frozenset({Need.TOKEN_STATES})}
TOKENS = {"needs": frozenset({Need.TOKENS})}
SCORES = {"needs": frozenset({Need.SCORES})}
LABELS = {"needs": frozenset({Need.LABELS})}
ORDERED = {"needs": frozenset({Need.POSITIONS}), "views": 1, "provides_views": True}
SPANS = {"spans": Spans()}
FIXED = {"view.fixed_dropout": True}
TWINS = {"encoder.encoders": "twin"}
CHUNKS = {"train.gradcache_chunk": 4}
LONG = {"data.max_tokens": 60}


@dataclass(frozen=True)
class Case:
    """Settings that are refused, and words of the message in their order."""

    settings: dict
    words: tuple
    objective: dict | None = None
    data_views: int = 1
    recipe: str = "unsup-simcse"
    batch_norm: bool = False
    generator_tokens: int | None = None
    processes: int = 1
    more: dict = field(default_factory=dict)


CASES = [
    Case(
        {"evaluation.task": "held-out", "data.labels": "nli"},
        ("evaluation.task is held-out", "data.labels is nli", "pairs of your own, or none"),
    ),
    Case(
        {"encoder.lora": 4, "train.start_shares": [0.5]},
        ("train.start_shares is [0.5]", "encoder.lora is 4", "leave one of the two out"),
    ),
    Case({"train.rate_decay": 0.9}, ("is linear", "no use for train.rate_decay", "leave that out")),
    Case({"train.rate_shrink": 5}, ("no use for train.rate_shrink", "schedule plateau")),
    Case(
        {"train.min_rate": 1e-5, "train.schedule": "constant"},
        ("is constant", "no use for train.min_rate", "leave that out"),
    ),
    Case(
        {"train.warmup_steps": 3, "train.warmup_share": 0.1},
        ("train.warmup_steps is 3", "train.warmup_share 0.1", "give one of them"),
    ),
    Case(
        {"train.schedule": "steps"},
        ("train.schedule is steps", "rate_steps is empty", "belong together", "{500: 1e-5,"),
    ),
    Case({"train.rate_steps": {5: 0.1}}, ("is linear", "rate_steps is {5: 0.1}", "steps with")),
    Case(
        {"train.optimizer": "rmsprop", "train.bias_correction": False},
        ("train.bias_correction is false", "train.optimizer rmsprop has none", "leave it at true"),
    ),
    Case(
        {"encoder.keep": "better"},
        ("encoder.keep is better", "shared, so there is one encoder", "encoders twin, or"),
    ),
    *(
        Case({f"train.{name}": value, setting: other}, (f"train.{name} is {value}", *says))
        for name, value in (("start_shares", [0.5]), ("whitening_sentences", 99))
        for setting, other, *says in (
            ("encoder.encoders", "twin", "is for one encoder", "encoder.encoders shared"),
            ("evaluation.task", "none", "evaluation.task is none", "name a task"),
        )
    ),
    Case(
        {"view.name": "crop"},
        ("view.name is crop", "has 3 (anchor, positive, hard negative) per", "view.name dropout"),
        data_views=3,
    ),
    Case(
        {"view.name": "delete_one_word", "view.share": 0.2},
        (
            "view.share is 0.2, but the view delete_one_word takes none; leave it out, or",
            "choose view.name crop, crop_sentences, delete_words, crop_prefix",
        ),
    ),
    Case({"view.share": 0.2}, ("view.share is 0.2", "the view dropout takes none"), data_views=2),
    Case(
        {"view.name": "next_sentence", "view.sides": "both"},
        (
            "view.sides is both, but the view next_sentence edits no sentence; leave it out, or",
            "choose view.name crop, crop_prefix, crop_sentences, delete_one_word, delete_words,",
        ),
    ),
    Case(
        {"view.name": "crop", "view.generator": "bert-base-uncased"},
        ("view.generator is bert-base-uncased", "view crop has none", "choose view.name mlm"),
    ),
    Case({"view.name": "crop"}, ("simcse draws spans of documents", "leave them out"), SPANS),
    Case(FIXED, ("simcse draws spans of documents", "leave them out"), SPANS),
    Case(TWINS, ("draws spans", "encoder.encoders is twin", "encoder.encoders shared"), SPANS),
    Case(
        FIXED,
        ("one embedding stands for all", "2 sentences per example; leave it out, or choose one"),
        STATES,
        data_views=2,
    ),
    Case(
        {**FIXED, "view.name": "crop"},
        ("one embedding stands for all", "the view crop makes another sentence; leave it"),
        STATES,
    ),
    Case(
        {**FIXED, **TWINS},
        ("one embedding stands for all", "encoders is twin, which embeds them apart; choose"),
        STATES,
    ),
    Case(
        FIXED,
        ("one embedding stands for all", "simcse makes views of its own", "leave it out"),
        {"provides_views": True},
    ),
    Case(
        FIXED,
        ("one embedding", "objective also reads the token states of every view; leave it out"),
        STATES,
    ),
    Case(TWINS, ("is twin", "also reads token states", "choose encoder.encoders shared"), STATES),
    Case(
        TWINS,
        ("is twin", "also runs the encoder itself", "choose encoder.encoders shared"),
        {"needs": frozenset({Need.ENCODER})},
    ),
    Case(TWINS, ("is twin", "one view of each example", "encoder.encoders shared"), SINGLE),
    Case(
        {"view.name": "crop_sentences"},
        ("view.name is crop_sentences", "whole texts", "reads something of each", "dropout"),
        {"needs": frozenset({Need.NEXT_SENTENCES})},
    ),
    Case({"view.name": "crop"}, ("view.name is crop", "one view of each", "dropout"), SINGLE),
    Case({}, ("simcse tells the neighbours", "data.shuffle is true", "data.shuffle to"), ORDERED),
    Case(
        {},
        ("distil follows the embeddings of another encoder", "name a folder or a model"),
        {},
        recipe="distil",
    ),
    Case({}, ("simcse takes pairs here", "1 sentence per", "set data.file"), {"needs_pairs": True}),
    Case({}, ("simcse needs the label", "data.labels is none; set it to nli"), LABELS),
    Case({"data.labels": "nli"}, ("data.labels is nli", "simcse reads no labels", "leave"), {}),
    Case({"data.labels": "nli"}, ("needs the score", "is nli; set it to scores"), SCORES),
    Case({"data.labels": "scores"}, ("is scores", "simcse reads no scores", "scored_pairs"), {}),
    Case(
        CHUNKS,
        ("gradcache_chunk is 4", "BatchNorm1d 'head.0' of the encoder", "without", "LayerNorm"),
        {},
        batch_norm=True,
    ),
    Case(CHUNKS, ("chunk is 4", "states or the tokens", "without train.gradcache_chunk"), STATES),
    Case(CHUNKS, ("chunk is 4", "states or the tokens", "without train.gradcache_chunk"), TOKENS),
    Case({}, ("2 processes", "BatchNorm1d", "in one process"), {}, batch_norm=True, processes=2),
    Case({}, ("2 processes", "token states", "in one process"), STATES, processes=2),
    Case({"data.max_tokens": 65}, ("data.max_tokens is 65", "most 64 tokens; lower it"), {}),
    Case(LONG, ("is 60", "simcse leaves room for 50 tokens", "lower it"), {"max_tokens": 50}),
    Case(
        LONG,
        ("is 60", "generator of objective diffcse takes at most 50", "objective.generator"),
        {"max_tokens": 50},
        recipe="diffcse",
    ),
    Case(
        LONG,
        ("is 60", "generator of view mlm takes at most 50 tokens; lower it", "view.generator"),
        {},
        generator_tokens=50,
    ),
]


@pytest.fixture
def combination(tiny_bert):
    """Make a combination of settings, and of an objective if there is one."""
    encoder = SentenceEncoder.load(tiny_bert, pooler="cls", head="none", device="cpu")

    def make(case):
        recipe = load_recipe(case.recipe, {"encoder.name": "tiny", **case.settings})
        if case.objective is None:
            return Combination(recipe, case.data_views)
        encoder.head = nn.Sequential(nn.BatchNorm1d(16)) if case.batch_norm else None
        objective, longest = Stub(**case.objective), case.generator_tokens
        parts = (objective, encoder, longest, case.processes)
        return Combination(recipe, case.data_views, *parts)

    return make


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.settings} {case.objective}")
def test_it_is_refused_with_value_reason_and_remedy(case, combination):
    with pytest.raises(ConfigError) as caught:
        refuse(combination(case))
    message, place = str(caught.value), 0
    for words in case.words:
        assert words in message[place:]
        place = message.index(words, place) + len(words)


def test_every_rule_has_a_case(combination):
    assert {refused_by(combination(case)) for case in CASES} == {*RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.message[:40])
def test_a_rule_names_settings_and_a_remedy(rule):
    text = re.sub(r"{.*?}", "", rule.message)
    names = re.findall(r"\b(train|view|data|encoder|objective)\.(\w+)", text)
    assert names
    for section, key in names:
        sections = [getattr(load_recipe(recipe), section) for recipe in ("diffcse", "distil")]
        assert any(
            hasattr(settings, key) or (section == "objective" and key in settings)
            for settings in sections
        )
    assert any(
        word in rule.message
        for word in (
            "leave",
            "choose",
            "give",
            "set ",
            "name ",
            "lower",
            "belong together",
            "train without",
        )
    )


@pytest.mark.parametrize(
    ("settings", "objective", "data_views"),
    [
        ({}, {}, 1),
        (FIXED, {}, 1),
        (TWINS, {}, 1),
        (TWINS, {"views": 3}, 3),
        ({}, STATES, 2),
        (CHUNKS, {**STATES, "in_parts": True}, 2),
        ({"data.shuffle": False}, ORDERED, 1),
        ({"data.labels": "nli"}, LABELS, 2),
        ({"view.name": "mlm", "view.share": 0.2, "view.generator": "g"}, {}, 1),
        ({"view.name": "synonym", "view.share": 0.3, "view.sides": "both"}, {}, 1),
        (CHUNKS, {}, 1),
    ],
    ids=str,
)
def test_what_goes_together_is_not_refused(settings, objective, data_views, combination):
    for given in (None, objective):
        assert refused_by(combination(Case(settings, (), given, data_views))) is None
