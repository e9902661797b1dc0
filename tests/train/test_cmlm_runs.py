"""CMLM as runs: bits after a resume, and what is refused."""

import pytest

SETTINGS = {"train__max_steps": 8, "objective__vectors": 3}


@pytest.fixture
def documents(tmp_path, text_file, tiny_masked_lm):
    """The forty sentences in documents of five."""
    lines = text_file.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "documents.txt"
    texts = ["\n".join(lines[k : k + 5]) for k in range(0, 40, 5)]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return {"data__file": str(path), "encoder__name": str(tiny_masked_lm)}
