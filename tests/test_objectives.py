"""What holds for every objective: a new file under contrasent/objectives is tested at once."""

import pytest
import torch

from contrasent import objectives
from contrasent.config import explanations, fields_of
from contrasent.data.batch import pack
from contrasent.errors import ConfigError
from contrasent.model.encoder import Encoded
from contrasent.model.heads import MlpHead
from contrasent.model.precision import matrix_precision

WIDTH = 8


@pytest.fixture(params=objectives.available())
def name(request):
    return request.param


@pytest.fixture(params=[1, 2, 3, 5], ids="{} views in the data".format)
def objective(name, request):
    torch.manual_seed(0)
    return objectives.build(name, {}, width=WIDTH, data_views=request.param)


def scored(objective, rng, examples=4):
    pooled = rng(objective.views, examples, WIDTH).requires_grad_()
    ids = [[1, 2 + n, 3] for n in range(objective.views * examples)]
    batch = objective.prepare(pack(ids, views=objective.views))
    return pooled, objective(Encoded(pooled, {}), batch)


def test_terms_are_finite_scalars(objective, rng):
    _, terms = scored(objective, rng)
    assert terms
    assert all(term.shape == () and term.isfinite() for term in terms.values())


def test_every_parameter_and_every_embedding_gets_a_gradient(objective, rng):
    pooled, terms = scored(objective, rng)
    sum(terms.values()).backward()
    for tensor in (pooled, *objective.parameters()):
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().max() > 0
    assert pooled.grad.abs().amax(dim=-1).min() > 0


def test_an_objective_does_not_hold_an_encoder(objective):
    parts = [type(part).__name__ for part in objective.modules()]
    assert not {"SentenceEncoder", "PackedBert", "AutoBackbone"} & set(parts)


def test_it_needs_at_least_an_anchor_and_a_positive(objective):
    assert objective.views >= 2


def test_the_smallest_batch_and_a_ragged_last_one(objective, rng):
    for examples in (1, 2, 3):
        _, terms = scored(objective, rng, examples)
        assert sum(terms.values()).isfinite()


def test_the_same_weights_come_from_the_same_seed(name):
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        made.append(objectives.build(name, {}, width=WIDTH, data_views=2).state_dict())
    torch.testing.assert_close(made[0], made[1], rtol=0, atol=0)


def test_bf16_products_in_the_encoder_do_not_reach_the_objective(objective, tiny_encoder):
    torch.manual_seed(0)
    tiny_encoder.head = MlpHead(16, WIDTH)
    ids = [[2, 5 + n, 7, 3][: 3 + n % 2] for n in range(objective.views * 3)]
    batch = pack(ids, views=objective.views)
    with matrix_precision("bf16", torch.device("cpu")):
        encoded = tiny_encoder.train()(batch, objective.layers)
    assert encoded.pooled.dtype == torch.float32
    sum(objective(encoded, batch).values()).backward()
    assert all(p.grad is not None for p in tiny_encoder.parameters())


def test_every_setting_is_explained(name):
    config = objectives.config_of(name, {})
    assert set(explanations(type(config))) == set(fields_of(config))
    assert all(text.endswith(".") for text in explanations(type(config)).values())


def test_a_misspelt_setting_is_explained(name):
    setting = next(iter(fields_of(objectives.config_of(name, {}))))
    said = rf"unknown setting of 'objective': '{setting[:-1]}'; .* Did you mean '{setting}'\?"
    with pytest.raises(ConfigError, match=said):
        objectives.build(name, {setting[:-1]: 1}, width=WIDTH, data_views=2)


def test_an_unknown_objective_is_explained():
    with pytest.raises(
        ConfigError, match=r"unknown objective 'simsce'; .* Did you mean 'simcse'\?"
    ):
        objectives.build("simsce", {}, width=WIDTH, data_views=2)
    with pytest.raises(ConfigError, match="unknown objective 'base'"):
        objectives.config_of("base", {})


def test_the_folder_is_the_registry():
    assert "simcse" in objectives.available()
    assert "base" not in objectives.available()
