import gzip

import pytest
from helpers.tiny_tokenizers import bert_folder

from contrasent.data.examples import open_examples


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of the cache."""
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bert(tmp_path):
    """A tokenizer of twelve words."""
    from contrasent.data.tokenizer import Tokenizer

    return Tokenizer.load(bert_folder(tmp_path / "bert"))


@pytest.fixture
def opened(tmp_path):
    """Write rows to a file of a name, and open it."""

    def opened_file(rows, name="rows.tsv"):
        lines = [row if isinstance(row, str) else "\t".join(row) for row in rows]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return open_examples(str(tmp_path / name))

    return opened_file


@pytest.fixture
def write(tmp_path):
    """Write text or bytes to a file of a name, zipped if it says so; returns the path."""

    def written(name, content):
        data = content.encode() if isinstance(content, str) else content
        data = gzip.compress(data) if name.endswith(".gz") else data
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return written


@pytest.fixture
def facts(write):
    """Write a file, and describe what it holds."""
    from contrasent.data.check import describe

    def described(name, content, *, tokenizer=None, max_tokens=None, **how):
        examples = open_examples(write(name, content), **how)
        return describe(examples, tokenizer, max_tokens=max_tokens)

    return described
