"""Where a ``transformers`` model computes state 0: found by looking, and replaced there.

Shapes: S sentences, L tokens of the longest, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import PreTrainedModel

from contrasent.errors import ConfigError

_ANY_RATE = 0.5


@dataclass(frozen=True, slots=True)
class EmbeddingLayer:
    """The module of a model whose output is state 0.

    Attributes:
        name: its name in the model.
        call: at which of its calls, from 0: T5 has one dropout for before and after its layers.
    """

    name: str
    call: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """Send two tokens through ``model``, and see which module gives state 0.

        Raises:
            ConfigError: no module's output goes into layer 1 as it is.
        """
        names = {module: name for name, module in model.named_modules()}
        seen: list[tuple[str, Any]] = []

        def note(module: nn.Module, _: Any, output: Any) -> None:
            if module in names:
                seen.append((names[module], output))

        device = next(model.parameters()).device
        inputs = {"input_ids": torch.zeros(1, 2, dtype=torch.int64, device=device)}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        with _probing(model, device):
            hook = register_module_forward_hook(note)
            try:
                state = model(**inputs, output_hidden_states=True).hidden_states[0]
            finally:
                hook.remove()
            places = [place for place, (_, output) in enumerate(seen) if output is state]
            if not places or state.shape[:2] != (1, 2):
                raise _impossible(model)
            # Later ones only pass it on: modules around this one, an identity in layer 1.
            name, _ = seen[places[0]]
            found = cls(name, sum(other == name for other, _ in seen[: places[0]]))
            found.forward(model, inputs, torch.zeros_like)
        return found

    def forward(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        change: Callable[[Tensor], Tensor],
    ) -> Any:
        """The output of ``model``, all states included, with another state 0.

        Args:
            model: the one it was found in.
            inputs: ``input_ids`` and ``attention_mask``, both ``(S, L)``.
            change: makes of state 0, ``(S, L, D)``, what layer 1 is given.

        Raises:
            ConfigError: something behind the embedding layer changes what it gave.
        """
        calls: list[Tensor] = []

        def replace(_module: nn.Module, _given: Any, output: Tensor) -> Tensor:
            if len(calls) == self.call:
                output = change(output)
            calls.append(output)
            return output

        hook = model.get_submodule(self.name).register_forward_hook(replace)
        try:
            output = model(**inputs, output_hidden_states=True)
        finally:
            hook.remove()
        if output.hidden_states[0] is not calls[self.call]:
            raise _impossible(model)
        return output


@contextmanager
def _probing(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Dropout on, or a module would pass for the dropout behind it; all is put back at the end."""
    training = {module: module.training for module in model.modules()}
    rates = {module: module.p for module in training if isinstance(module, nn.Dropout)}
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        model.train()
        for dropout in rates:
            dropout.p = _ANY_RATE
        try:
            yield
        finally:
            for dropout, rate in rates.items():
                dropout.p = rate
            for module, was in training.items():
                module.training = was


def _impossible(model: PreTrainedModel) -> ConfigError:
    return ConfigError(
        f"the first state of {model.config.model_type!r} models cannot be replaced: no module of "
        "theirs gives what goes into layer 1; choose an architecture such as BERT, RoBERTa, "
        "MPNet, ELECTRA, ALBERT or DeBERTa"
    )
