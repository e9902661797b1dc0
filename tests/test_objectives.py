"""What holds for every objective: a new file under contrasent/objectives is tested at once."""

from abc import abstractmethod

import pytest
import torch
from helpers.split_steps import given
from helpers.tiny_runs import TINY
from pydantic import PositiveFloat

from contrasent import objectives
from contrasent.errors import ConfigError
from contrasent.model.backbones.base import matrix_precision
from contrasent.model.encoder import SentenceEncoder
from contrasent.recipe import load_recipe
from contrasent.settings import settings
from contrasent.training.run import train


@pytest.fixture(params=objectives.available())
def name(request):
    return request.param


@pytest.fixture
def encoder(tiny_masked_lm):
    return SentenceEncoder.load(tiny_masked_lm, pooler="cls", head="none", device="cpu").train()


def built(name, encoder, data_views=1):
    return objectives.build(name, {}, width=16, data_views=data_views, encoder=encoder)


@pytest.fixture(params=[1, 3], ids="{} views in the data".format)
def objective(name, request, encoder):
    torch.manual_seed(0)
    return built(name, encoder, request.param)


def scored(objective, encoder, examples=4):
    batch = objective.prepare(given(objective, examples))
    encoded = encoder(batch, objective.layers)
    encoded.pooled.retain_grad()
    return encoded, objective(encoded, batch)


def test_every_parameter_and_embedding_has_a_gradient_of_the_terms(objective, encoder):
    encoded, terms = scored(objective, encoder)
    assert terms
    assert all(term.shape == () and term.isfinite() for term in terms.values())
    assert all(measure.shape == () for measure in terms.measures.values())
    assert not any(measure.requires_grad for measure in terms.measures.values())
    sum(terms.values()).backward()
    for tensor in (*encoder.parameters(), *objective.parameters()):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().max() > 0
    if encoded.pooled.grad is not None:
        assert encoded.pooled.grad.abs().amax(dim=-1).min() > 0
    # An objective does not hold the encoder.
    assert not any(isinstance(part, SentenceEncoder) for part in objective.modules())
    assert not set(objective.modules()) & set(encoder.modules())


def test_the_smallest_batch_and_a_ragged_last_one(objective, encoder):
    for examples in (1, 2, 3):
        _, terms = scored(objective, encoder, examples)
        assert sum(terms.values()).isfinite()


def test_the_same_weights_come_from_the_same_seed(name, encoder):
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(built(name, encoder, 2).state_dict())
    torch.testing.assert_close(made[0], made[1], rtol=0, atol=0)


def test_bf16_products_in_the_encoder_do_not_reach_the_objective(objective, encoder):
    batch = objective.prepare(given(objective, 3))
    with matrix_precision("bf16", torch.device("cpu")):
        encoded = encoder(batch, objective.layers)
    assert encoded.pooled.dtype == torch.float32
    sum(objective(encoded, batch).values()).backward()
    assert all(p.grad is not None for p in encoder.parameters())


@settings
class PullConfig:
    """Settings of an objective outside the package."""

    weight: PositiveFloat = 1.0
    """Factor of the distance."""


class Pull(objectives.Objective):
    """The mean squared distance of two views."""

    config_class = PullConfig
    views = 2

    def __init__(self, config, start):
        super().__init__()
        self.weight = config.weight
        self.scale = torch.nn.Linear(start.width, 1)

    def forward(self, encoded, batch):
        first, second = encoded.pooled
        distance = self.scale((first - second) ** 2).abs().mean()
        return objectives.Terms({"pull": self.weight * distance})


def test_an_objective_of_another_package_is_trained_by_its_name(tiny_bert, tmp_path):
    name = objectives.name_of(Pull)
    assert name == f"{__name__}:Pull"
    changes = {"objective.name": name, "objective.weight": 2}
    train(TINY["unsup-simcse"].load(tmp_path, {"bert": tiny_bert}, changes), tmp_path / "run")
    assert load_recipe(tmp_path / "run" / "recipe.yaml").objective == {"name": name, "weight": 2}
    assert "term_pull" in (tmp_path / "run" / "metrics.jsonl").read_text()


@pytest.mark.parametrize("given", ["a tensor", "a dict", "nothing", "a number", "rows"])
def test_what_no_step_can_be_made_of_is_said_by_the_name_of_the_objective(
    given, tiny_bert, tmp_path, monkeypatch
):
    def forward(_self, encoded, _batch):
        loss = encoded.pooled.square().mean(-1)
        gives = {"a tensor": loss.mean(), "a dict": {"pull": loss.mean()}, "nothing": {}}
        gives |= {"a number": {"pull": 0.5}, "rows": {"pull": loss}}
        is_terms = given in ("nothing", "a number", "rows")
        return objectives.Terms(gives[given]) if is_terms else gives[given]

    monkeypatch.setattr(Pull, "forward", forward)
    changes = {"objective.name": objectives.name_of(Pull)}
    with pytest.raises(ConfigError, match=r"test_objectives:Pull: forward has to return Terms"):
        train(TINY["unsup-simcse"].load(tmp_path, {"bert": tiny_bert}, changes), tmp_path / "run")


class Pulled(Pull):
    @abstractmethod
    def pull(self): ...


def test_what_is_no_objective_is_explained():
    with pytest.raises(ConfigError, match=r"Pulled is not a subclass .* with its own forward"):
        objectives.config_of(f"{__name__}:Pulled", {})
    assert objectives.name_of(objectives.objective_class("simcse")) == "simcse"
    with pytest.raises(ConfigError, match="cannot import the objective 'nowhere:Pull': No module"):
        objectives.config_of("nowhere:Pull", {})
    with pytest.raises(ConfigError, match=r"PullConfig is not a subclass of contrasent.objectives"):
        objectives.config_of(f"{__name__}:PullConfig", {})
