"""Runs of DiffCSE: what is logged and saved, resumed bit by bit, and refused before they start."""

import pytest
import transformers
from helpers.interrupted import kill_after
from helpers.run_files import logged_steps
from helpers.tiny_models import save_tiny_masked_lm
from safetensors.torch import load_file

from contrasent.objectives.diffcse import OPERATIONS
from contrasent.training.run import train


@pytest.fixture
def diffcse(recipe, tiny_masked_lm):
    """A recipe of ten steps."""

    def make(**overrides):
        return recipe("diffcse", **{"encoder__name": str(tiny_masked_lm), **overrides})

    return make


# What is logged and what is saved


def test_the_state_holds_the_discriminator_and_no_generator(diffcse, tmp_path):
    with kill_after("save_state"):
        train(diffcse(objective__edit_operation="all"), tmp_path / "run")
    (state,) = (tmp_path / "run" / "state").iterdir()
    assert {path.stem for path in state.glob("*.safetensors")} == {
        *("encoder", "objective", "optimizer", "random")
    }
    names = load_file(state / "objective.safetensors")
    kinds = {".".join(name.split(".")[:3]) for name in names if not name.startswith("projector")}
    assert kinds == {"difference.conditional.transformer", "difference.conditional.heads"}
    heads = {name.split(".")[3] for name in names if ".heads." in name}
    assert heads == {"replace", "insert", "delete"}
    assert not any("decoder" in name or "cls.predictions" in name for name in names)


# Other encoders, other data


@pytest.mark.parametrize("operation", ["replace", "insert", "delete", "all"])
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "distilbert"])
def test_other_tokenizers_are_edited_by_the_names_of_their_special_tokens(
    kind, operation, diffcse, tmp_path, monkeypatch
):
    folder = save_tiny_masked_lm(tmp_path / kind, kind)
    special = set(transformers.AutoTokenizer.from_pretrained(folder).all_special_ids)
    ends = []
    for name in OPERATIONS:

        def noting(batch, editing, original=OPERATIONS[name]):
            edit = original(batch, editing)
            before, after = (x.token_ids.split(x.lengths.tolist()) for x in (batch, edit.batch))
            ends.extend(
                [old[0] == new[0], old[-1] == new[-1], int(new[0]) in special]
                for old, new in zip(before, after, strict=True)
            )
            assert edit.edited.any() and not edit.edited[edit.batch.offsets[:-1]].any()
            return edit

        monkeypatch.setitem(OPERATIONS, name, noting)
    settings = {"objective__edit_operation": operation, "train__max_steps": 2}
    train(diffcse(encoder__name=str(folder), **settings), tmp_path / "run")
    assert len(logged_steps(tmp_path / "run")) == 2
    assert ends and all(all(row) for row in ends)
