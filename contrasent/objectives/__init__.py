"""The interface of objectives, embeddings and their batch in, named terms out; and their registry.

Each is a file of this folder: ``simcse.py`` is the objective "simcse". A class in any other module
that can be imported is named ``module:Class``.

Shapes: B examples, C candidates, D embedding width.
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from contrasent.data.batch import Batch, Need
from contrasent.data.documents import Spans
from contrasent.data.examples import Examples
from contrasent.errors import ConfigError, pick, shown
from contrasent.functional import info_nce
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import HEADS
from contrasent.model.protocol import Encoded
from contrasent.recipe import validate
from contrasent.settings import settings

Share = Annotated[float, Field(gt=0, lt=1)]


class Terms(dict[str, Tensor]):
    """Named scalar terms, already weighted, whose sum is the loss; ``measures`` are logged."""

    def __init__(
        self, terms: Mapping[str, Tensor], measures: Mapping[str, Tensor] | None = None
    ) -> None:
        super().__init__(terms)
        self.measures = dict(measures or {})


@dataclass(frozen=True, slots=True)
class Start:
    """The setup that an objective is built for: the dimensions of embeddings, and its data.

    Modules of ``encoder``, as it is before the first step, may be copied and not kept.
    """

    width: int
    data_views: int
    encoder: SentenceEncoder | None = None
    batch_size: int | None = None

    def require_encoder(self) -> SentenceEncoder:
        """The encoder, which an objective that reads tokens is built for."""
        return cast(SentenceEncoder, self.encoder)

    def require_packed_bert(self) -> tuple[SentenceEncoder, PackedBert]:
        """The encoder, and its backbone, whose layers the objective adds to or decodes with."""
        encoder = self.require_encoder()
        backbone = encoder.backbone
        if not (isinstance(backbone, PackedBert) and backbone.is_plain):
            raise ConfigError(
                f"this objective takes a BERT, RoBERTa, XLM-R, CamemBERT or DistilBERT, but "
                f"{encoder.name} is {backbone.kind}; choose another encoder, or another objective"
            )
        return encoder, backbone

    def require_width(self, width: int) -> None:
        """Raise ConfigError unless embeddings have the ``width`` of token states."""
        if self.width != width:
            what = f"embeddings have {self.width} dimensions, token states {width}"
            raise ConfigError(f"{what}, which stand side by side here; set encoder.head to none")


class Objective(nn.Module, ABC):
    """A training objective, made as ``Class(config, start)`` of its settings and a `Start`.

    It may own modules of its own (a head, a discriminator); they are trained with the encoder and
    left out of the saved encoder. It never holds the encoder, so it can be tested on random
    tensors; what it still runs of it, or reads of its weights, stands in a tuple. Training computes
    matrix products of its modules in ``train.precision``; the formulas of `contrasent.functional`
    and the heads of `contrasent.model.heads` stay in fp32.
    """

    config_class: ClassVar[type[Any]]  # its settings, a class made by `settings`
    views: int  # sentences of each example; a single one is given again as every view
    needs: frozenset[Need] = frozenset()  # what it reads beside the embeddings of the views
    needs_pairs: bool = False  # single sentences would leave it without its positives
    takes_fewer: bool = False  # of sources with fewer sentences it takes as many as they have
    provides_views: bool = False  # `prepare` adds views to those of the data, or makes them differ
    aligned: bool = True  # the second view is a positive of the first: their alignment is logged
    has_roles: bool = False  # the first view is a query and the others are documents
    alone: bool = False  # what it saves is not what a run with other objectives can save
    max_tokens: int | None = None  # the longest sentence that its own transformers take
    spans: Spans | None = None  # its views are spans of documents, drawn as this says
    # What it computes of tokens it computes part by part, of token states it reads those of the
    # sentences ``encoded.own``: gradient caching and several processes can be had with it.
    in_parts: bool = False

    def __init__(self, config: Any = None, start: Start | None = None) -> None:
        super().__init__()
        self.config, encoder = config, start and start.encoder
        self._device = str(encoder.device) if encoder else None  # of encoders that it follows

    @property
    def layers(self) -> tuple[int, ...]:
        """The token states it reads beside the embeddings, by layer."""
        return (-1,) if Need.TOKEN_STATES in self.needs else ()

    def columns(self, examples: Examples, show_progress: bool = False) -> Mapping[Need, np.ndarray]:
        """``(N, ...)`` each, the numbers of all examples that it computes before the first step."""
        return {}

    def prepare(self, batch: Batch) -> Batch:
        """The batch to encode, where it is not the one that the data gives.

        Views may be added after those of the data. What is drawn comes from torch's generator.
        """
        return batch

    def after_step(self) -> None:
        """Called after every update of the weights, for what follows them."""
        return

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        """Score one batch: weighted scalar terms whose sum is minimised.

        ``encoded.pooled`` is ``(V, B, D)``, view by view, of the tokens in ``batch``. Of several
        processes each has the whole batch and all embeddings, and returns the same terms.
        """

    def save(self, encoder: SentenceEncoder, folder: Path, info: Mapping[str, Any]) -> None:
        """Write what was trained, with ``info``, replacing ``folder``: by default the encoder."""
        encoder.save(folder, info)


def same_texts(batch: Batch) -> Tensor:
    """``(S, S)``, which sentences have the same text."""
    texts = batch.same_text()
    return texts == texts.unsqueeze(1)


def duplicates(batch: Batch) -> Tensor:
    """``(B, C)``, where a candidate has the text of the anchor or of the anchor's positive."""
    anchor, *others = batch.same_text().view(batch.views, -1).unbind()
    candidates = torch.cat(others)
    return (candidates == anchor.unsqueeze(1)) | (candidates == others[0].unsqueeze(1))


