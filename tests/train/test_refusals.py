"""What a run refuses, with value and remedy, or warns of: settings, data, packages, encoders."""

import json
import shutil

import pytest
from helpers.command_line import refused, train, worked
from torch import nn

from contrasent.data.batch import Need
from contrasent.data.documents import Spans
from contrasent.errors import ConfigError
from contrasent.objectives import Objective
from contrasent.recipe import load_recipe
from contrasent.training.compatibility import Combination, refuse, rows


def test_a_tracker_that_is_not_installed_is_told_with_its_package(desk, monkeypatch):
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    message = refused(*train("--train.trackers", "wandb"))
    assert message == "tracker 'wandb' needs its package: pip install wandb"
    assert not (desk / "out").exists()


def test_selecting_by_a_test_split_is_warned_of(desk, monkeypatch):
    folder = desk / "senteval" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    rows = ["g\tf\ty\t1\t5\ta dog\tthe dog", "g\tf\ty\t2\t1\ta cat\tsad", "g\tf\ty\t3\t2\tred\tno"]
    (folder / "sts-test.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("CONTRASENT_DATA", str(desk / "senteval"))
    said = worked(*train("--evaluation.task", "stsb"))
    assert "warning: the best step is selected by the test split of STS-B" in said.err


def test_views_that_nothing_tells_apart_are_told(desk, tiny_bert):
    copied = shutil.copytree(tiny_bert, desk / "copied")
    config = json.loads((copied / "config.json").read_text())
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    (copied / "config.json").write_text(json.dumps({**config, **rates}))
    said = worked(*train("--encoder", str(copied)))
    assert "so both views of a sentence are equal; set encoder.dropout" in said.err
    said = worked(*train("--encoder", str(copied), "--encoder.dropout", "0.1", "--overwrite"))
    assert "views of a sentence are equal" not in said.err


def test_a_prompt_that_training_leaves_out_is_told(desk):
    worked(*train("--output", "plain"))
    path = desk / "plain" / "last" / "config_sentence_transformers.json"
    for roles, default, named in (
        ({}, "query", "'query: '"),
        ({"document": "text: "}, None, "'query: ' or 'text: '"),
    ):
        use = {"prompts": {"query": "query: ", **roles}, "default_prompt_name": default}
        path.write_text(json.dumps({**json.loads(path.read_text()), **use}))
        said = worked(*train("--encoder", "plain/last", "--max-steps", "1", "--overwrite"))
        assert f"puts {named} before sentences that it encodes, but not in training" in said.err


class Stub(Objective):
    """An objective of two views without a further need."""

    views = 2

    def __init__(self, **changes):
        super().__init__()
        for name, value in changes.items():
            setattr(self, name, value)

    def forward(self, encoded, batch):
        raise NotImplementedError


def needing(need, **more):
    return {"needs": frozenset({need}), **more}


SINGLE, SPANS, OWN_VIEWS = {"views": 1}, {"spans": Spans()}, {"provides_views": True}
STATES, TOKENS = needing(Need.TOKEN_STATES), needing(Need.TOKENS)
SCORES, LABELS = needing(Need.SCORES), needing(Need.LABELS)
LISTS, NEXT = needing(Need.CANDIDATE_SCORES), needing(Need.NEXT_SENTENCES)
ORDERED = needing(Need.POSITIONS, views=1, provides_views=True)
CROP, FIXED = {"view.name": "crop"}, {"view.fixed_dropout": True}
TWINS, CHUNKS = {"encoder.encoders": "twin"}, {"train.gradcache_chunk": 4}
LONG = {"data.max_tokens": 60}
# Settings that are refused alone, and words of the message in their order.
ALONE = [
    ({"train.rate_decay": 0.9}, "rate_decay is 0.9, but train.schedule linear has|out"),
    ({"train.rate_shrink": 5}, "rate_shrink is 5|choose train.schedule plateau"),
    ({"train.min_rate": 1e-5}, "train.min_rate is 1e-05|linear has no use"),
    ({"train.rate_steps": {5: 0.1}}, "rate_steps is {5: 0.1}|train.schedule steps"),
    ({"train.optimizer": "rmsprop", "train.bias_correction": False}, "False|rmsprop has no use"),
    ({"train.optimizer": "sgd", "train.betas": [0.8, 0.9]}, "[0.8, 0.9]|sgd has no use|adamw, rms"),
    ({"train.optimizer": "sgd", "train.eps": 1e-4}, "eps is 0.0001|sgd has no use|adamw, rmsprop"),
    ({"encoder.lora_alpha": 4.0}, "lora_alpha is 4.0|lora None has no use|choose encoder.lora"),
    ({"encoder.channels": 8}, "channels is 8|None has no use|choose encoder.convolutions"),
    ({"evaluation.geometry_pairs": "p.tsv>3"}, "is p.tsv>3|choose evaluation.geometry_every"),
    ({"encoder.keep": "better"}, "encoder.keep is better|encoder.encoders twin"),
    ({"view.name": "delete_one_word", "view.share": 0.2}, "0.2|delete_one_word|crop,"),
    ({"view.name": "next_sentence", "view.sides": "both"}, "sides is both|crop,"),
    ({**CROP, "view.generator": "b"}, "generator is b|view.name crop has no|name mlm"),
    ({**CROP, **FIXED}, "fixed_dropout is True|view.name crop|view.name dropout"),
    ({"train.start_shares": [0.5], **TWINS}, "start_shares is|twin has no use for it|shared"),
    ({"train.warmup_steps": 3, "train.warmup_share": 0.1}, "steps is 3|share 0.1|give one of"),
    ({"evaluation.task": "held-out", "data.labels": "nli"}, "is held-out|labels is nli|, or none"),
    ({"encoder.lora": 4, "train.start_shares": [0.5]}, "shares is [0.5]|lora is 4|leave one of"),
]
# Settings, the objective (none before one is built), further words of the combination, words.
CASES = [
    *((settings, None, {}, words) for settings, words in ALONE),
    ({"view.share": 0.2}, None, {"data_views": 2}, "view.share is 0.2|view.name dropout has no"),
    (CROP, None, {"data_views": 3}, "is crop|has 3 (anchor, positive, hard negative) per|dropout"),
    (CROP, SPANS, {}, "simcse draws spans of documents|leave them out"),
    ({}, {}, {"prompts": ("a: ", "b: ")}, "there are 2 prompts|1 sentence per|one at most"),
    (CROP, {}, {"prompts": ("a: ",)}, "the prompt 'a: ' would be edited|leave it out"),
    (FIXED, SPANS, {}, "simcse draws spans of documents|leave them out"),
    (FIXED, {}, {"data_views": 2}, "one embedding stands for all|leave it out"),
    ({**FIXED, **TWINS}, {}, {}, "one embedding stands for all|leave it out"),
    (FIXED, OWN_VIEWS, {}, "one embedding stands for all|simcse|leave it out"),
    (FIXED, STATES, {}, "one embedding stands for all|simcse|leave it out"),
    *(
        (TWINS, given, {}, "is twin|simcse has none of these|choose shared")
        for given in (SPANS, SINGLE, STATES, needing(Need.ENCODER))
    ),
    (CROP, SINGLE, {}, "view.name is crop|one view of each|dropout"),
    ({"view.name": "crop_sentences"}, NEXT, {}, "is crop_sentences|whole texts|of each|dropout"),
    ({}, ORDERED, {}, "simcse tells the neighbours|data.shuffle is true|set it to false"),
    ({}, {}, {"recipe": "distil"}, "distil follows the embeddings of another|name a folder"),
    ({}, {"needs_pairs": True}, {}, "simcse takes pairs here|1 sentence per|set data.file"),
    ({}, LABELS, {}, "simcse reads labels|data.labels is none; set it to nli"),
    ({}, {"alone": True}, {"several": True}, "simcse changes what is saved|leave out"),
    ({"train.bias_correction": False}, {}, {"several": True}, "correction is false|simcse|to true"),
    ({"data.labels": "nli"}, {}, {}, "data.labels is nli|every pair for a positive|leave it"),
    ({"data.labels": "nli"}, SCORES, {}, "reads scores|is nli; set it to scores"),
    ({}, LISTS, {}, "reads candidate scores: anchor, candidate 1|is none; set it to lists"),
    ({"data.labels": "scores"}, {}, {}, "is scores|every pair for a positive|leave it out"),
    ({"data.labels": "lists"}, {}, {}, "is lists|every pair for a positive|leave it out"),
    ({"encoder.lstm": 4}, {}, {}, "encoder.lstm is 4|tiny is an encoder of its own; leave"),
    (CHUNKS, {}, {"norm": True}, "chunk is 4|BatchNorm1d 'head.0'|without|LayerNorm"),
    (CHUNKS, STATES, {}, "chunk is 4|states or the tokens|without train.gradcache_chunk"),
    (CHUNKS, TOKENS, {}, "chunk is 4|states or the tokens|without train.gradcache_chunk"),
    ({}, {}, {"norm": True, "processes": 2}, "2 processes|BatchNorm1d|in one process"),
    ({}, STATES, {"processes": 2}, "2 processes|states|in one process"),
    ({"data.max_tokens": 65}, {}, {}, "is 65, but tiny takes at most 64 tokens|lower it"),
    (LONG, {"max_tokens": 50}, {}, "is 60, but the objective simcse takes at most 50|lower it"),
    (LONG, {}, {"generator_tokens": 50}, "is 60, but the generator of view mlm|50 tokens|lower it"),
]


@pytest.fixture
def combination(tiny_encoder):
    """Make a combination of settings, and of an objective if there is one."""

    def make(settings, objective, data_views=1, recipe="unsup-simcse", norm=False, **more):
        loaded = load_recipe(recipe, {"encoder.name": "tiny", **settings})
        if objective is None:
            return Combination(loaded, data_views)
        tiny_encoder.head = nn.Sequential(nn.BatchNorm1d(16)) if norm else None
        return Combination(loaded, data_views, Stub(**objective), tiny_encoder, **more)

    return make


@pytest.mark.parametrize(("settings", "objective", "more", "words"), CASES, ids=str)
def test_it_is_refused_with_value_reason_and_remedy(settings, objective, more, words, combination):
    with pytest.raises(ConfigError) as caught:
        refuse(combination(settings, objective, **more))
    message, place = str(caught.value), 0
    for said in words.split("|"):
        assert said in message[place:]
        place = message.index(said, place) + len(said)


def test_every_row_has_a_case(combination):
    seen = {False: set(), True: set()}
    for settings, objective, more, _ in CASES:
        looked_at = rows(combination(settings, objective, **more))
        refused = next(number for number, (holds, _) in enumerate(looked_at) if holds)
        seen[objective is not None].add(refused)
        every = seen.setdefault((objective is not None, "rows"), set())
        every |= set(range(len(looked_at)))
    for late in (False, True):
        assert seen[late] == seen[late, "rows"]


@pytest.mark.parametrize(
    ("settings", "objective", "data_views"),
    [
        (TWINS, {"views": 3}, 3),
        ({}, STATES, 2),
        (CHUNKS, {**STATES, "in_parts": True}, 2),
        ({"view.name": "mlm", "view.share": 0.2, "view.generator": "g"}, {}, 1),
        ({"view.name": "synonym", "view.share": 0.3, "view.sides": "both"}, {}, 1),
    ],
    ids=str,
)
def test_what_goes_together_is_not_refused(settings, objective, data_views, combination):
    for given in (None, objective):
        refuse(combination(settings, given, data_views))
