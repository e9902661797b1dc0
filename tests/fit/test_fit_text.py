"""What a transform is fitted on: every sentence of files, every split of tasks."""

import hashlib

import pytest

from contrasent.fitting import open_fitting_text


def test_every_sentence_of_a_row_is_taken_in_the_order_of_the_files(tmp_path):
    (tmp_path / "a.csv").write_text("sent0,sent1,hard_neg\na,b,c\nd,e,f\n\n")
    (tmp_path / "b.txt").write_text("g\n\nh\ng\n")
    text = open_fitting_text([str(tmp_path / "a.csv"), str(tmp_path / "b.txt")])
    assert list(text) == list(text) == list("abcdefghg")
    assert len(text) == 9
    assert not text.is_target
    assert text.described == "a.csv and b.txt"
    first, second = text.facts()["text"]
    assert (first["source"], first["sentences"], first["target"]) == ("a.csv", 6, False)
    assert "sent0 as anchor" in first["columns"]
    assert (second["source"], second["sentences"]) == ("b.txt", 3)
    assert len({first["sha256"], second["sha256"]}) == 2


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def senteval(tmp_path):
    root = tmp_path / "senteval"
    for split in ("train", "dev", "test"):
        rows = [f"g\tf\ty\t{n}\t{n}.5\t{split} {n} a\t{split} {n} b\n" for n in range(2)]
        write(root / "STS" / "STSBenchmark" / f"sts-{split}.csv", "".join(rows))
    for subset in ("FNWN", "headlines", "OnWN"):
        folder = root / "STS" / "STS13-en-test"
        write(folder / f"STS.input.{subset}.txt", f"{subset} a\t{subset} b\nx\ty\n")
        write(folder / f"STS.gs.{subset}.txt", "1.0\n\n")
    return root


def test_a_task_is_the_text_of_all_its_splits(senteval):
    text = open_fitting_text(["stsb"], data_dir=senteval)
    expected = [f"{s} {n} {side}" for s in ("train", "dev", "test") for n in "01" for side in "ab"]
    assert sorted(text) == sorted(expected)
    assert text.is_target
    assert text.described == "target text (STS-B all): the test sentences were seen"
    assert [origin.target for origin in text.origins] == [True]
    digests = [
        hashlib.sha256((senteval / "STS" / "STSBenchmark" / f"sts-{s}.csv").read_bytes())
        for s in ("train", "dev", "test")
    ]
    joined = hashlib.sha256(" ".join(d.hexdigest() for d in digests).encode())
    assert text.origins[0].sha256 == joined.hexdigest()


def test_a_split_or_a_task_with_one_split(senteval):
    assert len(open_fitting_text(["stsb-dev"], data_dir=senteval)) == 4
    assert len(open_fitting_text(["STS-B-test", "stsb-dev"], data_dir=senteval)) == 8
    assert len(open_fitting_text(["stsb", "stsb-dev", "stsb-test"], data_dir=senteval)) == 12
    assert sorted(set(open_fitting_text(["sts13"], data_dir=senteval))) == sorted(
        f"{subset} {side}" for subset in ("FNWN", "headlines", "OnWN") for side in "ab"
    )
