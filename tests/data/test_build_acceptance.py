"""``data build`` on real text, against the same counts in plain loops."""

import pytest
from helpers.building import built, write

pytestmark = pytest.mark.acceptance


@pytest.mark.parametrize("split", ["dev", "test"])
def test_entailed_sentences_share_as_many_words_as_the_paper_says(shared, tmp_path, split):
    parts = [shared / "data" / "nli" / "snli" / f"{it}.{split}" for it in ("s1", "s2", "labels")]
    rows = zip(*(part.read_text(encoding="utf-8").splitlines() for part in parts), strict=True)
    source = write(tmp_path / "snli.tsv", [["premise", "hypothesis", "label"], *rows])
    _, said = built("nli", source, "--make", "entailment", folder=tmp_path)
    assert said["counts"]["rows"] == {"dev": 9842, "test": 9824}[split]
    # 39 % of SNLI and MNLI together
    assert said["overlap"] == pytest.approx(0.39, abs=0.01)


def test_duplicate_questions_share_as_many_words_as_the_paper_says(shared, tmp_path):
    source = shared / "data" / "paraphrase" / "qqp_sample.tsv"
    examples, said = built("duplicates", source, folder=tmp_path)
    assert said["counts"]["labels"] == {"not": 6110, "duplicate": 3490}
    assert len(examples) + said["counts"]["repeated"] + said["counts"]["identical"] == 3490
    assert said["overlap"] == pytest.approx(0.60, abs=0.01)
