from itertools import combinations

import pytest
from helpers.building import built, write

FLICKR = [
    *[[f"a.jpg#{k}", f"a{k}"] for k in range(5)],
    ["b#2.jpg#0", "b0"],
    ["c.jpg#0", "c0"],
    ["b#2.jpg#1", "b1"],
    ["d.jpg#0", "d0"],
    ["c.jpg#1", " c0 "],
    ["d.jpg#1", ""],
]


def test_any_two_captions_of_an_image_are_a_pair(tmp_path):
    source = write(tmp_path / "results.token", FLICKR)
    examples, said = built("captions", source, folder=tmp_path)
    assert examples == [*combinations([f"a{k}" for k in range(5)], 2), ("b0", "b1")]
    counts = said["counts"]
    assert (counts["rows"], counts["empty"], counts["repeated"]) == (11, 1, 1)
    assert counts["incomplete"] == 2
    (told,) = said["sources"]
    assert told["columns"] == "column 0 as image, column 1 as caption (no header)"
    assert told["labels"] is None


def test_images_of_two_sources_are_two(tmp_path):
    first = write(tmp_path / "a.csv", "image,caption\n1,a\n1,b\n")
    second = write(tmp_path / "b.csv", "image,caption\n1,c\n1,d\n")
    assert built("captions", first, second, folder=tmp_path)[0] == [("a", "b"), ("c", "d")]


QUORA = [
    ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
    ["0", "1", "2", 'Why "so"?', "Why?", "1"],
    ["1", "3", "4", "Who?", "When?", "0"],
    ["2", "5", "6", "How?", "How?", "1"],
    ["3", "5", "6", "", "How?", "1"],
    ["4", "7", "8", "x?", "y?", "-1"],
    ["5", "1", "2", 'Why "so"?', "Why?", "1"],
]


def test_duplicates_are_pairs(tmp_path):
    source = write(tmp_path / "train.tsv", QUORA)
    examples, said = built("duplicates", source, folder=tmp_path)
    assert examples == [('Why "so"?', "Why?")]
    counts = said["counts"]
    assert counts["labels"] == {"duplicate": 4, "not": 1}
    assert (counts["other"], counts["unlabelled"], counts["identical"]) == (1, 1, 1)
    assert (counts["empty"], counts["repeated"]) == (1, 1)


PARANMT = [["a b", "b a", "0.9"], ["c", "d", "0.5"], ["e", "f", "0.25"], ["g", "g", "0.5"]]


@pytest.mark.parametrize(
    ("words", "expected", "other"),
    [
        ((), "ace", 0),
        (("--min-score", 0.5), "ac", 1),
        (("--max-score", 0.5), "ce", 1),
        (("--min-score", 0.3, "--max-score", 0.6), "c", 2),
    ],
)
def test_paraphrases_are_pairs_of_a_range_of_scores(tmp_path, words, expected, other):
    source = write(tmp_path / "para-nmt.txt", PARANMT)
    examples, said = built("paraphrases", source, *words, folder=tmp_path)
    assert "".join(first[0] for first, _ in examples) == expected
    assert (said["counts"]["other"], said["counts"]["identical"]) == (other, 1)
    assert said["sources"][0]["columns"].endswith("column 2 as score (no header)")
