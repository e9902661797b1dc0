"""Training from Python: data that is in memory, and functions that are called as it goes on."""

import json

import pytest
from helpers.tiny_sentences import sentence

from contrasent.data.examples import keep_rows
from contrasent.errors import ConfigError, DataError
from contrasent.training.run import train

TEXT = [sentence(n, 3 + n % 6) for n in range(40)]
PAIRS = [(sentence(n), sentence(n, 4)) for n in range(40)]
LABELS = ["entailment", "neutral", "contradiction"]
LABELLED = [
    {"premise": a, "hypothesis": b, "label": LABELS[n % 3]} for n, (a, b) in enumerate(PAIRS)
]


def of_dataset():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"anchor": [a for a, _ in PAIRS], "positive": TEXT})


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("unsup-simcse", lambda: iter(TEXT), "1 sentence per line"),
        ("sup-simcse", lambda: PAIRS, "anchor"),
        ("sup-simcse", of_dataset, "anchor"),
        ("nli-softmax", lambda: LABELLED, "premise"),
    ],
    ids=["strings", "tuples", "a datasets.Dataset", "mappings"],
)
def test_data_in_memory_is_trained_on_and_resumed(name, rows, columns, recipe, tmp_path):
    loaded = recipe(name, train__max_steps=4, data__max_tokens=32)
    steps, evaluations = [], []
    result = train(
        loaded,
        tmp_path / "run",
        data=rows(),
        on_step=steps.append,
        on_evaluation=lambda it: evaluations.append((it.step, it.score)),
    )
    assert [step.number for step in steps] == [0, 1, 2, 3]
    assert evaluations[-1][0] == 4 and dict(evaluations)[result.best_step] == result.best_score
    kept = json.loads((tmp_path / "run" / "data.json").read_text())
    assert kept["examples"] == 40 and columns in kept["columns"]
    assert train(loaded, tmp_path / "run", data=rows(), resume=True) is None
    with pytest.raises(ConfigError, match=r"cannot be resumed .*: data.file is .* there, .* now"):
        train(loaded, tmp_path / "run", data=TEXT[:20], resume=True)


def test_strings_are_lines_and_empty_ones_end_documents(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path))
    path = keep_rows(["a dog\nruns", "a b", "", "c"])
    assert path.read_text() == "a dog runs\na b\n\nc\n"
    assert keep_rows(iter(["a dog\nruns", "a b", "", "c"])) == path != keep_rows(["a dog runs"])
    assert json.loads(keep_rows([("caf\u00e9", "b")]).read_text()) == ["caf\u00e9", "b"]
    assert not [path for path in (tmp_path / "rows").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a", ("b", "c")], r"row 2 of the data, \('b', 'c'\), cannot be written"),
        ([{"text": {1, 2}}], "row 1 of the data, .* cannot be written: .*; give strings, "),
        ([("a", "b \ud800")], "row 1 of the data, .* cannot be written: .* surrogates"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_kept_are_explained(rows, message):
    with pytest.raises(DataError, match=message):
        keep_rows(rows)
