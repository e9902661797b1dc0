"""DeCLUTR as runs: bits after a resume, counts of documents, and what is refused."""

import pytest
from helpers.run_files import logged_steps
from helpers.tiny_models import WORDS

SETTINGS = {
    "data__max_tokens": 32,
    "objective__min_words": 2,
    "objective__max_words": 6,
    "train__batch_size": 4,
    "train__max_steps": 8,
}


@pytest.fixture
def documents(tmp_path, tiny_masked_lm):
    """Fourteen documents of 6 to 48 words, of which those with 24 are long enough."""
    path = tmp_path / "documents.txt"
    plain = [word for word in WORDS if word.isalpha()]
    lines = [" ".join((plain * 2)[n * 5 % len(plain) :][:6]) for n in range(22)]
    texts = ["\n".join(lines[n : n + 1 + n % 8]) for n in range(14)]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return {"data__file": str(path), "encoder__name": str(tiny_masked_lm)}


def test_documents_that_are_left_out_are_counted(documents, tmp_path, trained, caplog):
    with caplog.at_level("INFO", logger="contrasent"):
        trained("declutr", **{**SETTINGS, **documents})
    said = "8 examples; 6 of 14 documents left out, which have fewer than 24 words"
    assert said in caplog.messages
    steps = logged_steps(tmp_path / "run")
    assert {"term_contrast", "term_mlm", "mlm_accuracy"} <= steps[0].keys()
    assert "alignment" not in steps[0]
    assert steps[0]["loss"] == pytest.approx(steps[0]["term_contrast"] + steps[0]["term_mlm"])
