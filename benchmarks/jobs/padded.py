"""SimCSE's reference loop: plain ``transformers`` on padded batches, in bf16 on request."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from benchmarks.jobs import Steps

LEARNING_RATE, TEMPERATURE = 3e-5, 0.05


class Padded:
    """A transformer and its tokenizer; sentences padded to the longest of their batch."""

    def __init__(self, folder: str, pooler: str, precision: str) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = AutoModel.from_pretrained(folder, add_pooling_layer=False).to(self.device)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.pooler = pooler
        self.narrow = precision == "bf16"

    def pooled(self, texts: list[str], tokens: int | None, views: int = 1) -> Tensor:
        """``(views * N, D)``, the embeddings of N sentences, all of them ``views`` times."""
        inputs = self.tokenizer(
            texts,
            padding=True,
            truncation=tokens is not None,
            max_length=tokens,
            return_tensors="pt",
        ).to(self.device)
        repeated = {name: value.repeat(views, 1) for name, value in inputs.items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.narrow):
            states: Tensor = self.model(**repeated).last_hidden_state
        if self.pooler == "cls":
            return states[:, 0].float()
        mask: Tensor = repeated["attention_mask"].unsqueeze(-1)
        return (states.float() * mask).sum(1) / mask.sum(1)


class Train(Steps):
    """The loop of unsupervised SimCSE: both views in one padded forward pass."""

    def __init__(self, folder: str, tokens: int, pooler: str, precision: str, **steps: Any) -> None:
        super().__init__(**steps)
        self._padded, self._tokens = Padded(folder, pooler, precision), tokens
        self._padded.model.train()
        parameters = self._padded.model.parameters()
        self._optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)

    def _step(self, batch: list[str]) -> None:
        first, second = F.normalize(self._padded.pooled(batch, self._tokens, 2)).chunk(2)
        target = torch.arange(len(batch), device=first.device)
        loss = F.cross_entropy(first @ second.T / TEMPERATURE, target)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._padded.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
