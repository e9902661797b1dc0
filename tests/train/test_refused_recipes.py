"""Settings and data that do not go together with a recipe, refused before anything is written."""

import pytest
from helpers.tiny_runs import TINY

from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.training.run import train

REFUSED = {
    "contrastive-tension": [
        ({"objective.negatives": 2, "train.batch_size": 16}, "take 5 or a multiple of it"),
        ({"data": "triplets.csv"}, "the data has 3 .*, but the objective"),
    ],
    "quick-thoughts": [
        (
            {"data": "text.txt"},
            r"the objective needs to know which sentences follow each other: .*text\.txt has no "
            "blank line between its 48 sentences",
        ),
    ],
    "is-bert": [
        ({"encoder.pooler": "cls"}, "for the mean over tokens .* has pooler cls"),
        ({"encoder.head": "mlp"}, "IS-BERT compares embeddings of 18 dimensions with token states"),
    ],
    "cmlm": [
        (
            {"data.max_tokens": 62},
            "data.max_tokens is 62, but the objective cmlm takes at most 61 tokens of a sentence",
        ),
    ],
    "declutr": [
        ({"objective.max_words": 100}, "none of the 8 documents of .* 400 words"),
        ({"train.batch_size": 9}, "batch_size 9 is more than the 8 examples"),
    ],
    "sg-opt": [({"start": "glove"}, "this needs a transformer")],
    "consert": [({"start": "glove"}, "the first state of an LSTM")],
    "sup-simcse-bert-base": [({"data": "text.txt"}, "needs data of 3 sentences per example")],
    "scored-pairs": [({"data": "text.txt"}, "text.txt:1: no tab")],
    "distil": [
        ({"objective.teacher": "nowhere/at-all/x"}, "nowhere/at-all/x"),
    ],
    "diffcse": [({"start": "glove"}, "no mask token")],
    "infersent": [
        ({"encoder.lstm": None}, "holds word vectors, over which an LSTM is trained; say its"),
        ({"encoder.pooler": "mean_embed_last"}, "takes the words of an LSTM beside its outputs"),
        ({"encoder.dropout": 0.1}, r"encoder\.dropout is 0\.1, but an LSTM"),
        ({"train.precision": "bf16"}, "computes in fp32, not in bf16"),
    ],
}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [(name, *case) for name, cases in REFUSED.items() for case in cases],
    ids=str,
)
def test_what_does_not_go_together_is_refused(name, changes, message, tiny_starts, tmp_path):
    with pytest.raises((CheckpointError, ConfigError, DataError), match=message):
        train(TINY[name].load(tmp_path, tiny_starts, changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
