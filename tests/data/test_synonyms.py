import shutil
import sys

import pytest
from helpers.tiny_wordnet import only_wordnet

from contrasent.data.views import WordNet
from contrasent.errors import DataError, MissingExtraError

pytest.importorskip("nltk")


@pytest.mark.parametrize(
    ("word", "synonyms"),
    [
        ("cat", {"true cat", "guy", "hombre"}),
        ("cats", {"cat", "true cat", "guy", "hombre"}),
        ("ran", {"run", "scat", "operate"}),
        ("run", {"scat", "operate"}),
        ("big", {"large"}),
        ("quickly", {"fast"}),
        ("true", set()),
        ("", set()),
        ("IN", set()),
    ],
)
def test_synonyms_are_the_lemmas_of_all_meanings_without_the_word(word, synonyms, tmp_path):
    with only_wordnet(tmp_path / "nltk_data"):
        found = WordNet().synonyms(word)
    assert set(found) == synonyms
    assert len(found) == len(synonyms)


def test_a_wordnet_that_is_missing_or_damaged_is_explained(tmp_path, monkeypatch):
    with only_wordnet(tmp_path / "nltk_data"):
        (tmp_path / "nltk_data/corpora/wordnet/lexnames").write_text("cat n\n")
        with pytest.raises(DataError, match="which NLTK cannot read"):
            WordNet()
        shutil.rmtree(tmp_path / "nltk_data")
        with pytest.raises(DataError, match="view synonym needs WordNet"):
            WordNet()
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[synonyms\]'"):
        WordNet()
