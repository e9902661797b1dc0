"""SimCSE's reference loop: plain ``transformers`` on padded batches, in bf16 on request."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from benchmarks.jobs import Steps


class Train(Steps):
    """The loop of unsupervised SimCSE: both views in one forward pass, padded to the longest."""

    def __init__(self, folder: str, tokens: int, pooler: str, precision: str, **steps: Any) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = AutoModel.from_pretrained(folder, add_pooling_layer=False).to(self._device)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._tokens, self._pooler, self._narrow = tokens, pooler, precision == "bf16"
        super().__init__(self._model, **steps)

    def loss(self, batch: list[str]) -> Tensor:
        """InfoNCE of the two views at 0.05."""
        cut = {"padding": True, "truncation": True, "max_length": self._tokens}
        inputs = self._tokenizer(batch, return_tensors="pt", **cut).to(self._device)
        twice = {name: values.repeat(2, 1) for name, values in inputs.items()}
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._narrow):
            states = self._model(**twice).last_hidden_state
        if self._pooler == "cls":
            pooled = states[:, 0].float()
        else:
            mask = twice["attention_mask"].unsqueeze(-1)
            pooled = (states.float() * mask).sum(1) / mask.sum(1)
        first, second = F.normalize(pooled).chunk(2)
        target = torch.arange(len(batch), device=first.device)
        return F.cross_entropy(first @ second.T / 0.05, target)
