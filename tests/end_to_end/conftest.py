"""About two hundred sentences for a tiny encoder, and what it was trained into."""

import os

import pytest
from helpers.command_line import worked
from helpers.tiny_sentences import SENTENCES, sentence, write, write_pairs


@pytest.fixture(scope="session", autouse=True)
def alone(tmp_path_factory, request):
    """No cache and no data of the user's; processes find the package and the helpers."""
    base, root = tmp_path_factory.mktemp("user"), request.config.rootpath
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", f"{root}{os.pathsep}{root / 'tests'}")
        patched.setenv("CONTRASENT_CACHE", str(base / "cache"))
        patched.setenv("XDG_DATA_HOME", str(base / "data"))
        patched.setenv("COLUMNS", "80")
        yield


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """Text, triplets and scored pairs; do not write here."""
    folder = tmp_path_factory.mktemp("shelf")
    write(folder / "text.txt", SENTENCES)
    triplets = [f"{s},{sentence(n, 4)},{sentence(n + 17)}" for n, s in enumerate(SENTENCES)]
    write(folder / "triplets.csv", ["sent0,sent1,hard_neg", *triplets])
    write_pairs(folder / "pairs.tsv")
    return folder


@pytest.fixture(scope="session")
def arguments(shelf, tiny_bert):
    """Make the words of a training command for the tiny encoder: batches of 16, fp32."""

    def make(recipe, data, output, *more):
        return [
            *("train", recipe, "--encoder", tiny_bert, "--data", shelf / data, "--output", output),
            *("--train.batch_size", 16, "--train.precision", "fp32"),
            *("--train.learning_rate", "3e-2", "--evaluation.every", 5),
            *("--evaluation.task", shelf / "pairs.tsv", "--evaluation.final", "none", *more),
        ]

    return make


@pytest.fixture(scope="session")
def unsupervised(arguments, shelf, tmp_path_factory):
    """The folder of an unsupervised run, and what its command said; do not write there."""
    folder = tmp_path_factory.mktemp("runs") / "unsupervised"
    final = ("--evaluation.final", shelf / "pairs.tsv")
    return folder, worked(*arguments("unsup-simcse", "text.txt", folder, *final))
