"""``contrasent calibrate``: thresholds against a loop over every cut, its command and refusals."""

import numpy as np
import pytest
from helpers.dummy_encoder import WORDS

from contrasent.errors import DataError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.sts_data import calibrate, held_out, propose, reach, read_judged
from contrasent.model.protocol import Conventions


@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_is_the_best_of_all_cuts(seed):
    """It has the largest F1, or the largest recall of those that are precise enough."""
    rng, cuts = np.random.default_rng(seed), []
    similar = rng.random(40) < 0.4
    similar[:2] = True, False
    cosines = np.round((rng.normal(size=40) + similar) / 4 / 0.1) * 0.1  # with ties
    for threshold in sorted(set(cosines), reverse=True):
        taken = [cosine >= threshold for cosine in cosines]
        right = sum(t and s for t, s in zip(taken, similar, strict=True))
        precision, recall = right / sum(taken), right / sum(similar)
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        cuts.append((threshold, precision, recall, f1))
    best = max(f1 for *_, f1 in cuts)
    found = propose(cosines, similar)
    assert reach(cosines >= found, similar).f1 == pytest.approx(best)
    highest = next(t for t, *_, f1 in cuts if f1 == pytest.approx(best))
    assert ((cosines >= found) == (cosines >= highest)).all()
    for least in (0.4, 0.6, 0.7):
        recalls = [recall for _, precision, recall, _ in cuts if precision >= least]
        if recalls:
            reached = reach(cosines >= propose(cosines, similar, least), similar)
            assert reached.precision >= least and reached.recall == max(recalls)
        else:
            with pytest.raises(DataError, match=f"no threshold has a precision of {least}; the l"):
                propose(cosines, similar, least)


def test_the_threshold_lies_between_neighbours():
    assert propose(np.array([0.2, 0.5, 0.9]), np.array([False, True, True])) == pytest.approx(0.35)
    assert propose(np.array([0.2, 0.5]), np.array([True, False])) == 0.2
    close = np.array([0.5, np.nextafter(0.5, 1)])
    assert propose(close, np.array([False, True])) == close[1]


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """Pairs labelled similar where they share a word."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(3)
    lines, rated = [], []
    for number in range(40):
        first, second = (" ".join(draw.choice(WORDS, 3, replace=False)) for _ in range(2))
        if number % 2:
            second = f"{first} {second.split()[0]}"
        lines.append(f"{first}\t{second}\t{number % 2}\n")
        rated.append(f"{first}\t{second}\t{4 if number % 2 else 1.5}\n")
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    (tmp_path / "rated.tsv").write_text("".join(rated))


@pytest.mark.usefixtures("pairs")
def test_labels_and_ratings_give_one_threshold(encoder):
    found = calibrate(EncoderUse(encoder), read_judged("pairs.tsv"))
    rated = calibrate(EncoderUse(encoder), read_judged("rated.tsv>=4"))
    assert (found.threshold, found.reached) == (rated.threshold, rated.reached)
    assert (found.count, found.similar, found.aim) == (40, 20, "f1")
    assert found.held_out.f1 <= found.reached.f1
    assert found.held_out == rated.held_out and found.held_out.f1 > 0.6
    precise = calibrate(EncoderUse(encoder), read_judged("pairs.tsv"), least_precision=1.0)
    assert precise.aim == "precision>=1" and precise.reached.precision == 1


@pytest.mark.usefixtures("pairs")
def test_texts_are_embedded_as_an_index_and_duplicates_embed_them(tiny_encoder):
    found = []
    for prompts in ({"document": "red cat "}, {"query": "no ", "document": "red cat "}, {}):
        tiny_encoder.conventions = Conventions(prompts=prompts)
        found.append(calibrate(EncoderUse(tiny_encoder), read_judged("pairs.tsv")))
    assert found[0] == found[1] and found[0].prompt == "red cat "
    assert found[0].threshold != found[2].threshold and found[2].prompt == ""


@pytest.mark.usefixtures("pairs")
def test_a_threshold_that_takes_all_pairs_is_told(encoder, tmp_path):
    lines = (tmp_path / "pairs.tsv").read_text().splitlines()
    (tmp_path / "no.tsv").write_text("\n".join(f"{it[:-1]}{1 - int(it[-1])}" for it in lines))
    with pytest.warns(UserWarning, match="takes all 40 pairs"):
        assert calibrate(EncoderUse(encoder), read_judged("no.tsv")).reached.recall == 1


def test_what_is_held_out_had_no_part_in_the_choice():
    """Where the largest cosine is wrong, no threshold is precise, but that of the other folds is:
    it takes the wrong pair, and nothing else is taken."""
    cosines = np.linspace(0, 1, 40)
    similar = cosines >= 0.5
    found = held_out(cosines, similar, None)
    assert found.recall >= 0.9 and found.precision >= 0.9
    similar[-1] = False
    with pytest.raises(DataError, match=r"precision of 1; the largest is 0\.9500, so ask for"):
        propose(cosines, similar, 1.0)
    taken = held_out(cosines, similar, 1.0)
    assert 0 < taken.precision < 1 and taken.recall < 0.3
