"""Medians, ratios and fractions over rounds."""

import pytest

from benchmarks.race import lowest_cosine
from benchmarks.rounds import Entry, Speed, fraction, ratio, speed, take_turns


def entry(*seconds, sentences=10):
    return Entry("x", [{"sentences": sentences, "seconds": taken} for taken in seconds])


def test_speed_is_the_median_of_the_rounds():
    assert speed(entry(1, 10, 2)) == Speed(median=5, slowest=1, fastest=10)


def test_a_ratio_is_the_median_of_the_ratios_of_each_round():
    # The machine is half as fast in the second round; the ratio does not see it.
    assert ratio(entry(1, 2, 1), entry(3, 6, 3)) == 3
    assert ratio(entry(1, 2, 4), entry(2, 2, 2)) == 1


def test_a_fraction_compares_each_round_with_its_own_peak():
    assert fraction(entry(1, 2, 4), [8, 8, 8], [16, 8, 4]) == 0.5


def test_contestants_take_turns_and_the_first_round_does_not_count():
    seen = []

    class Contestant:
        def __init__(self, name):
            self.name = name

        def round(self, number):
            seen.append((self.name, number))
            return {"sentences": number, "seconds": 1}

    found = take_turns([Contestant("a"), Contestant("b")], 2)
    assert seen == [(name, number) for number in range(3) for name in "ab"]
    assert [e.name for e in found] == ["a", "b"]
    assert [e.rates for e in found] == [[1, 2], [1, 2]]


def test_the_lowest_cosine_is_that_of_the_worst_row(rng):
    exact = rng(5, 3).numpy()
    found = 7 * exact
    assert lowest_cosine(found, exact) == pytest.approx(1)
    found[3] *= -1
    assert lowest_cosine(found, exact) == pytest.approx(-1)
