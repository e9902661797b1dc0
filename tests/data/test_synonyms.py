import shutil
import sys
from pathlib import Path

import pytest
from helpers.tiny_wordnet import write_wordnet

from contrasent.data.augment import FUNCTION_WORDS, WordNet
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
        ("Cat", {"true cat", "guy", "hombre"}),
        ("cats", {"cat", "true cat", "guy", "hombre"}),
        ("ran", {"run", "scat", "operate"}),
        ("run", {"scat", "operate"}),
        ("big", {"large"}),
        ("quickly", {"fast"}),
        ("true", set()),
        ("unheard-of", set()),
        ("", set()),
        ("in", set()),
        ("In", set()),
        ("IN", set()),
    ],
)
def test_synonyms_are_the_lemmas_of_all_meanings_without_the_word(word, synonyms, nltk_data):
    write_wordnet(nltk_data)
    found = WordNet().synonyms(word)
    assert set(found) == synonyms
    assert len(found) == len(synonyms)


def test_every_function_word_is_in_lower_case():
    assert all(word == word.lower() for word in FUNCTION_WORDS)
    assert {"a", "in", "us", "was", "there"} < FUNCTION_WORDS


def test_a_word_is_looked_up_once(nltk_data, monkeypatch):
    write_wordnet(nltk_data)
    wordnet, asked = WordNet(), []
    synsets = wordnet._reader.synsets
    monkeypatch.setattr(
        wordnet._reader, "synsets", lambda word: asked.append(word) or synsets(word)
    )
    for _ in range(3):
        wordnet.synonyms("cat")
        wordnet.synonyms("unheard-of")
    assert asked == ["cat", "unheard-of"]
    assert wordnet.version == "3.0"


def test_wordnet_may_be_an_archive_as_it_is_fetched(nltk_data):
    folder = write_wordnet(nltk_data)
    shutil.make_archive(str(folder), "zip", folder.parent, "wordnet")
    shutil.rmtree(folder)
    assert set(WordNet().synonyms("dog")) == {"domestic dog"}


@pytest.mark.usefixtures("nltk_data")
def test_a_missing_wordnet_is_explained():
    with pytest.raises(
        DataError,
        match=r"view synonym needs WordNet, which NLTK does not find: get it once with 'python -m "
        r"nltk.downloader wordnet'\. It then works offline; .* NLTK_DATA names that",
    ):
        WordNet()


@pytest.mark.parametrize("damage", [lambda path: path.write_text("cat n\n"), Path.unlink])
def test_a_damaged_wordnet_is_explained(damage, nltk_data):
    damage(write_wordnet(nltk_data) / "lexnames")
    with pytest.raises(
        DataError, match=r"NLTK cannot read its WordNet \(.*\); get it again with 'python -m nltk.d"
    ):
        WordNet()


def test_a_missing_library_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(
        MissingExtraError,
        match=r"view synonym needs the package nltk: pip install '.*\[synonyms\]'",
    ):
        WordNet()
