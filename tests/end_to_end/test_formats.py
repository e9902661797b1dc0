"""One text in every form that is read: each trains to the same bits."""

import gzip
import json

import pyarrow
import pytest
from helpers.command_line import worked
from helpers.tiny_sentences import SENTENCES, write
from pyarrow import parquet

TEXTS = SENTENCES[:40]


def write_as(name, folder):
    """Write the text under a name whose end says how."""
    path = folder / name.removesuffix(".gz")
    kind = path.suffix
    if kind == ".parquet":
        parquet.write_table(pyarrow.table({"id": range(len(TEXTS)), "text": TEXTS}), path)
    elif kind == ".jsonl":
        write(path, [json.dumps({"text": text}) for text in TEXTS])
    elif kind == ".txt":
        write(path, TEXTS)
    else:
        between = "," if kind == ".csv" else "\t"
        write(path, [f"id{between}text", *(f"{n}{between}{t}" for n, t in enumerate(TEXTS))])
    if not name.endswith(".gz"):
        return path
    zipped = folder / name
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    return zipped


@pytest.fixture(scope="module")
def bits(arguments, tmp_path_factory):
    """Train on the text under a name; gives the weights as they are stored."""

    def train(name):
        folder = tmp_path_factory.mktemp("format")
        source = write_as(name, folder)
        few = ("--max-steps", 2, "--evaluation.task", "none")
        worked(*arguments("unsup-simcse", source, folder / "run", *few))
        return (folder / "run" / "last" / "model.safetensors").read_bytes()

    return train


@pytest.fixture(scope="module")
def plain(bits):
    return bits("plain.txt")


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl.gz", "a.parquet"])
def test_every_form_of_a_text_trains_to_the_same_bits(name, bits, plain):
    assert bits(name) == plain
