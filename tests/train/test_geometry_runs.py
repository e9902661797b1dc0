"""A run that measures its geometry is the run it would have been without."""

import pytest
from helpers.run_files import metrics

from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.geometry import measure, read_trajectory
from contrasent.evaluation.rated_pairs import RatedPairs
from contrasent.model.encoder import SentenceEncoder
from contrasent.training.run import train

FILES = ("last/model.safetensors", "best/model.safetensors")


@pytest.fixture
def followed(recipe, pairs_file):
    """A recipe that measures every third of 10 steps."""

    def make(**overrides):
        measured = {
            "evaluation__geometry_every": 3,
            "evaluation__geometry_pairs": f"{pairs_file}>4",
        }
        return recipe(train__epochs=2, **{**measured, **overrides})

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"train__gradcache_chunk": 5}, {"encoder__encoders": "twin"}], ids=str
)
def test_the_bits_are_the_same_with_and_without(changes, followed, tmp_path):
    train(followed(**changes), tmp_path / "with")
    train(followed(evaluation__geometry_every=None, **changes), tmp_path / "without")
    for name in FILES:
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    rest = [line for line in metrics(tmp_path / "with") if "geometry" not in line]
    assert rest == metrics(tmp_path / "without")


def test_start_every_step_asked_for_and_end_are_measured(followed, pairs_file, tmp_path):
    settings = followed()
    result = train(settings, tmp_path / "run")
    found = read_trajectory(tmp_path / "run")
    assert found.steps == (0, 3, 6, 9, 10)
    pairs = RatedPairs.read(f"{pairs_file}>4")
    for encoder, position in (
        (
            SentenceEncoder.load(settings.encoder.name, pooler="cls", head="none"),
            found.positions[0],
        ),
        (SentenceEncoder.load(result.last), found.positions[-1]),
    ):
        measured = measure(EncoderUse(encoder), pairs)
        assert measured.value("alignment") == pytest.approx(position.alignment, rel=1e-4)
        assert measured.value("uniformity") == pytest.approx(position.uniformity, rel=1e-4)
    line = next(line for line in metrics(tmp_path / "run") if "geometry" in line)
    assert line["geometry"]["pairs"] == found.pairs == f"{pairs_file}>4"
    assert line["geometry"]["sentences"] == len(pairs.sentences)
    assert line["geometry"]["positive_pairs"] == int(pairs.positive.sum())
    assert line["geometry"]["precision"] == "fp32"
