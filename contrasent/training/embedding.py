"""Embeddings of a step in parts: gradient caching, shares of processes, twins, equal views.

Shapes: B examples, V views of each, S = V * B sentences, T tokens, D embedding width.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from contrasent.data.batch import Batch, concat, shares, similar_lengths
from contrasent.distributed import own_draws, reunited, split
from contrasent.errors import ContrasentError
from contrasent.model.backbones.base import give_back_freed_memory, matrix_precision
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective

if TYPE_CHECKING:
    from contrasent.training.loop import Training

Embedding = Callable[[Batch], tuple[Encoded, Callable[[], None]]]
"""Embeds a batch; the function that it returns is called after the backward pass of the loss."""

# What the rounding of bf16 may change from the first pass to the second, as a share of the norm
# of the embeddings; another draw of a dropout of 0.01 changes a tenth.
_ROUNDING = 0.05
_GRAPHS, _WORTH = 8, 8  # of an encoder at most; batches of a shape by which its graph has paid


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators, of the CPU and of ``device``."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Put the generators back where :func:`random_state` found them."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def chunks_of(batch: Batch, sentences: int) -> tuple[list[Batch], Tensor]:
    """Cut a batch into batches of one view, of similar lengths, so many ``sentences`` in each.

    Beside them is ``(S,)``, the place of each sentence in all of these.
    """
    device = batch.token_ids.device
    plain = replace(batch, duplicate_of=None, next_sentences=None, columns={})
    host = plain.to(torch.device("cpu"))
    groups = similar_lengths(host.lengths, sentences)
    parts = [host.select(numbers).to(device) for numbers in groups]
    return parts, torch.argsort(torch.cat(groups)).to(device)


class _Graph:
    """Both passes of an encoder over batches of one shape, each captured, and launched at once."""

    def __init__(
        self, encoder: SentenceEncoder, layers: tuple[int, ...], batch: Batch, pool: Any
    ) -> None:
        device, self.batch, self.parameters = encoder.device, batch, [*encoder.parameters()]
        # Nodes that collect the gradients of the weights themselves may belong to another stream.
        aliases = {name: it.detach().requires_grad_() for name, it in encoder.named_parameters()}
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        random = random_state(device)

        def forward() -> list[Tensor]:
            return _parts(functional_call(encoder, aliases, (batch, layers)), layers)

        def backward(outputs: list[Tensor], of_outputs: list[Tensor]) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(outputs, [*aliases.values()], of_outputs, allow_unused=True)

        narrow = torch.is_autocast_enabled("cuda")
        # The loader's thread may ask the driver for memory meanwhile.
        how = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.autocast("cuda", torch.bfloat16, narrow, cache_enabled=False):
            with torch.cuda.stream(stream):  # what is compiled or chosen at a first call
                for _ in range(2):
                    outputs = forward()
                    backward(outputs, outputs)
            self.forward_pass, self.backward_pass = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.forward_pass, **how):
                outputs = forward()
            self.output_gradients = [torch.zeros_like(it) for it in outputs]
            with torch.cuda.graph(self.backward_pass, **how):
                self.gradients = backward(outputs, self.output_gradients)
        self.outputs = [it.detach() for it in outputs]
        set_random_state(random, device)

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        self.batch.token_ids.copy_(batch.token_ids)
        self.batch.offsets.copy_(batch.offsets)
        return _Replay.apply(self, *self.parameters)  # type: ignore[no-any-return, no-untyped-call]


def _parts(encoded: Encoded, layers: tuple[int, ...]) -> list[Tensor]:
    kept = [encoded.pooled[0], *(encoded.states[layer] for layer in layers)]
    if layers and encoded.convolved is not None:
        kept.append(encoded.convolved)
    return kept


class _Replay(Function):
    @staticmethod
    def forward(ctx: Any, graph: _Graph, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.graph = graph
        graph.forward_pass.replay()
        return tuple(it.clone() for it in graph.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        for given, gradient in zip(ctx.graph.output_gradients, gradients, strict=True):
            given.copy_(gradient)
        ctx.graph.backward_pass.replay()
        return None, *(None if it is None else it.detach() for it in ctx.graph.gradients)


@dataclass(slots=True)
class GradientCache:
    """Embeds a batch of any size; then takes the gradient back to the encoder, chunk by chunk.

    Chunks of ``sentences`` are encoded twice: without gradients for the loss of the whole batch,
    then again with the gradient that it gives to their embeddings and to the token states of
    ``layers``, which are kept. Both times with the same dropout: in SimCSE the masks *are* the
    data. ``precision`` is that of the second time. None encodes a batch at once.
    """

    encoder: SentenceEncoder
    sentences: int | None
    precision: str
    layers: tuple[int, ...] = ()
    graphs: bool = True  # on a GPU, where batches of a shape come often
    _compared: bool = field(default=False, init=False)
    _graphs: dict[tuple[int, ...], _Graph] = field(default_factory=dict, init=False)
    _seen: Counter[tuple[int, ...]] = field(default_factory=Counter, init=False)

    def embed(self, batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        """Embed ``batch``; the function beside adds to the gradients of the encoder."""
        device = batch.token_ids.device
        if self.sentences is None or batch.sentences <= self.sentences:
            encoded = self._by_shape(batch) if self.graphs else None
            return encoded or self.encoder(batch, self.layers), lambda: None
        (chunks, place), draws, outputs = chunks_of(batch, self.sentences), [], []
        with torch.no_grad(), self.encoder.backbone.unchanging():
            for chunk in chunks:
                draws.append(random_state(device))
                outputs.append(self._encode(chunk))
        kept = [torch.cat(tensors).requires_grad_() for tensors in zip(*outputs, strict=True)]

        def backward() -> None:
            before = random_state(device)
            wanted = [torch.zeros_like(it) if it.grad is None else it.grad for it in kept]
            firsts = [0] * len(kept)
            for chunk, draw, output in zip(chunks, draws, outputs, strict=True):
                set_random_state(draw, device)
                with matrix_precision(self.precision, device):
                    again = self._encode(chunk)
                if not self._compared:
                    # A backbone that takes another way without gradients may draw other masks.
                    moved = float((again[0].detach() - output[0]).norm() / output[0].norm())
                    if not moved <= _ROUNDING and bool(output[0].isfinite().all()):
                        raise ContrasentError(
                            f"second embeddings of gradient caching differ by {moved:.0%}: this "
                            "encoder does not draw the same dropout; leave train.gradcache_chunk "
                            "out, or set encoder.dropout to 0"
                        )
                ends = [first + len(it) for first, it in zip(firsts, output, strict=True)]
                slices = zip(wanted, firsts, ends, strict=True)
                torch.autograd.backward(again, [it[first:end] for it, first, end in slices])
                firsts = ends
                give_back_freed_memory()
            set_random_state(before, device)
            self._compared = True

        pooled, *states = kept
        if states:
            places = concat(chunks).places(place)
            states = [state.index_select(0, places) for state in states]
        return self._united(batch, pooled.index_select(0, place), *states), backward

    def _by_shape(self, batch: Batch) -> Encoded | None:
        # On a GPU, with sentences of nobody; with a graph or without, the numbers are the same.
        encoder, backbone = self.encoder, self.encoder.backbone
        changed = batch.changes_embeddings or batch.positions is not None or split().processes > 1
        if changed or not isinstance(backbone, PackedBert) or not backbone.is_capturable:
            return None
        filled = batch.filled(backbone.max_tokens)
        shape = filled.sentences, len(filled.token_ids), filled.longest
        self._seen[shape] += 1
        is_worth = self._seen[shape] == _WORTH and len(self._graphs) < _GRAPHS
        if is_worth and all(it.requires_grad for it in encoder.parameters()):
            pool = next((it.forward_pass.pool() for it in self._graphs.values()), None)
            self._graphs[shape] = _Graph(encoder, self.layers, filled, pool)
        graph = self._graphs.get(shape)
        pooled, *states = graph(filled) if graph else self._encode(filled)
        whole = [pooled[: batch.sentences], *(it[: len(batch.token_ids)] for it in states)]
        return self._united(batch, *whole)

    def _encode(self, batch: Batch) -> list[Tensor]:
        return _parts(self.encoder(batch, self.layers), self.layers)

    def _united(self, batch: Batch, pooled: Tensor, *states: Tensor) -> Encoded:
        layers = dict(zip(self.layers, states, strict=False))
        convolved = states[-1] if len(states) > len(layers) else None
        return Encoded(pooled.view(batch.views, -1, pooled.shape[-1]), layers, convolved)


def embedding(training: "Training", objective: Objective) -> Embedding:
    """The way in which a run embeds its batches: a twin embeds all views but the first."""
    chunk, graphs = training.settings.gradcache_chunk, training.settings.cuda_graphs
    how = chunk, training.precision, objective.layers, graphs
    one = partial(_by_all, GradientCache(training.encoder, *how).embed)
    if training.twin is not None:
        return partial(_by_two, one, partial(_by_all, GradientCache(training.twin, *how).embed))
    return partial(_once, one, objective.views) if training.fixed_dropout else one


def _by_all(one: Embedding, batch: Batch) -> tuple[Encoded, Callable[[], None]]:
    """Embed a share of the sentences in each process; all have all embeddings, with gradient."""
    how = split()
    if how.processes == 1:
        return one(batch)
    device = batch.token_ids.device
    numbers = shares(batch.lengths.cpu(), how.processes)
    local = numbers[how.rank].to(device)
    # A process without a sentence embeds one that nobody looks at: all take part.
    share = batch.select(local if len(local) else local.new_zeros(1))
    with own_draws(device):
        encoded, backward = one(share)
    rows = reunited(encoded.pooled[0, : len(local)], numbers)
    tokens = int(share.offsets[len(local)])
    states = {layer: state[:tokens] for layer, state in encoded.states.items()}
    convolved = None if encoded.convolved is None else encoded.convolved[:tokens]
    return Encoded(rows.view(batch.views, -1, rows.shape[-1]), states, convolved, local), backward


def _once(one: Embedding, views: int, batch: Batch) -> tuple[Encoded, Callable[[], None]]:
    """Let the first of ``views`` equal views stand for all (Gao et al., Table 3, "Fixed 0.1")."""
    examples, copies = batch.examples, batch.examples * views
    # The host knows T; where further views begin it would have to ask the device for.
    end = len(batch.token_ids) if batch.views == views else int(batch.offsets[copies])
    left_out = end - end // views
    tokens = torch.cat([batch.token_ids[: end // views], batch.token_ids[end:]])
    offsets = [batch.offsets[: examples + 1], batch.offsets[copies + 1 :] - left_out]
    kept = Batch(tokens, torch.cat(offsets), batch.views - views + 1, batch.longest)
    encoded, backward = one(kept)
    first, added = encoded.pooled[:1], encoded.pooled[1:]
    return Encoded(torch.cat([first.expand(views, -1, -1), added]), {}), backward


def _by_two(one: Embedding, other: Embedding, batch: Batch) -> tuple[Encoded, Callable[[], None]]:
    examples, end = batch.examples, int(batch.offsets[batch.examples])
    anchors, others = (
        Batch(batch.token_ids[rows], offsets, views, batch.longest, **batch.token_fields(rows))
        for rows, offsets, views in (
            (slice(end), batch.offsets[: examples + 1], 1),
            (slice(end, None), batch.offsets[examples:] - end, batch.views - 1),
        )
    )
    first, backward_through_one = one(anchors)
    rest, backward_through_other = other(others)

    def backward() -> None:
        backward_through_one()
        backward_through_other()

    return Encoded(torch.cat([first.pooled, rest.pooled]), {}), backward
