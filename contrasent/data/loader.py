"""From examples to batches: their tokens, kept on disk and mapped; views; an order by the seed."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Generator as Generates
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import DTypeLike

from contrasent.data.batch import Batch, Need, Packed, end_to_end
from contrasent.data.columns import view_names
from contrasent.data.examples import Examples, portions
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import ConfigError, DataError
from contrasent.files import cached, read_json, write_json

_FORMAT = 2
_TOKENS, _OFFSETS, _MANIFEST = "tokens.bin", "offsets.bin", "manifest.json"
_TOKENLESS = "tokenless.bin"

_AHEAD = 4

IndexArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenManifest:
    """What a store holds; kept beside the arrays, whose sizes it predicts."""

    examples: int
    views: int
    tokens: int
    dtype: str  # of the token ids on disk
    cut: int  # sentences that were longer than ``max_tokens``, special tokens included
    skipped: int  # rows that were left out because a sentence was empty or had no token
    tokenless: int  # how many of those had no empty sentence
    max_tokens: int | None
    # types of the numbers of each example, by the need that they meet; ``unlabelled`` rows without
    # a number were left out
    columns: dict[str, str]
    unlabelled: int


def map_array(path: Path, dtype: DTypeLike, count: int) -> np.ndarray:
    """The ``count`` numbers of a file, mapped from disk; ValueError if it holds fewer."""
    return np.asarray(np.memmap(path, dtype, "r", shape=(count,)))


class TokenStore:
    """Token ids of N examples of V sentences, mapped from a folder; damage is a ValueError."""

    def __init__(self, folder: Path) -> None:
        known = read_json(folder / _MANIFEST)
        self.folder = folder
        self.manifest = kept = TokenManifest(**known)
        self._tokens = map_array(folder / _TOKENS, kept.dtype, kept.tokens)
        sentences = kept.examples * kept.views
        self._offsets: IndexArray = map_array(folder / _OFFSETS, np.int64, sentences + 1)
        self._columns = {
            Need[name]: map_array(folder / f"{name.lower()}.bin", dtype, len(self))
            for name, dtype in kept.columns.items()
        }
        if len(self.tokenless()) != kept.tokenless:
            raise ValueError(f"{_TOKENLESS} does not hold {kept.tokenless} numbers")

    def __len__(self) -> int:
        """N, the number of examples."""
        return self.manifest.examples

    @property
    def views(self) -> int:
        """V, sentences per example."""
        return self.manifest.views

    def tokenless(self) -> IndexArray:
        """Numbers, ascending, of what was left out for want of a token, among all examples."""
        return np.fromfile(self.folder / _TOKENLESS, dtype=np.int64)

    def column(self, need: Need) -> np.ndarray | None:
        """``(N,)`` or ``(N, K)`` int64 or float32, numbers of each example; None without."""
        numbers = self._columns.get(need)
        if numbers is None:
            return None
        return np.array(numbers, np.int64 if numbers.dtype.kind in "iu" else np.float32)

    def tokens(self, example: int, view: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Token ids of one sentence."""
        start, end = self._offsets[example * self.views + view :][:2]
        return self._tokens[start:end].astype(np.int32)

    def gather(self, examples: IndexArray, views: Sequence[int]) -> Packed:
        """``(T,)`` int64 token ids of the ``(B,)`` examples end to end, and their offsets.

        ``views`` says which of the sentences of an example comes first, second and so on.
        """
        sentences = (np.asarray(views)[:, None] + examples * self.views).ravel()
        starts = self._offsets[sentences]
        lengths = self._offsets[sentences + 1] - starts
        offsets = np.zeros(len(sentences) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return self._tokens[places].astype(np.int64), offsets


def tokenize(
    examples: Examples,
    tokenizer: Tokenizer,
    max_tokens: int | None,
    progress: Callable[[int], None] = lambda _: None,
) -> TokenStore:
    """Token ids of ``examples``, computed unless the cache holds them whole.

    ``max_tokens`` of a sentence are kept, special ones included; None keeps all. ``progress`` is
    told now and then how many examples are done. DataError if none is left.
    """
    key = [_FORMAT, examples.sha256, examples.views, tokenizer.fingerprint, max_tokens]
    key += examples.prompts
    dtype, views = "uint16" if tokenizer.vocabulary <= 1 << 16 else "int32", examples.views

    def write(folder: Path) -> None:
        kept = tokens = cut = 0
        tokenless: list[int] = []
        with (folder / _TOKENS).open("wb") as file, (folder / _OFFSETS).open("wb") as offsets:
            np.zeros(1, dtype=np.int64).tofile(offsets)
            for sentences in portions(examples):
                ids, count = tokenizer.ids(sentences, max_tokens)
                cut += count
                lengths = np.array([len(row) for row in ids], dtype=np.int64)
                whole = lengths.reshape(-1, views).all(axis=1)
                if not whole.all():
                    tokenless += (kept + len(tokenless) + np.flatnonzero(~whole)).tolist()
                    stays = np.repeat(whole, views)
                    ids = [row for row, stay in zip(ids, stays, strict=True) if stay]
                    lengths = lengths[stays]
                if ids:
                    np.concatenate(ids).astype(dtype).tofile(file)
                (tokens + np.cumsum(lengths)).tofile(offsets)
                tokens += int(lengths.sum())
                kept += int(whole.sum())
                progress(kept)
        if not kept:
            raise DataError(f"{examples.source} holds no example whose sentences all have a token")
        np.array(tokenless, dtype=np.int64).tofile(folder / _TOKENLESS)
        columns, total = dict[str, str](), kept + len(tokenless)
        for name, numbers in examples.numbers.items():
            rows = np.array(numbers).reshape(total, -1)
            np.delete(rows, tokenless, axis=0).tofile(folder / f"{name.lower()}.bin")
            columns[name] = f"({rows.shape[1]},)" * (rows.shape[1] > 1) + rows.dtype.name
        manifest = TokenManifest(
            examples=kept,
            views=views,
            tokens=tokens,
            dtype=dtype,
            cut=cut,
            skipped=examples.skipped + len(tokenless),
            tokenless=len(tokenless),
            max_tokens=max_tokens,
            columns=columns,
            unlabelled=examples.unlabelled,
        )
        write_json(folder / _MANIFEST, asdict(manifest))

    return cached("tokens", "token ids", key, TokenStore, write)


def text_numbers(store: TokenStore) -> IndexArray:
    """``(N,)`` int64: for each example of ``store``, which of the texts it is."""
    left_out = store.tokenless()
    return np.delete(np.arange(len(store) + len(left_out)), left_out)


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers of an epoch, each sentence by itself: no order of batches changes them."""

    seed: int
    epoch: int

    def of(self, example: int, view: int) -> Generator:
        """Random numbers of one view of one example."""
        return np.random.default_rng([self.seed, self.epoch, example, view + 1])


@dataclass(frozen=True, slots=True)
class ViewSource:
    """N examples of ``views`` sentences each, by their numbers."""

    examples: IndexArray  # ``(N,)``, the numbers by which all else here knows them
    views: int
    gather: Callable[[IndexArray, Draws], Packed]  # V * B sentences of B examples, view by view
    # ``(...)`` int64 or ``(..., D)`` float32 each, the numbers that an objective needs
    columns: Mapping[Need, np.ndarray] = field(default_factory=dict)
    text: TokenStore | None = None  # sentences in their order, to give those after the anchors


def plain(store: TokenStore, views: int) -> ViewSource:
    """The first V sentences of the examples; an only one is given as every view."""
    chosen = (0,) * views if store.views == 1 else range(views)
    if store.views not in (1, views) and not 1 < views < store.views:
        what = f"the data has {example_of(store.views)}, not {example_of(views)}"
        raise ConfigError(f"{what}; give it the other columns, or lower objective.hard_negatives")
    return ViewSource(np.arange(len(store)), views, lambda them, _: store.gather(them, chosen))


def edited(
    store: TokenStore,
    edit: Callable[[list[int], list[Generator]], Sequence[np.ndarray]],
    views: int,
    *,
    anchors: bool = False,
    drawn_once: bool = False,
) -> ViewSource:
    """A sentence, and edited copies of it; a copy without a token is the sentence itself."""

    def gather(examples: IndexArray, draws: Draws) -> Packed:
        draws = replace(draws, epoch=0) if drawn_once else draws
        copies = [(it, view) for view in range(not anchors, views) for it in examples.tolist()]
        numbers = [example for example, _ in copies]
        rows = edit(numbers, [draws.of(*copy) for copy in copies])
        edits = zip(rows, numbers, strict=True)
        kept = [row if len(row) else store.tokens(example, 0) for row, example in edits]
        firsts = [] if anchors else examples.tolist()
        return end_to_end([*(store.tokens(it, 0) for it in firsts), *kept])

    return ViewSource(np.arange(len(store)), views, gather)


def next_sentences(store: TokenStore, ends: IndexArray, reach: int, views: int) -> ViewSource:
    """A sentence that has a next one, and for every other view one of ``reach`` after it."""

    def gather(examples: IndexArray, draws: Draws) -> Packed:
        after = np.minimum(reach, ends[examples] - examples - 1)
        steps = [
            draws.of(int(example), view).integers(1, int(count) + 1) if reach > 1 else 1
            for view in range(1, views)
            for example, count in zip(examples, after, strict=True)
        ]
        others = np.tile(examples, views - 1) + np.array(steps, dtype=np.int64)
        return store.gather(np.concatenate([examples, others]), (0,))

    return ViewSource(np.arange(len(store)), views, gather)


def example_of(views: int) -> str:
    """The sentences of an example, in words."""
    what = "1 sentence" if views == 1 else f"{views} ({', '.join(view_names(views))})"
    return f"{what} per example"


class Loader:
    """Batches of examples, as a function of nothing but the settings and the step.

    An epoch holds every example once, in an order that the ``seed`` decides, or that of the source
    without ``shuffle``. ``drop_last`` leaves a smaller last batch out; otherwise a last example
    joins the batch before, as alone it would have no negative.
    """

    def __init__(
        self,
        source: ViewSource,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        examples = len(source.examples)
        if examples < 2 or (drop_last and batch_size > examples):
            raise ConfigError(f"{examples} examples are too few for a batch of {batch_size}")
        whole, rest = divmod(examples, batch_size)
        self.steps_per_epoch = whole + (rest > 1 and not drop_last)
        self._examples_per_epoch = whole * batch_size if drop_last else examples
        self._source, self._batch_size = source, batch_size
        self._seed, self._shuffle = seed, shuffle
        self._order = lru_cache(1)(self._draw_order)

    def batch(self, step: int) -> Batch:
        """The batch of one step, counted from 0 over all epochs; always the same for a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self._batch_size
        is_last = place == self.steps_per_epoch - 1
        end = self._examples_per_epoch if is_last else start + self._batch_size
        source = self._source
        examples = source.examples[self._order(epoch)[start:end]]
        ids, offsets = map(torch.from_numpy, source.gather(examples, Draws(self._seed, epoch)))
        columns = {need: torch.from_numpy(it[examples]) for need, it in source.columns.items()}
        following = None
        if source.text is not None:
            tokens, starts = map(torch.from_numpy, source.text.gather(examples + 1, (0,)))
            following = Batch(tokens, starts)
        return Batch(ids, offsets, source.views, next_sentences=following, columns=columns)

    def stream(
        self, first_step: int, last_step: int, *, pinned: bool = False
    ) -> Generates[Batch, None, None]:
        """Batches of ``range(first_step, last_step)``, gathered ahead by a thread."""
        load = (lambda step: self.batch(step).pin()) if pinned else self.batch
        return prefetch(range(first_step, last_step), load, ahead=_AHEAD)

    def _draw_order(self, epoch: int) -> IndexArray:
        count, random = len(self._source.examples), np.random.default_rng([self._seed, epoch])
        return random.permutation(count) if self._shuffle else np.arange(count)


def batches_of_each(sizes: Sequence[int], weights: Sequence[float | None]) -> IndexArray:
    """``(K,)`` int64, batches of each source in an epoch, which has as many as all ``sizes``.

    A weight is a share of them, or, if all have one, a part of the sum of weights; sources without
    share the rest by size, so that without any weight each gives as many as it has.
    """
    given = np.array([weight or 0.0 for weight in weights])
    free = np.array([size * (it is None) for size, it in zip(sizes, weights, strict=True)])
    if not free.any():
        given = given / given.sum()
    shares = given + (1 - given.sum()) * free / max(1, free.sum())
    ends = np.rint(np.cumsum(shares) * sum(sizes))
    return np.asarray(np.diff(ends, prepend=0), np.int64)


class Mixture(Loader):
    """Batches of several loaders, by the names of their sources.

    Those of each source are spread evenly over an epoch, so that sources of the same weight take
    turns. Each goes through its own epochs, in its own order. ConfigError if one gives no batch.
    """

    def __init__(self, loaders: Mapping[str, Loader], weights: Sequence[float | None]) -> None:
        sizes = [loader.steps_per_epoch for loader in loaders.values()]
        counts = batches_of_each(sizes, weights).tolist()
        self._loaders, self.steps_per_epoch = list(loaders.items()), sum(sizes)
        self.counts = dict(zip(loaders, counts, strict=True))
        for name, count in self.counts.items():
            if count < 1:
                problem = f"the weights leave it none of {sum(sizes)} batches"
                raise ConfigError(f"{name}: {problem}; raise its own, or weigh all")
        times = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        sources = np.repeat(np.arange(len(counts)), counts)
        self._turns = sources[np.argsort(times, kind="stable")]

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        name, loader = self._loaders[int(self._turns[place])]
        before = np.count_nonzero(self._turns[:place] == self._turns[place])
        batch = loader.batch(epoch * self.counts[name] + int(before))
        return replace(batch, origin=name if len(self._loaders) > 1 else "")


Item = TypeVar("Item")
Done = TypeVar("Done")


def prefetch(
    items: Iterable[Item], work: Callable[[Item], Done], ahead: int = 1
) -> Generates[Done, None, None]:
    """``map(work, items)`` by a thread, which is up to ``ahead`` items before the caller.

    Items are taken on the caller's thread. The thread ends with the iterator.
    """
    waiting: deque[Future[Done]] = deque()
    with ThreadPoolExecutor(1, "contrasent-prefetch") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
