"""The interface of every backbone, and what it computes in: device, number format, memory."""

import ctypes
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError, ContrasentError, first_line, is_out_of_memory, pick

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # seconds to import, and each process does

T = TypeVar("T")

PRECISIONS = ("auto", "bf16", "fp32")
"""The names that recipes and commands take; an engine may add its own."""


def default_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_named(name: str | torch.device) -> torch.device:
    """The device ``name``; ConfigError if torch cannot compute on it here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(
            f"cannot compute on the device {str(name)!r} here: {first_line(error)}; name another "
            "one, such as cpu, cuda or cuda:1, or leave it out"
        ) from error
    return device


ENGINES = ("torch", "int8")


def require_engine(name: str, device: str | torch.device | None = None) -> None:
    """Raise ConfigError if an engine cannot be had on ``device``."""
    pick("engine", name, ENGINES)
    if device is not None and name != "torch" and not str(device).startswith("cpu"):
        raise ConfigError(f"the engine {name!r} computes on the CPU, not on {str(device)!r}")
    device_named("cpu" if device is None else device)


def training_device(name: str | torch.device | None) -> torch.device:
    """The device of a training run, by default the accelerator; CUDA's becomes the current one."""
    device = default_device() if name is None else device_named(name)
    if name is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def torch_precisions(device: torch.device) -> tuple[str, ...]:
    """The precisions of torch's products on ``device``, first what it multiplies natively."""
    supported = torch.ops.mkldnn._is_mkldnn_bf16_supported
    has_bf16 = device.type == "cpu" and supported() and cpu_has("avx512_bf16", "amx_bf16")
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return ("bf16", "fp32") if has_bf16 else ("fp32", "bf16")


def cpu_has(*features: str) -> bool:
    """True if torch knows of any of these instructions here; an old torch of none."""
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(known.get(feature) for feature in features)


def resolve_precision(
    name: str, available: Sequence[str], computer: str, *, amplified: bool = False
) -> str:
    """The precision that ``name`` stands for; auto is the first, or fp32 before a fitted map."""
    pick("precision", name, {*PRECISIONS, *available})
    if name == "auto":
        return "fp32" if amplified and "fp32" in available else available[0]
    if name not in available:
        raise ConfigError(f"{computer} computes in {' or '.join(available)}, not in {name}")
    return name


class SharedContext(AbstractContextManager[None]):
    """A context that the first thread to enter opens, and the last to leave closes."""

    def __init__(self, context: Callable[[], AbstractContextManager[object]]) -> None:
        self._context = context
        self._lock = Lock()
        self._users = 0
        self._opened: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._opened = self._context()
                self._opened.__enter__()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._opened.__exit__(None, None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is closed: whoever leaves this one does not know of it."""
        return type(self), (self._context,)

    @property
    def is_open(self) -> bool:
        return self._users > 0


class WeightCache(SharedContext):
    """A promise that no weight changes; what is made of them is kept while anybody gives it."""

    def __init__(self) -> None:
        super().__init__(self._empty)
        self.kept: dict[Hashable, Any] = {}

    @contextmanager
    def _empty(self) -> Iterator[None]:
        self.kept = {}  # a thread may have put something here after the last promise ended
        yield
        self.kept = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under ``key``, or is made now."""
        kept = self.kept
        value: T | None = kept.get(key)
        if value is None:
            value = kept[key] = make()
        return value


@contextmanager
def _without_tf32() -> Iterator[None]:
    # TF32 has 10 bits; a cosine divided by a temperature of 0.05 shows that.
    change: Callable[[str], object] = torch.set_float32_matmul_precision
    try:
        before, exact = torch.get_float32_matmul_precision(), "highest"
    except RuntimeError:  # it was set under its newer name, which this call refuses to read
        products = torch.backends.cuda.matmul
        before, exact = products.fp32_precision, "ieee"
        change = partial(setattr, products, "fp32_precision")
    if before != exact:
        change(exact)
    yield
    if before != exact:
        change(before)


FULL_FP32 = SharedContext(_without_tf32)
"""The context in which fp32 products are computed in fp32; may be entered again, by any thread."""


@contextmanager
def matrix_precision(precision: str, device: torch.device) -> Iterator[None]:
    """The context of matrix products in ``fp32`` or ``bf16``; with ``int8`` others are in fp32."""
    is_narrow = pick("precision", precision, ("bf16", "fp32", "int8")) == "bf16"
    narrow = torch.autocast(device.type, torch.bfloat16 if is_narrow else None, is_narrow)
    with nullcontext() if is_narrow else FULL_FP32, narrow:
        yield


_resident_after = 0  # bytes of this process when freed memory was last given back


def keep_freed_memory() -> None:
    """Let this process use the memory of freed tensors again, from now on, where glibc is.

    Otherwise the system clears each page of the next tensor: a twelfth of a training step of
    MiniLM, a sixth of its encoding. :func:`give_back_freed_memory` returns it.
    """
    if (library := _glibc()) is not None:
        library.mallopt(-4, 0)  # M_MMAP_MAX
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def give_back_freed_memory(above: int = 256 << 20) -> None:
    """Return freed memory if the process has grown ``above`` bytes since it last did so, or shrank.

    Batches differ in size, so the C library holds several times what is in use: 4.3 GB for 1.
    """
    global _resident_after  # noqa: PLW0603 - a process has one heap
    if (library := _glibc()) and not 0 <= _resident() - _resident_after <= above:
        library.malloc_trim(0)
        _resident_after = _resident()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None


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
    model: "PreTrainedModel"
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
            remedy = "choose another architecture, such as BERT, MPNet, ELECTRA or ModernBERT"
            self.refuse("the first state of {} cannot be replaced", remedy)

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
            why = f"the encoder has {self.depth} layers" if layers else "layers share their weights"
            problem = f"encoder.freeze_layers is {count}, but {why}"
            self.refuse(problem, "leave at least one to train, or leave it out")
        self.freeze_embeddings()
        for layer in layers[:count]:
            layer.requires_grad_(False)

    def keep_layers(self, count: int) -> None:
        """Keep ``count`` layers, evenly spaced and the last among them; ConfigError if not."""
        problem = f"encoder.layers is {count}, but the layers of {{}} cannot be taken apart here"
        self.refuse(problem, "take a BERT, RoBERTa, MPNet, ELECTRA or DistilBERT, or leave it out")

    def read_layers(self) -> None:
        """Find the modules of the layers again, after some were replaced."""
        return

    def is_causal(self) -> bool:
        """True if the first token sees no other."""
        return False

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
        modules, attention = list(self.modules()), "attention_dropout"
        numbers = [it for it in modules if isinstance(getattr(it, attention, None), float)]
        dropouts = [(it, "p") for it in modules if isinstance(it, nn.Dropout)]
        return dropouts + [(it, attention) for it in numbers]
