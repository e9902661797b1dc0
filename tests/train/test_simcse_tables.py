"""Every cell of SimCSE's Tables 6, 7 and D.1 is named by settings, and trains."""

import pytest
import torch
from helpers.tiny_models import WORDS

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded

POOLERS = {  # encoder.pooler, encoder.head, objective.head
    "[CLS] w/ MLP": ("cls", "mlp", "none"),
    "[CLS] w/ MLP (train)": ("cls", "none", "mlp"),
    "[CLS] w/o MLP": ("cls", "none", "none"),
    "First-last avg.": ("mean_first_last", "none", "none"),
}
HARD_NEGATIVES = {  # columns of the data, objective.hard_negatives, objective.hard_negative_weight
    "N/A": ([0, 1], 0, 1.0),
    "Contradiction, alpha 0.5": ([0, 1, 2], 1, 0.5),
    "Contradiction, alpha 1": ([0, 1, 2], 1, 1.0),
    "Contradiction, alpha 2": ([0, 1, 2], 1, 2.0),
    "Contra. + Neutral": ([0, 1, 2, 3], 2, 1.0),
}
TEMPERATURES = [{"similarity": "dot"}]
TEMPERATURES += [{"temperature": tau} for tau in (0.001, 0.01, 0.05, 0.1, 1.0)]


@pytest.fixture
def nli_file(tmp_path):
    """Premise, entailment, contradiction, neutral."""
    path = tmp_path / "nli.tsv"
    rows = ["\t".join(" ".join(WORDS[n + k : n + k + 3]) for k in range(4)) for n in range(16)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def one_step(trained):
    """The encoder after one step."""

    def run(name, **overrides):
        settings = {"train__max_steps": 1, "evaluation__task": "none", **overrides}
        return SentenceEncoder.load(trained(name, **settings).last, device="cpu")

    return run


@pytest.mark.parametrize("cell", POOLERS)
@pytest.mark.parametrize("name", ["unsup-simcse", "sup-simcse"])
def test_table_6(name, cell, one_step, triplet_file):
    pooler, kept, dropped = POOLERS[cell]
    data = {"data__file": str(triplet_file)} if name == "sup-simcse" else {}
    encoder = one_step(
        name, encoder__pooler=pooler, encoder__head=kept, objective__head=dropped, **data
    )
    assert encoder.pooler == pooler
    assert (encoder.head is not None) == (kept == "mlp")


@pytest.mark.parametrize("cell", HARD_NEGATIVES)
def test_table_7(cell, one_step, nli_file):
    columns, count, alpha = HARD_NEGATIVES[cell]
    one_step(
        "sup-simcse",
        data__file=str(nli_file),
        data__columns=columns,
        objective__hard_negatives=count,
        objective__hard_negative_weight=alpha,
    )


@pytest.mark.parametrize("cell", TEMPERATURES, ids=str)
def test_table_d1(cell, rng):
    objective = objectives.build("simcse", cell, width=8, data_views=3)
    pooled = rng(3, 5, 8).requires_grad_()
    batch = pack([[2, 5 + n, 3] for n in range(15)], views=3)
    loss = torch.stack(list(objective(Encoded(pooled, {}), batch).values())).sum()
    loss.backward()
    assert loss.isfinite()
    assert pooled.grad.isfinite().all()
    assert pooled.grad.abs().max() > 0
