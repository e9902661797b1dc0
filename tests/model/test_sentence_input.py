"""What sentences may be given as, wherever they come in, and what is refused with its remedy."""

import datasets
import numpy as np
import pandas
import pyarrow
import pytest

import contrasent
from contrasent.errors import ConfigError

TEXTS = ["the cat sits", "a dog runs", "the dog sits here"]
FRAME = pandas.DataFrame({"text": TEXTS, "n": [1, 2, 3]})
TAKEN = {
    "list": TEXTS,
    "tuple": tuple(TEXTS),
    "values": dict(enumerate(TEXTS)).values(),
    "array": np.array(TEXTS),
    "objects": np.array(TEXTS, object),
    "series": FRAME["text"],
    "arrow": pyarrow.array(TEXTS),
    "chunks": pyarrow.chunked_array([TEXTS[:1], TEXTS[1:]]),
    "column": datasets.Dataset.from_pandas(FRAME)["text"],
}
REFUSED = {
    "text": (TEXTS[0], "str"),
    "bytes": (b"a dog", "bytes"),
    "mapping": ({"a": TEXTS[0]}, "dict"),
    "set": ({*TEXTS}, "set"),
    "frame": (FRAME, "DataFrame"),
    "table": (pyarrow.Table.from_pandas(FRAME), "Table"),
    "data set": (datasets.Dataset.from_pandas(FRAME), "Dataset"),
    "matrix": (np.array([TEXTS]), "ndarray"),
    "nothing": (None, "NoneType"),
    "number": (3, "int"),
}
ROWS_TOO = ("data set", "matrix")


@pytest.mark.parametrize("kind", TAKEN)
def test_sentences_of_every_kind_give_the_same_vectors(kind, tiny_encoder, tmp_path):
    wanted = tiny_encoder.encode(TEXTS, precision="fp32")
    assert np.array_equal(tiny_encoder.encode(TAKEN[kind], precision="fp32"), wanted)
    index = contrasent.Index.build(tiny_encoder, TAKEN[kind], tmp_path / "index", precision="fp32")
    hits = index.search(tiny_encoder, TAKEN[kind], top_k=1)
    assert [hit.text for (hit,) in hits] == TEXTS


def test_a_generator_of_queries_is_searched(tiny_encoder, tmp_path):
    index = contrasent.Index.build(tiny_encoder, iter(TEXTS), tmp_path / "index")
    assert len(index.search(tiny_encoder, (text for text in TEXTS))) == 3


@pytest.mark.parametrize("kind", REFUSED)
def test_what_iterates_over_something_else_is_refused_with_the_remedy(kind, tiny_encoder, tmp_path):
    given, said = REFUSED[kind]
    index = contrasent.Index.build(tiny_encoder, TEXTS, tmp_path / "index")
    calls = [
        lambda: tiny_encoder.encode_stream(given),
        lambda: index.add(tiny_encoder, given),
        lambda: index.search(tiny_encoder, given),
        lambda: contrasent.Index.build(tiny_encoder, given, tmp_path / "other"),
    ]
    if kind != "text":
        calls += [lambda: tiny_encoder.encode(given), lambda: tiny_encoder.encode_query(given)]
    if kind not in ("text", "nothing", *ROWS_TOO):  # there, the name of a file, or rows
        calls.append(lambda: contrasent.mine(tiny_encoder, given))
        if kind != "mapping":  # of several sources
            calls.append(lambda: contrasent.train(data=given, output=tmp_path / "run"))
    for call in calls:
        with pytest.raises(ConfigError, match=f"must be a list of strings, not (?s:.*){said}"):
            call()
    assert not (tmp_path / "other").exists() and not (tmp_path / "run").exists()
