"""The interface of every backbone: packed tokens in, the states of some layers out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Never, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError, ContrasentError, first_line, is_out_of_memory
from contrasent.model.precision import resolve_precision, torch_precisions

T = TypeVar("T")

UNBOUNDED = 1_000_000
"""The longest sentence of a backbone that sets no limit."""


def first_position(model: nn.Module) -> int:
    """The first token's position: RoBERTa, MPNet and others count on from their padding's."""
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        padding = getattr(table, "padding_idx", None)
        if table is not None:
            return 0 if padding is None else int(getattr(module, "padding_idx", padding)) + 1
    return 0


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Dropout off inside; afterwards every part is in the mode it was in."""
    # Only what changes is written: a module takes microseconds to set an attribute.
    changed = [part for part in module.modules() if part.training]
    for part in changed:
        part.training = False
    try:
        yield
    finally:
        for part in changed:
            part.training = True


@contextmanager
def name_failures(kind: str, doing: str) -> Iterator[None]:
    """Raise a ConfigError that names ``kind`` for what is raised inside, but ours and of memory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ContrasentError) or is_out_of_memory(error):
            raise
        raise ConfigError(
            f"{kind} cannot compute {doing}: {first_line(error)}; take an encoder of another "
            "architecture, such as BERT, MPNet or ModernBERT, or, if it computes others, texts of "
            "another length (max_tokens)"
        ) from error


class Backbone(nn.Module, ABC):
    """A pretrained transformer, held as the ``transformers`` model it was loaded as.

    States are ``(T, width)``, and numbered 0 (embedding layer) to ``depth``. A sentence has at
    most ``max_tokens``, special ones included. It ``pads`` if padding is computed too.
    """

    engine: ClassVar[str] = "torch"
    pads: ClassVar[bool] = False
    takes_first_state: ClassVar[bool] = False
    model: PreTrainedModel
    width: int
    depth: int
    max_tokens: int
    checkpoint_layers: bool = False

    def forward(
        self,
        batch: Batch,
        layers: Sequence[int] = (-1,),
        *,
        first_only: bool = False,
        first_state: Tensor | None = None,
    ) -> dict[int, Tensor]:
        """Compute the token states ``(T, D)`` of ``layers``, which are numbers from either end.

        With ``first_only`` the last is needed at first tokens only, and may be ``(S, D)``.
        ``first_state (S, D)`` is taken as state 0 of each sentence's first token, as it is; or
        ``(S, N, D)``, of the first N tokens. Gradients reach it. ConfigError if it cannot be taken.
        """
        if first_state is not None or batch.changes_embeddings:
            self.require_first_state()
        wanted = {layer: layer % (self.depth + 1) for layer in layers}
        doing = f"{batch.sentences} sentences of up to {batch.longest} tokens"
        with name_failures(self.kind, doing):
            states = self.states(batch, set(wanted.values()), first_only, first_state)
        return {layer: states[number] for layer, number in wanted.items()}

    @abstractmethod
    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        """The states of the layers ``wanted``, numbered from 0; the rest is as in `forward`."""

    def products(self, device: torch.device) -> tuple[bool, torch.dtype]:
        """True and the number format of matrix products, if they have one of their own."""
        narrow = torch.is_autocast_enabled(device.type)
        return narrow, torch.get_autocast_dtype(device.type) if narrow else self.model.dtype

    def run_layer(self, layer: Callable[..., T], *given: Any) -> T:
        """``layer(*given)``, computed again in the backward pass where that is asked for."""
        if not (self.checkpoint_layers and torch.is_grad_enabled()):
            return layer(*given)
        states: T = checkpoint(layer, *given, use_reentrant=False)
        return states

    def refuse(self, problem: str, remedy: str) -> Never:
        """Raise a ConfigError in which the architecture stands for ``{}``."""
        raise ConfigError(f"{problem.format(self.kind)}; {remedy}")

    def require_first_state(self) -> None:
        """Raise ConfigError if state 0 cannot be replaced or masked."""
        if not self.takes_first_state:
            others = "such as BERT, MPNet, ELECTRA or ModernBERT"
            problem = "the first state of {} cannot be replaced"
            self.refuse(problem, f"choose another architecture, {others}")

    def depends_on_padding(self) -> bool:
        """True if padding, though masked, changes a sentence's states, as ConvBERT's and FNet's."""
        return False

    @property
    def kind(self) -> str:
        """The architecture, in messages."""
        return f"a transformer of type {self.model.config.model_type!r}"

    @property
    def identity(self) -> tuple[str, ...]:
        """What decides the states beside the parameters and buffers."""
        return ()

    @property
    def padding_id(self) -> int:
        """A token id for places that are masked."""
        return max(0, getattr(self.model.config, "pad_token_id", None) or 0)  # LLaMA's may be -1

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.parameters()).device

    @property
    def precisions(self) -> tuple[str, ...]:
        """What its matrix products may run in, the usual one first."""
        return torch_precisions(self.device)

    def resolve_precision(self, name: str, *, amplified: bool = False) -> str:
        """The precision that ``name`` stands for here; see :func:`resolve_precision`."""
        computer = f"{self.kind} with engine {self.engine!r}"
        return resolve_precision(name, self.precisions, computer, amplified=amplified)

    def unchanging(self) -> AbstractContextManager[None]:
        """A promise that no weight changes inside: what is made of them may be kept."""
        return nullcontext()

    def serving(self) -> AbstractContextManager[None]:
        """:meth:`unchanging` for long, and for single sentences: what they need may be made."""
        return self.unchanging()

    def set_checkpointing(self, wanted: bool) -> None:
        """Keep only the input of each layer in training, and compute it once more; or not."""
        self.checkpoint_layers = wanted

    def freeze_embeddings(self) -> None:
        """Leave the embedding layer as it is: of words, positions, and what normalises them."""
        layer = getattr(self.model, "embeddings", None) or self.model.get_input_embeddings()
        layer.requires_grad_(False)

    def freeze_layers(self, count: int) -> None:
        """Freeze the embeddings and the first ``count`` layers; ConfigError if none is left."""
        lists = (m for m in self.model.modules() if isinstance(m, nn.ModuleList))
        layers = next((each for each in lists if len(each) == self.depth), None)
        if layers is None or count >= self.depth:
            has = f"the encoder has {self.depth} layers" if layers else "layers share their weights"
            problem = f"encoder.freeze_layers is {count}, but {has}"
            self.refuse(problem, "leave at least one to train, or leave it out")
        self.freeze_embeddings()
        for layer in layers[:count]:
            layer.requires_grad_(False)

    def read_layers(self) -> None:
        """Find the modules of the layers again, after some were replaced."""
        return

    def see_both_sides(self) -> None:
        """Let every token of a decoder see all of its sentence; ConfigError if it does already."""
        problem = "every token of {} sees all of the sentence already"
        self.refuse(problem, "set encoder.bidirectional to false")

    def set_dropout(self, rate: float) -> None:
        """Give every dropout of the transformer the same rate; ConfigError if it has none."""
        dropouts = self._dropouts()
        if rate and not dropouts:
            self.refuse(f"encoder.dropout is {rate:g}, but {{}} has no dropout", "leave it out")
        for module, name in dropouts:
            setattr(module, name, rate)

    @property
    def has_dropout(self) -> bool:
        """True if two passes over a sentence differ in training."""
        return any(getattr(module, name) for module, name in self._dropouts())

    def _dropouts(self) -> list[tuple[nn.Module, str]]:
        """Modules and the attributes that hold their rates; decoders have those of attention."""
        modules, attention = list(self.modules()), "attention_dropout"
        numbers = [it for it in modules if isinstance(getattr(it, attention, None), float)]
        dropouts = [(it, "p") for it in modules if isinstance(it, nn.Dropout)]
        return dropouts + [(it, attention) for it in numbers]
