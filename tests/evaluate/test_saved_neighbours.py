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
