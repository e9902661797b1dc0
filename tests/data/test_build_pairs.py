from itertools import combinations

import pytest
from helpers.building import built, write
from helpers.command_line import refused

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


def test_five_captions_of_each_image_are_ten_pairs_of_each(tmp_path):
    rows = [[f"{image}.jpg#{k}", f"{image} {k}"] for image in range(31) for k in range(5)]
    assert built("captions", write(tmp_path / "f", rows), folder=tmp_path)[1]["examples"] == 310


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("coco.csv", "id,image_id,caption\n1,7,x\n2,8,z\n3,7,y\n"),
        ("f.jsonl", [{"image_id": 7, "caption": "x"}, {"image_id": 7, "caption": "y"}]),
        ("bare.csv", "7,x\n8,z\n7,y\n"),
    ],
)
def test_tables_of_captions_are_read(tmp_path, name, content):
    source = write(tmp_path / name, content)
    assert built("captions", source, folder=tmp_path)[0] == [("x", "y")]


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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mrpc.txt", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\tx\ty\n0\t7\t8\ta\tb\n"),
        ("paws.jsonl", [{"sentence1": "x", "sentence2": "y", "label": True}]),
        ("f.csv", "text1,text2,label\nx,y,1\na,b,0\n"),
    ],
)
def test_other_sets_of_duplicates_are_read(tmp_path, name, content):
    source = write(tmp_path / name, content)
    assert built("duplicates", source, folder=tmp_path)[0] == [("x", "y")]


def test_another_label_of_duplicates_is_placed(tmp_path):
    rows = [QUORA[0], QUORA[1], [*QUORA[2][:5], "2"]]
    source = write(tmp_path / "f.tsv", rows)
    words = ("duplicates", source)
    said = refused("data", "build", *words, "--output", tmp_path / "o.csv")
    assert said.startswith(f"{source}:3: unknown label '2'; 1 or true says that the two mean")
    assert built(*words, "--skip-unreadable", folder=tmp_path)[1]["counts"]["unreadable"] == 1


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


def test_paraphrases_without_scores_are_read(tmp_path):
    source = write(tmp_path / "f.tsv", [["a", "b"], ["c", "d"]])
    assert built("paraphrases", source, folder=tmp_path)[0] == [("a", "b"), ("c", "d")]
    said = refused(
        *("data", "build", "paraphrases", source, "--output", tmp_path / "o.csv"),
        *("--min-score", "0.5"),
    )
    assert said.startswith(f"{source} has no column of scores for --min-score and --max-score")


def test_wrong_scores_are_refused(tmp_path):
    rows = [["a", "b", "0.5"], ["c", "d", " "], ["e", "f", "high"], ["g", "h", "nan"]]
    source = write(tmp_path / "f.tsv", rows)
    words = ("data", "build", "paraphrases", source, "--output", tmp_path / "o.csv")
    said = refused(*words, "--min-score", "0.6", "--max-score", "0.4")
    assert said == "no score lies between 0.6 and 0.4"
    said = refused(*words, "--min-score", "0.1")
    assert said == f"{source}:3: the score must be a number, not 'high'"
    examples, report = built(*words[2:4], "--min-score", 0.1, "--skip-unreadable", folder=tmp_path)
    assert examples == [("a", "b")]
    assert (report["counts"]["unlabelled"], report["counts"]["unreadable"]) == (1, 2)
