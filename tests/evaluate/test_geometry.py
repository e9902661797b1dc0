"""Geometry of the encoder of words, against loops and through JSON, and sensitivity to edits."""

import json

import numpy as np
import pytest
import torch
from helpers import oracles
from helpers.dummy_encoder import DummyEncoder

from contrasent.evaluation import geometry
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.sts_data import RatedPairs

ROWS = [
    ("red cat", "red dog", 4.5),
    ("old house", "new house", 4.0),
    ("red cat", "blue cat", 5.0),
    ("never", "runs under", 0.0),
    ("green dog", "old cat", 1.0),
    ("new house", "red cat", 2.5),
]
TENTHS = ("0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1")


@pytest.fixture
def pairs_file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in ROWS))
    return path


def test_alignment_is_of_the_close_pairs_and_uniformity_of_all_sentences(encoder, pairs_file):
    found = geometry.measure(EncoderUse(encoder), RatedPairs.read(f"{pairs_file}>3.9"))

    def vectors(sentences):
        return torch.from_numpy(np.stack([encoder.embed(it) for it in sentences]))

    close = [row for row in ROWS if row[2] > 3.9]
    first, second = (vectors(side) for side in list(zip(*close, strict=True))[:2])
    distinct = list(dict.fromkeys([row[k] for k in (0, 1) for row in ROWS]))
    alignment, uniformity, *others = found.records
    assert (alignment.metric, alignment.subset, alignment.pairs) == ("alignment", ">3.9", 3)
    assert alignment.value == pytest.approx(oracles.alignment(first, second).item(), rel=1e-5)
    assert found.sentences == len(distinct) == 9
    assert (uniformity.metric, uniformity.pairs) == ("uniformity", 9 * 8 // 2)
    expected = oracles.uniformity(vectors(distinct)).item()
    assert uniformity.value == pytest.approx(expected, rel=1e-5)
    assert [it.metric for it in others] == ["mean_cosine", "partition_ratio", "spearman"]
    for record in found.records:
        assert (record.encoder, record.pooler) == ("some/words", "mean")
        assert (record.task, record.split, record.precision) == (str(pairs_file), "test", "fp32")
        assert record.versions["torch"] and len(record.data_sha256) == 64
    assert found.pairs == f"{pairs_file}>3.9"
    assert found.value("nothing") is None and len(encoder.calls) == 1


def weighted(rows, pairs, of_pairs):
    """The numbers of pairs with these weights, in plain loops."""
    weights = [[] for _ in rows]
    for first, second, weight in zip(pairs.first, pairs.second, of_pairs, strict=True):
        weights[first].append(weight)
        weights[second].append(weight)
    weights = [sum(each) / len(each) for each in weights]
    cosines = [rows[a] @ rows[b] for a, b in zip(pairs.first, pairs.second, strict=True)]

    def moments(numbers, flags):
        kept = [(w, it) for w, it, flag in zip(of_pairs, numbers, flags, strict=True) if flag]
        mean = sum(w * it for w, it in kept) / sum(w for w, _ in kept)
        return mean, (sum(w * (it - mean) ** 2 for w, it in kept) / sum(w for w, _ in kept)) ** 0.5

    top, cosine, total = 0.0, 0.0, 0.0
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            if i != j:
                total += weights[i] * weights[j]
                cosine += weights[i] * weights[j] * (a @ b)
                top += weights[i] * weights[j] * np.exp(-2 * ((a - b) ** 2).sum())
    singular = np.linalg.svd(np.sqrt(weights)[:, None] * rows, compute_uv=False)
    ends = [(low, low + 1) for low in range(5)] + [(0, 5)]
    chosen = {
        f"{low}-{high}": [low <= it < high or it == high == 5 for it in pairs.gold]
        for low, high in ends
    }
    of_groups = {
        f"{kind}:{group}": moments(cosines, flags)[place]
        for group, flags in chosen.items()
        if any(flags)
        for place, kind in enumerate(("group", "deviation"))
    }
    return {
        "alignment": moments([2 - 2 * it for it in cosines], pairs.positive)[0],
        "uniformity": np.log(top / total),
        "mean_cosine": cosine / total,
        "spectrum": singular.mean() / singular[0],
        **of_groups,
    }


def test_a_pair_moves_a_number_as_its_weight_does(pairs_file):
    more = [("never", "red dog", 0.5), ("red cat", "old cat", 1.7), ("new house", "never", 2)]
    with pairs_file.open("a") as file:
        file.writelines(f"{a}\t{b}\t{score}\n" for a, b, score in more)
    pairs = RatedPairs.read(f"{pairs_file}>3.9")
    rows = np.random.default_rng(0).normal(size=(9, 4)) + 0.5
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = geometry.geometry_influences(rows, pairs)
    ends = ("0-1", "1-2", "2-3", "4-5", "0-5")
    assert {*found} == {*weighted(rows, pairs, np.ones(9))} > {f"deviation:{it}" for it in ends}
    step = 1e-5
    for place in range(9):
        up, down = np.ones((2, 9))
        up[place], down[place] = 1 + step, 1 - step
        above, below = weighted(rows, pairs, up), weighted(rows, pairs, down)
        for name, value in above.items():
            slope = (value - below[name]) / (2 * step)
            assert found[name][place] == pytest.approx(slope, rel=1e-5, abs=1e-8), name
            assert found[name].sum() == pytest.approx(0, abs=1e-9)


def test_a_task_without_a_split_is_all_its_splits(senteval):
    every = RatedPairs.read("stsb>3", senteval)
    parts = [RatedPairs.read(f"stsb-{s}>3", senteval) for s in ("train", "dev", "test")]
    assert every.task.name.split == "all"
    assert list(every.gold) == [score for part in parts for score in part.gold]
    assert every.positive.sum() == sum(part.positive.sum() for part in parts)
    assert RatedPairs.read("sts12>3", senteval).task.name.split == "test"


def test_a_collapsed_encoder_has_no_correlation_and_no_spread(encoder, pairs_file):
    encoder.embed = lambda _: np.ones(6, np.float32)
    found = geometry.measure(EncoderUse(encoder), RatedPairs.read(f"{pairs_file}>4"))
    assert found.value("spearman") is None
    assert found.value("alignment") == pytest.approx(0)
    assert found.value("uniformity") == pytest.approx(0, abs=1e-6)
    assert found.value("mean_cosine") == pytest.approx(1)


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        ([0, 0.9, 1, 2.5, 4, 5], {"0-1": 2, "1-2": 1, "2-3": 1, "4-5": 2}),
        (range(0, 101, 10), {"0-20": 2, "20-40": 2, "40-60": 2, "60-80": 2, "80-100": 3}),
        ([n / 10 for n in range(11)], dict(zip(TENTHS, (2, 2, 2, 2, 3), strict=True))),
    ],
)
def test_groups_are_those_of_the_paper_or_five_of_another_range(gold, expected):
    groups = {
        f"{low:g}-{high:g}": chosen for low, high, chosen in geometry.rating_groups(np.array(gold))
    }
    assert {name: int(chosen.sum()) for name, chosen in groups.items()} == expected
    assert sum(groups.values()).tolist() == [1] * len(gold)


