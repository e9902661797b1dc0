"""CMLM as runs: bits after a resume, and what is refused."""

import pytest

from contrasent.errors import ConfigError, DataError
from contrasent.training.run import train

SETTINGS = {"train__max_steps": 8, "objective__vectors": 3}


@pytest.fixture
def documents(tmp_path, text_file, tiny_masked_lm):
    """The forty sentences in documents of five."""
    lines = text_file.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "documents.txt"
    texts = ["\n".join(lines[k : k + 5]) for k in range(0, 40, 5)]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return {"data__file": str(path), "encoder__name": str(tiny_masked_lm)}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        (
            {"data__max_tokens": 62},
            ConfigError,
            "data.max_tokens is 62, but the objective cmlm leaves room for 61 tokens of a sentence",
        ),
        ({"objective__vectors": 33}, ConfigError, "leaves room for 31 tokens"),
        ({"encoder__encoders": "twin"}, ConfigError, "the objective takes one view of each"),
        ({"train__gradcache_chunk": 4}, ConfigError, "reads the states or the tokens"),
        ({"data__file": None}, DataError, "sentence after each anchor: .* has no blank line"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(
    changes, error, said, documents, recipe, text_file, tmp_path
):
    if "data__file" in changes:
        changes = {"data__file": str(text_file)}
    with pytest.raises(error, match=said):
        train(recipe("cmlm", **{**SETTINGS, **documents, **changes}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