@settings
class ContrastConfig:
    """Settings of a contrast of anchors with the candidates of a batch."""

    temperature: PositiveFloat = 0.05
    """tau; the cosine is divided by it."""

    head: Literal["mlp", "batchnorm", "none"] = "mlp"
    """A head that is trained and then dropped: Linear+Tanh (mlp), DiffCSE's (batchnorm), none."""

    exclude_duplicates: bool = True
    """Leave candidates with the text of the anchor or of its positive out of the negatives."""


class Contrast(Objective):
    """An objective that contrasts anchors with the candidates of a batch, after a head."""

    config_class = ContrastConfig

    def __init__(self, config: Any, start: Start) -> None:
        super().__init__(config, start)
        self.head = HEADS[config.head](start.width)

    def contrast(
        self, anchor: Tensor, candidates: Tensor, batch: Batch, further: Tensor | None = None
    ) -> Tensor:
        """InfoNCE of ``anchor (B, D)`` and ``candidates (C, D)``, and of ``further`` logits."""
        excluded = duplicates(batch) if self.config.exclude_duplicates else None
        temperature = self.config.temperature
        return info_nce(anchor, candidates, temperature, excluded=excluded, further=further)


MATRYOSHKA = ("matryoshka", "matryoshka_weights")
"""Settings of every objective that reads embeddings only."""


@settings
class _Dimensions:
    matryoshka: list[PositiveInt] = Field(default_factory=list)
    matryoshka_weights: list[PositiveFloat] | None = None


def read_dimensions(settings: Mapping[str, Any]) -> dict[int, float]:
    """The weight of each number of dimensions; nothing without the setting ``matryoshka``.

    ConfigError if they are no list of different whole numbers above 0, or weights do not fit.
    """
    given = {name: settings[name] for name in MATRYOSHKA if settings.get(name) is not None}
    asked = validate(_Dimensions, given, "objective")
    sizes, weights = asked.matryoshka, asked.matryoshka_weights
    weights = [1.0] * len(sizes) if weights is None else weights
    if len(set(sizes)) < len(sizes) or len(weights) != len(sizes):
        raise ConfigError(
            f"objective.matryoshka is {sizes}, objective.matryoshka_weights {weights}; give "
            "different numbers of dimensions, and as many weights as there are of these"
        )
    return dict(zip(sizes, weights, strict=True))


