# %% [markdown]
# # Write an objective
#
# An objective receives the embeddings of a batch and returns named terms, whose sum is minimised.
# Here: SimCSE's contrast, and a term that spreads the embeddings (Wang and Isola 2020).

# %% tags=["parameters"]
ENCODER = "all-MiniLM-L6-v2"
TEXT = "sentences.txt"  # a text per line
STEPS = 100
SETTINGS = {}

# %%
from pathlib import Path

import torch

import contrasent
from contrasent.functional import info_nce, uniformity
from contrasent.objectives import Objective, Start, Terms
from contrasent.settings import settings


@settings
class Config:
    temperature: float = 0.05
    """The cosine is divided by it."""

    spread: float = 0.1
    """Weight of the uniformity."""


class Spread(Objective):
    """In-batch contrast of two dropout views, and the uniformity of the first."""

    config_class = Config

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.views, self.config = 2, config

    def forward(self, encoded, batch):
        first, second = encoded.pooled  # (B, D) each
        return Terms(
            {
                "contrast": info_nce(first, second, self.config.temperature),
                "spread": self.config.spread * uniformity(first),
            }
        )


# %% [markdown]
# ## Test the formula before training
#
# An objective is a function of tensors, so an oracle in plain loops fits into a cell.

# %%
rows = torch.randn(4, 3)
unit = rows / rows.norm(dim=1, keepdim=True)
pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
mean = sum(torch.exp(-2 * (unit[i] - unit[j]).square().sum()) for i, j in pairs) / len(pairs)
assert torch.isclose(uniformity(rows), mean.log(), atol=1e-5)

# %% [markdown]
# ## Train
#
# `objective` takes the class; its settings follow as `objective.NAME`. What holds for the shipped
# objectives holds for this one: gradient caching, several processes, resuming.

# %%
terms = []
run = contrasent.train(
    encoder=ENCODER,
    data=TEXT,
    output="runs/spread",
    objective=Spread,
    on_step=lambda step: terms.append(step.terms),
    **{"objective.spread": 0.2, "train.max_steps": STEPS, **SETTINGS},
)
print(terms[0], "->", terms[-1])

# %% [markdown]
# ## Did it spread them?

# %%
texts = Path(TEXT).read_text("utf-8").splitlines()
for name in (ENCODER, run.last):
    rows = contrasent.SentenceEncoder(name).encode(texts, convert_to_tensor=True)
    print(name, uniformity(rows).item())
