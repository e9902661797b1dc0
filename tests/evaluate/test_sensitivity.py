"""Sensitivity to edits, on encoders of which it is known."""

import json

import numpy as np
import pytest
from helpers.dummy_encoder import DummyEncoder

from contrasent.errors import DataError
from contrasent.evaluation.edits import PLACES, SIZES, WAYS, Edits, measure_edits
from contrasent.evaluation.embed import EncoderUse

WORDS = np.random.default_rng(0).choice([f"word{k}" for k in range(400)], (600, 18))
SENTENCES = [" ".join(row) for row in WORDS]


def test_an_edit_is_of_the_drawn_words_alone():
    edits = Edits.draw("text.txt", "", [*SENTENCES, *SENTENCES, "too short"])
    assert edits.sentences == tuple(SENTENCES)
    for before, after, (way, place, size) in zip(
        SENTENCES, edits.edited, edits.drawn.tolist(), strict=True
    ):
        old, new, count = before.split(), after.split(), SIZES[size]
        grown = {"replace": 0, "delete": -count, "insert": count}[WAYS[way]]
        assert len(new) == len(old) + grown
        third = len(old) // 3
        starts = [
            start
            for start in range(place * third, (place + 1) * third - count + 1)
            if old[:start] == new[:start]
            and old[start + (0 if grown > 0 else count) :]
            == new[start + (0 if grown < 0 else count) :]
        ]
        assert starts, (before, after, PLACES[place])


class Counting(DummyEncoder):
    """Embeds how many words there are, or nothing but a constant and noise."""

    def __init__(self, sees: bool) -> None:
        super().__init__(width=8)
        self.sees = sees

    def encode(self, sentences, **options):
        rows = np.random.default_rng(1).normal(size=(len(sentences), 8)).astype(np.float32)
        if self.sees:
            rows *= 0.01
            rows[:, 0] = [len(it.split()) - 18 for it in sentences]
            rows[:, 1] = 4
        return rows


def test_what_embeddings_hold_is_told_and_nothing_else():
    edits = Edits.draw("text.txt", "", SENTENCES)
    told = {}
    for sees in (True, False):
        records = measure_edits(EncoderUse(Counting(sees)), edits)
        told[sees] = {(it.metric, it.subset): it for it in records}
    assert told[True]["edit_accuracy", "way"].value > 0.9
    assert told[True]["edit_accuracy", "size"].value > 0.6
    assert abs(told[True]["edit_accuracy", "place"].value - 1 / 3) < 0.08
    for label in ("way", "place", "size"):
        found = told[False]["edit_accuracy", label]
        assert abs(found.value - 1 / 3) < 0.08
    moved = [told[True]["edit_distance", f"insert {size}"].value for size in SIZES]
    assert moved == sorted(moved)
    assert told[True]["edit_distance", "replace 4"].value < 0.001
    assert told[True]["edit_distance", "insert 4"].value == pytest.approx(1 - 0.5**0.5, abs=0.01)


def test_too_few_long_sentences_are_told():
    with pytest.raises(DataError, match="2 distinct sentences"):
        Edits.draw("text.txt", "", [SENTENCES[0], SENTENCES[1], "short"])


def test_the_command_prints_them_again_from_what_it_kept(runner, tmp_path):
    command, kept = runner("analyze"), tmp_path / "out.jsonl"
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    options = ("--pairs", "stsb-dev>2", "--edits", tmp_path / "text.txt", "--json", kept)
    result = command("a/one", *options)
    assert result.exit_code == 0, result.output
    assert "insert 4" in result.stdout
    assert command("--from", kept).stdout == result.stdout
    (line,) = map(json.loads, kept.read_text().splitlines())
    assert len(line["edits"]) == 12
