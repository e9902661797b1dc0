import sys

import pytest
from helpers.tiny_wordnet import write_wordnet

from contrasent.data.views import WordNet
from contrasent.errors import DataError, MissingExtraError

nltk = pytest.importorskip("nltk")


@pytest.fixture
def nltk_data(tmp_path, monkeypatch):
    """The only folder that NLTK looks into; its WordNet is read anew."""
    from nltk.corpus import LazyCorpusLoader, WordNetCorpusReader

    folder = tmp_path / "nltk_data"
    folder.mkdir()
    monkeypatch.setattr(nltk.data, "path", [str(folder)])
    loader = LazyCorpusLoader(
        "wordnet", WordNetCorpusReader, LazyCorpusLoader("omw-1.4", WordNetCorpusReader)
    )
    monkeypatch.setattr(nltk.corpus, "wordnet", loader)
    yield folder
    for file in vars(loader).get("_data_file_map", {}).values():
        file.close()


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
def test_synonyms_are_the_lemmas_of_all_meanings_without_the_word(word, synonyms, nltk_data):
    write_wordnet(nltk_data)
    found = WordNet().synonyms(word)
    assert set(found) == synonyms
    assert len(found) == len(synonyms)


def test_a_wordnet_that_is_missing_or_damaged_is_explained(nltk_data, monkeypatch):
    with pytest.raises(DataError, match="view synonym needs WordNet"):
        WordNet()
    (write_wordnet(nltk_data) / "lexnames").write_text("cat n\n")
    with pytest.raises(DataError, match="which NLTK cannot read"):
        WordNet()
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[synonyms\]'"):
        WordNet()
