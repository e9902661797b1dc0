import os
from pathlib import Path

import pytest
from tiny_tokenizers import bert_folder

from contrasent.data.text import open_examples

SHARED = Path(os.environ.get("CONTRASENT_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture
def shared():
    """The folder with real data that the acceptance tests read."""
    if not (SHARED / "data").is_dir():
        pytest.skip(f"no shared data in {SHARED}; name its folder in CONTRASENT_SHARED")
    return SHARED


@pytest.fixture
def bert(tmp_path):
    """A tokenizer of twelve words."""
    from contrasent.data.tokens import Tokenizer

    return Tokenizer.load(bert_folder(tmp_path / "bert"))


@pytest.fixture
def opened(tmp_path):
    """Write rows to a file of a name, and open it."""

    def opened_file(rows, name="rows.tsv"):
        lines = [row if isinstance(row, str) else "\t".join(row) for row in rows]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return open_examples(str(tmp_path / name))

    return opened_file
