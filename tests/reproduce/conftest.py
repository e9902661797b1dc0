"""Everything that the table of baselines needs, tiny: a masked language model, text, STS-B."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from helpers.tiny_models import save_tiny_masked_lm
from helpers.tiny_sentences import PLAIN


@dataclass(frozen=True)
class Shelf:
    """Files for the options of the command; do not write here."""

    folder: Path
    encoder: Path

    def options(self, *left_out):
        """The words of the command for the materials."""
        files = {
            "encoder": self.encoder,
            "words": self.folder / "words.txt",
            "sentences": self.folder / "sentences.txt",
            "documents": self.folder / "documents.txt",
            "labelled": self.folder / "labelled.csv",
            "triplets": self.folder / "triplets.csv",
        }
        kept = {name: path for name, path in files.items() if name not in left_out}
        return [word for name, path in kept.items() for word in (f"--{name}", path)]


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shelf")
    draw = np.random.default_rng(0)

    def sentence():
        return " ".join(draw.choice(PLAIN, size=draw.integers(4, 9)))

    def write(name, rows):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{row}\n" for row in rows))

    write("sentences.txt", [sentence() for _ in range(200)])
    documents = [[sentence() for _ in range(60)] + [""] for _ in range(20)]
    write("documents.txt", [line for document in documents for line in document])
    triplets = [f"{sentence()},{sentence()},{sentence()}" for _ in range(150)]
    write("triplets.csv", ["sent0,sent1,hard_neg", *triplets])
    classes = ("entailment", "neutral", "contradiction")
    pairs = [f"{sentence()},{sentence()},{classes[n % 3]}" for n in range(90)]
    write("labelled.csv", ["premise,hypothesis,label", *pairs])
    vectors = [[word, *(f"{x:.4f}" for x in draw.normal(size=8))] for word in PLAIN]
    write("words.txt", [" ".join(cells) for cells in vectors])
    for split, size in {"dev": 40, "train": 10, "test": 60}.items():
        rows = [f"g\tf\t2012\t{n}\t{n % 6}.0\t{sentence()}\t{sentence()}" for n in range(size)]
        write(f"senteval/STS/STSBenchmark/sts-{split}.csv", rows)
    return Shelf(folder, save_tiny_masked_lm(folder / "masked-lm", limit=128))


@pytest.fixture(autouse=True)
def alone(tmp_path_factory, monkeypatch, shelf):
    """No cache and no data but those of the test."""
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("CONTRASENT_DATA", str(shelf.folder / "senteval"))