class Matryoshka(Objective):
    """An objective for each number of leading dimensions, each with a head of its own."""

    def __init__(
        self, make: Callable[[Start], Objective], start: Start, weights: Mapping[int, float]
    ) -> None:
        super().__init__()
        whole = make(start)
        unsuited = [need.value for need in whole.needs if not need.is_number]
        unsuited += ["views of its own"] * whole.provides_views
        for too_large in (size for size in weights if size > start.width):
            unsuited.append(f"no more than {start.width} dimensions, not {too_large}")
        if unsuited:
            raise ConfigError(
                f"objective.matryoshka is for objectives that read embeddings only, and for as "
                f"many dimensions as these have, but this one needs {unsuited[0]}; leave it out, "
                "or choose another, such as simcse"
            )
        traits = "views needs aligned alone spans max_tokens needs_pairs has_roles takes_fewer"
        for name in (*traits.split(), "columns", "save"):  # all but what a batch is scored by
            setattr(self, name, getattr(whole, name))
        self.weights = {start.width: weights.get(start.width, 1.0), **weights}
        parts = {
            size: whole if size == start.width else make(replace(start, width=size))
            for size in self.weights
        }
        self.parts = nn.ModuleDict({str(size): part for size, part in parts.items()})

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        terms = Terms({})
        for size, weight in self.weights.items():
            pooled = encoded.pooled[..., :size]
            of_size: Terms = self.parts[str(size)](replace(encoded, pooled=pooled), batch)
            terms.update({f"{name}_{size}": weight * it for name, it in of_size.items()})
            terms.measures.update({f"{name}_{size}": it for name, it in of_size.measures.items()})
        return terms


def require_terms(objective: Objective, terms: object) -> Terms:
    """What an objective gave, if a step can be made of it; else ConfigError."""
    tensors = [*terms.values()] if isinstance(terms, Terms) else [terms]
    are_scalars = all(isinstance(it, Tensor) and it.ndim == 0 for it in tensors)
    if not (isinstance(terms, Terms) and tensors and are_scalars):
        rule = "forward has to return Terms, a mapping of names to scalar tensors"
        raise ConfigError(f"{name_of(type(objective))}: {rule}, not {shown(terms)}")
    return terms


def available() -> list[str]:
    """The objectives of this folder, without importing them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def build(name: str, settings: Mapping[str, Any], **start: Any) -> Objective:
    """Make the objective ``name`` of its settings, those of matryoshka too, for a `Start`."""
    make, begin = partial(objective_class(name), config_of(name, settings)), Start(**start)
    dimensions = read_dimensions(settings)
    return Matryoshka(make, begin, dimensions) if dimensions else make(begin)


def config_of(name: str, settings: Mapping[str, Any]) -> Any:
    """The validated settings of the objective ``name``, those of ``MATRYOSHKA`` left out."""
    read_dimensions(settings)
    own = {key: value for key, value in settings.items() if key not in MATRYOSHKA}
    return validate(objective_class(name).config_class, own, "objective")


def objective_class(name: str) -> type[Objective]:
    """The class of the objective ``name``; errors as ``build``."""
    module, _, of_module = name.rpartition(":")
    if not module:
        module = f"{__name__}.{pick('objective', name, available())}"
    rule = "a subclass of contrasent.objectives.Objective with its own forward"
    try:
        values, problem = vars(import_module(module)), f"{name} is not {rule}"
    except ImportError as error:
        values, problem = {}, f"cannot import the objective {name!r}: {error}"
    if ":" in name:
        named = [values.get(of_module)]
    else:
        named = [it for it in values.values() if getattr(it, "__module__", "") == module]
    for it in named:
        if isinstance(it, type) and issubclass(it, Objective) and not isabstract(it):
            return it
    raise ConfigError(problem)


def name_of(objective: type[Objective]) -> str:
    """The name under which recipes know a class, which stands at the top of a module."""
    module, name = objective.__module__, objective.__qualname__
    return module.rpartition(".")[2] if module.startswith(f"{__name__}.") else f"{module}:{name}"
