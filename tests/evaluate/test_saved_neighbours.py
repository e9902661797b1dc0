import json

import pytest

from contrasent.errors import DataError
from contrasent.evaluation.neighbours import (
    Neighbour,
    Neighbours,
    Query,
    neighbour_lines,
    read_neighbours,
)
from contrasent.files import write_text


def found(**changes):
    near = (
        Neighbour(text="a dog\u2028runs", score=0.1 + 0.2, row=4),
        Neighbour(text="ein Hund läuft", score=-1.0, row=0),
    )
    given = {
        "encoder": "some/model",
        "pooler": "cls",
        "head": "mlp",
        "max_tokens": 64,
        "precision": "fp32",
        "versions": {"python": "3.11"},
        "corpus": "corpus.txt",
        "columns": "a sentence per line",
        "sentences": 7,
        "distinct": 5,
        "corpus_sha256": "0" * 64,
        "asked": "two queries",
        "top_k": 2,
        "queries": (
            Query(text="a dog runs", left_out=("A dog runs.",), nearest=near),
            Query(text="nothing", left_out=(), nearest=()),
        ),
    }
    return Neighbours(**{**given, **changes})


def test_what_is_written_is_read_again(tmp_path):
    written = [found(), found(encoder="other", without_vector=1, engine="onnx", seed=3)]
    write_text(tmp_path / "found.jsonl", neighbour_lines(written))
    assert read_neighbours(tmp_path / "found.jsonl") == written


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: "{", "Expecting property name"),
        (lambda _: "[]", "no JSON object of kind 'neighbours'"),
        (lambda line: json.dumps({**line, "kind": "geometry"}), "no JSON object of kind"),
        (lambda line: json.dumps({**line, "format": 2}), "its format is 2, and only 1"),
        (lambda line: json.dumps({k: v for k, v in line.items() if k != "top_k"}), "top_k"),
        (lambda line: json.dumps({**line, "colour": "red"}), "colour"),
        (lambda line: json.dumps({**line, "queries": [{"text": "a"}]}), "left_out"),
    ],
)
def test_another_line_is_refused_by_its_number(tmp_path, change, said):
    path = tmp_path / "found.jsonl"
    write_text(path, neighbour_lines([found(), found()]))
    good = path.read_text(encoding="utf-8").split("\n")[0]
    path.write_text(f"{good}\n{change(json.loads(good))}\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_neighbours(path)
    assert str(caught.value).startswith(f"{path}:2: no nearest neighbours: ")
    assert said in str(caught.value)
