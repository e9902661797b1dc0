"""Settings, data, packages and encoders that a run refuses or warns of."""

import json
import shutil

import pytest
from helpers.careless import train
from helpers.command_line import refused, worked
from helpers.tiny_runs import TINY

from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.training.run import train as train_recipe

pytestmark = pytest.mark.usefixtures("desk")


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
    use = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **use}))
    said = worked(*train("--encoder", "plain/last", "--max-steps", "1"))
    assert "puts 'query: ' before every sentence that it encodes, but not in training" in said.err


REFUSED = {
    "contrastive-tension": [
        ({"objective.negatives": 2, "train.batch_size": 16}, "take 5 or a multiple of it"),
        ({"data": "triplets.csv"}, "the data has 3 .* per example, not 1"),
    ],
    "quick-thoughts": [
        (
            {"data": "text.txt"},
            r"follow each other: .*text\.txt has 47 of 48 sentences with another",
        )
    ],
    "is-bert": [
        ({"encoder.pooler": "cls"}, "for the mean over tokens .* has pooler cls"),
        ({"encoder.head": "mlp"}, "IS-BERT compares embeddings of 18 dimensions with token states"),
    ],
    "cmlm": [
        (
            {"data.max_tokens": 62},
            "data.max_tokens is 62, .* cmlm takes at most 61 tokens of a sent",
        )
    ],
    "declutr": [
        ({"objective.max_words": 100}, "none of the 8 documents of .* 400 words"),
        ({"train.batch_size": 9}, "8 examples are too few for a batch of 9"),
    ],
    "sg-opt": [({"start": "glove"}, "this needs a transformer")],
    "consert": [({"start": "glove"}, "the first state of an LSTM")],
    "sup-simcse-bert-base": [({"data": "text.txt"}, "needs data of 3 sentences per example")],
    "scored-pairs": [({"data": "text.txt"}, "text.txt:1: no column")],
    "distil": [({"objective.teacher": "nowhere/at-all/x"}, "nowhere/at-all/x")],
    "diffcse": [({"start": "glove"}, "no mask token")],
    "infersent": [
        ({"encoder.lstm": None}, "holds word vectors, over which an LSTM is trained; say its"),
        ({"encoder.pooler": "mean_embed_last"}, "unknown pooler of an LSTM 'mean_embed_last'"),
        ({"encoder.dropout": 0.1}, r"encoder\.dropout is 0\.1, but an LSTM"),
        ({"train.precision": "bf16"}, "computes in fp32, not in bf16"),
    ],
}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [(name, *case) for name, cases in REFUSED.items() for case in cases],
)
def test_what_does_not_go_together_is_refused(name, changes, message, tiny_starts, tmp_path):
    with pytest.raises((CheckpointError, ConfigError, DataError), match=message):
        train_recipe(TINY[name].load(tmp_path, tiny_starts, changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
