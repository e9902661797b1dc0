import pytest
from helpers.tiny_runs import TINY

from contrasent.errors import ContrasentError
from contrasent.functional import alignment, uniformity
from contrasent.training.loop import _geometry
from contrasent.training.run import train


def test_alignment_is_of_the_first_two_views_and_uniformity_of_the_first(rng):
    first, second, third = pooled = rng(3, 5, 4)
    found = _geometry(pooled, aligned=True)
    assert found == {"alignment": alignment(first, second), "uniformity": uniformity(first)}
    assert alignment(first, second) != alignment(first, third)
    assert uniformity(first) not in (uniformity(second), uniformity(third))
    assert set(_geometry(pooled, aligned=False)) == {"uniformity"}
    assert _geometry(pooled[:1], aligned=True) == {}


def test_a_loss_that_is_not_finite_stops_the_run_and_says_what_to_do(trained):
    with pytest.raises(ContrasentError, match=r"step \d: the loss is .*learning_rate"):
        trained(train__learning_rate=1e30, train__epochs=3)


@pytest.mark.parametrize(
    ("name", "changes", "kept"),
    [
        ("unsup-simcse", {"train.learning_rate": 1e38, "train.max_steps": 1}, []),
        ("pretrain-mlm", {"train.learning_rate": 1e38, "train.max_steps": 1}, []),
        (
            "distil",
            {"train.learning_rate": 1e38, "train.max_steps": 1, "train.warmup_share": 0},
            [],
        ),
        (
            "unsup-simcse",
            {"train.schedule": "steps", "train.rate_steps": {2: 1e38}, "train.max_steps": 3},
            ["step-000000002"],
        ),
    ],
)
def test_an_update_that_ruins_the_weights_is_not_saved(name, changes, kept, tmp_path, tiny_starts):
    recipe = TINY[name].load(tmp_path, tiny_starts, {"train.checkpoint_every": 1, **changes})
    with pytest.raises(ContrasentError, match="gives numbers that are not finite; nothing was"):
        train(recipe, tmp_path / "run", device="cpu")
    states = tmp_path / "run" / "state"
    assert [path.name for path in states.glob("*")] == kept
    assert not (tmp_path / "run" / "last").exists()
