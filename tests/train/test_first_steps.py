"""Training beside others': first steps in padded loops, and what the reference code reaches.

The reference reached 70.9 and 71.0 (unsupervised, two seeds) and 74.7 (supervised) from this
start, which has 67.2, on this data: mean of the seven STS test sets, Spearman, all, x 100. One seed
of ours varies by some tenths; three seeds must reach 70.7 and 74.5 in the mean, one must not be far
below. Of every fourth pair the start has 68.4; a sixth of the unsupervised steps reach 70.1, at
temperature 1 67.8. Without dropout they reach 70.1 too, which test_curves.py tells apart.
"""

import pytest
import torch
import transformers
from helpers import oracles
from helpers.padded import padded
from helpers.run_files import logged_losses
from helpers.shared_data import write_some_sts
from safetensors.torch import load_file

from contrasent import evaluate
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import ConfigError
from contrasent.recipe import load_recipe
from contrasent.training.run import train

RATE, STEPS, BATCH = 1e-3, 3, 8
PLAIN = {"data__shuffle": False, "encoder__dropout": 0.0, "evaluation__task": "none"}


def other_implementation(folder, rows, temperature, head_seed, own_weight=1.0):
    """Losses of each step, and the weights after them; the head is drawn as a run draws it."""
    model = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).float().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    torch.manual_seed(head_seed)
    head = torch.nn.Linear(16, 16)
    torch.nn.init.normal_(head.weight, std=0.02)
    torch.nn.init.zeros_(head.bias)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
    tokenizer, losses = Tokenizer.load(folder), []
    for step in range(STEPS):
        batch = rows[step * BATCH : (step + 1) * BATCH]
        views = [
            torch.tanh(
                head(model(**padded(tokenizer.ids(list(view), 32)[0])).last_hidden_state[:, 0])
            )
            for view in zip(*batch, strict=True)
        ]
        loss = oracles.info_nce(views[0], torch.cat(views[1:]), temperature, own_weight)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * (STEPS - step) / STEPS
        optimizer.step()
    return losses, model.state_dict(), head.state_dict()


def check(result, expected, weights):
    assert logged_losses(result.last.parent) == pytest.approx(expected, abs=2e-5)
    stored = load_file(result.last / "model.safetensors")
    for name, tensor in stored.items():
        if name.startswith("pooler."):
            continue  # the unused layer over [CLS], for other libraries
        if name.endswith("key.bias"):
            continue  # its gradient is 0 in exact arithmetic, so Adam scales up rounding
        torch.testing.assert_close(tensor, weights[name], atol=2e-5, rtol=0, msg=name)


def test_unsupervised_steps_equal_another_implementation(trained, tiny_bert, text_file):
    result = trained(train__max_steps=STEPS, **PLAIN)
    texts = text_file.read_text(encoding="utf-8").splitlines()
    rows = [(text, text) for text in texts]
    expected, weights, _ = other_implementation(tiny_bert, rows, 0.05, 42)
    check(result, expected, weights)


def test_supervised_steps_equal_another_implementation(trained, tiny_bert, triplet_file):
    result = trained(
        "sup-simcse",
        train__max_steps=STEPS,
        train__learning_rate=RATE,
        data__file=str(triplet_file),
        objective__temperature=0.1,
        objective__hard_negative_weight=2.0,
        objective__exclude_duplicates=False,
        **PLAIN,
    )
    lines = triplet_file.read_text(encoding="utf-8").splitlines()[1:]
    rows = [tuple(line.split(",")) for line in lines]
    expected, weights, head = other_implementation(tiny_bert, rows, 0.1, 42, own_weight=2.0)
    check(result, expected, weights)
    dense = load_file(result.last / "2_Dense" / "model.safetensors")
    torch.testing.assert_close(dense["linear.weight"], head["weight"], atol=2e-5, rtol=0)


def test_frozen_layers_stay_those_of_the_start(trained, tmp_path, tiny_bert):
    trained(encoder__freeze_layers=1)
    start = load_file(tiny_bert / "model.safetensors")
    last = load_file(tmp_path / "run" / "last" / "model.safetensors")
    frozen = [n for n in start if n.startswith(("embeddings.", "encoder.layer.0."))]
    assert frozen and all(last[name].equal(start[name]) for name in frozen)
    trained_name = "encoder.layer.1.output.dense.weight"
    assert not last[trained_name].equal(start[trained_name])
    with pytest.raises(ConfigError, match="freeze_layers is 9, but the encoder has 2 layers"):
        trained(folder="other", encoder__freeze_layers=9)


WIKI, NLI = "wiki/wiki1m_for_simcse.head11914.txt", "nli/nli_triplets.csv"


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("recipe", "text", "settings", "least"),
    [
        pytest.param(
            *("unsup-simcse-bert-base", WIKI, {"train.max_steps": 31}, 69.7),
            id="sixth",
            marks=pytest.mark.acceptance,
        ),
        pytest.param(
            *("unsup-simcse-bert-base", WIKI, {}, 70.4), id="unsup", marks=pytest.mark.exhaustive
        ),
        pytest.param(
            *("sup-simcse", NLI, {"encoder.pooler": "cls"}, 74.2),
            id="sup",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_training_reaches_the_reference(recipe, text, settings, least, shared, tmp_path):
    data_dir = shared / "data" / "senteval"
    if settings.get("train.max_steps"):
        data_dir = write_some_sts(tmp_path / "senteval", 4)
    common = {
        "encoder.name": str(shared / "data" / "weights" / "minilm-mlm"),
        "data.file": str(shared / "data" / text),
        "evaluation.data_dir": str(data_dir),
        "evaluation.final": "none",
    }
    result = train(load_recipe(recipe, {**common, **settings}), tmp_path / "run")
    records = evaluate(str(result.best), ["sts"], data_dir=data_dir)
    values = [r.value for r in records if (r.metric, r.aggregation) == ("spearman", "all")]
    assert len(values) == 7
    assert sum(values) / 7 * 100 >= least