WORDS = np.random.default_rng(0).choice([f"word{k}" for k in range(400)], (600, 18))
SENTENCES = [" ".join(row) for row in WORDS]


def test_an_edit_is_of_the_drawn_words_alone():
    edits = geometry.Edits.draw("text.txt", "", [*SENTENCES, *SENTENCES, "too short"])
    assert edits.sentences == tuple(SENTENCES)
    for before, after, (way, place, size) in zip(
        SENTENCES, edits.edited, edits.drawn.tolist(), strict=True
    ):
        old, new, count = before.split(), after.split(), geometry.SIZES[size]
        grown = {"replace": 0, "delete": -count, "insert": count}[geometry.WAYS[way]]
        assert len(new) == len(old) + grown
        third = len(old) // 3
        starts = [
            start
            for start in range(place * third, (place + 1) * third - count + 1)
            if old[:start] == new[:start]
            and old[start + (0 if grown > 0 else count) :]
            == new[start + (0 if grown < 0 else count) :]
        ]
        assert starts, (before, after, geometry.PLACES[place])


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
    edits = geometry.Edits.draw("text.txt", "", SENTENCES)
    told = {}
    for sees in (True, False):
        records = geometry.measure_edits(EncoderUse(Counting(sees)), edits)
        told[sees] = {(it.metric, it.subset): it for it in records}
    assert told[True]["edit_accuracy", "way"].value > 0.9
    assert told[True]["edit_accuracy", "size"].value > 0.6
    assert abs(told[True]["edit_accuracy", "place"].value - 1 / 3) < 0.08
    for label in ("way", "place", "size"):
        assert abs(told[False]["edit_accuracy", label].value - 1 / 3) < 0.08
    moved = [told[True]["edit_distance", f"insert {size}"].value for size in geometry.SIZES]
    assert moved == sorted(moved)
    assert told[True]["edit_distance", "replace 4"].value < 0.001
    assert told[True]["edit_distance", "insert 4"].value == pytest.approx(1 - 0.5**0.5, abs=0.01)


def test_the_command_prints_them_again_from_what_it_kept(runner, tmp_path):
    command, kept = runner("analyze"), tmp_path / "out.jsonl"
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    options = ("--pairs", "stsb-dev>2", "--edits", tmp_path / "text.txt", "--json", kept)
    result = command("a/one", *options)
    assert result.exit_code == 0, result.output
    assert "insert 4" in result.stdout
    assert command("--from", kept, "--html", tmp_path / "page.html").stdout == result.stdout
    page = (tmp_path / "page.html").read_text()
    assert "Sensitivity to edits" in page and "insert 4" in page
    assert "The texts differ" not in result.stdout
    other = tmp_path / "other.jsonl"
    (tmp_path / "more.txt").write_text("\n".join([*SENTENCES, "x " * 12]))
    command("a/one", *options[:3], tmp_path / "more.txt", "--json", other)
    said = " ".join(command("--from", kept, "--from", other).stdout.split())
    assert "The texts differ, so encoders are not to be compared" in said and "more.txt" in said
    (line,) = map(json.loads, kept.read_text().splitlines())
    assert len(line["edits"]) == 12
