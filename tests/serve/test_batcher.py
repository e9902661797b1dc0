"""The batcher: sharing, order, refusals, cancelling, and vectors that no neighbour changes."""

import asyncio
import random
import threading

import numpy as np
import pytest
from cachetools import LRUCache
from helpers.serving import batcher_of
from helpers.tiny_models import WORDS, save_tiny

from contrasent.errors import DataError
from contrasent.model.encoder import SentenceEncoder
from contrasent.serve import batching
from contrasent.serve.batching import StoppedError


def texts_of(count, seed=0):
    choose = random.Random(seed)
    return [" ".join(choose.choices(WORDS, k=choose.randint(1, 30))) for _ in range(count)]


def keys(texts):
    """Texts as the batcher takes them, neither queries nor documents."""
    return [(text, None) for text in texts]


def run(batcher, work):
    """What the coroutine ``work`` gives while the batcher runs."""

    async def inside():
        await batcher.start()
        try:
            return await asyncio.wait_for(work(), 30)
        finally:
            await batcher.close()

    return asyncio.run(inside())


class Slow:
    """Calls of the encoder wait until they are let through, and are counted."""

    def __init__(self, batcher, monkeypatch):
        self.begun, self.go, self.texts = threading.Event(), threading.Event(), []
        rows = batcher._rows

        def slow(encoder, ids, texts):
            self.texts += texts
            self.begun.set()
            assert self.go.wait(30)
            return rows(encoder, ids, texts)

        monkeypatch.setattr(batcher, "_rows", slow)

    async def until_begun(self):
        await asyncio.to_thread(self.begun.wait, 30)


def test_requests_of_any_size_come_back_in_order(encoder):
    batcher = batcher_of(encoder)
    texts = texts_of(600)
    texts += texts[:50]
    entries = run(batcher, lambda: batcher.embed(keys(texts)))
    expected = encoder.encode(texts, normalize=False, precision="fp32")
    np.testing.assert_allclose(np.stack([it.row for it in entries]), expected, atol=1e-5, rtol=0)
    lengths = [len(ids) for ids in encoder.tokenizer.ids(texts, encoder.max_tokens)[0]]
    assert [entry.tokens for entry in entries] == lengths


@pytest.mark.parametrize("step", ["_do_each_on_failure", "by_length"])
def test_nobody_waits_for_a_thread_that_ended(encoder, monkeypatch, step):
    batcher = batcher_of(encoder, cache_mb=0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    owner = batching if step == "by_length" else batcher
    monkeypatch.setattr(owner, step, lambda *_: 1 / 0)

    async def work():
        calls = [batcher.embed([text]) for text in keys(("a dog", "a cat"))]
        together = await asyncio.gather(*calls, return_exceptions=True)
        assert not batcher.is_healthy
        with pytest.raises(StoppedError):
            await batcher.embed(keys(["a horse"]))
        return together

    assert [type(each) for each in run(batcher, work)] == [StoppedError] * 2


def test_equal_texts_are_computed_once(encoder, monkeypatch):
    batcher = batcher_of(encoder)
    slow = Slow(batcher, monkeypatch)

    async def work():
        first = asyncio.ensure_future(batcher.embed(keys(["a dog"])))
        await slow.until_begun()
        second = asyncio.ensure_future(batcher.embed(keys(["a dog", "a cat", "a cat"])))
        await asyncio.sleep(0)
        slow.go.set()
        before = await first, await second
        return *before, await batcher.embed(keys(["a cat"]))

    one, three, cached = run(batcher, work)
    assert sorted(slow.texts) == ["a cat", "a dog"]
    assert three[0] is one[0]
    assert cached[0] is three[1] is three[2]


def test_a_text_that_fails_fails_alone(encoder, monkeypatch):
    batcher = batcher_of(encoder)
    rows = batcher._rows

    def fails(encoder, ids, texts):
        if any("fire" in text for text in texts):
            raise RuntimeError("no room")
        return rows(encoder, ids, texts)

    monkeypatch.setattr(batcher, "_rows", fails)
    texts = keys(["a dog", "a fire", "a \ud800", "a cat"])

    async def work():
        calls = [batcher.embed([text]) for text in texts]
        return await asyncio.gather(*calls, return_exceptions=True)

    good, broken, half, other = run(batcher, work)
    np.testing.assert_allclose(
        good[0].row, encoder.encode(["a dog"], normalize=False, precision="fp32")[0], atol=1e-5
    )
    assert other[0].tokens == 4
    assert isinstance(broken, RuntimeError)
    assert isinstance(half, DataError)


def test_a_call_that_is_cancelled_frees_its_texts_but_not_those_of_others(encoder, monkeypatch):
    batcher = batcher_of(encoder, cache_mb=0)
    slow = Slow(batcher, monkeypatch)

    async def work():
        blocking = asyncio.ensure_future(batcher.embed(keys(["horse"])))
        await slow.until_begun()
        leaving = asyncio.ensure_future(batcher.embed(keys(["a dog", "a cat"])))
        staying = asyncio.ensure_future(batcher.embed(keys(["a cat"])))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.wait([leaving])
        queued = batcher.queued
        slow.go.set()
        await blocking
        return queued, await staying

    queued, _ = run(batcher, work)
    assert queued == 2
    assert sorted(slow.texts) == ["a cat", "horse"]
    assert batcher.queued == 0
    assert batcher.wait == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bitwise_vectors_do_not_depend_on_the_batch(tmp_path, precision):
    # Long enough for both kernels of attention.
    folder = save_tiny(tmp_path / "bert", limit=200)
    encoder = SentenceEncoder.load(folder, pooler="mean", head="none", device="cpu")
    texts = [*texts_of(60), " ".join(WORDS * 3)[:700], " ".join(WORDS * 4)[:800]]
    batcher = batcher_of(encoder, cache_mb=0, bitwise=True, precision=precision, batch_tokens=2048)
    batcher.warm_up()

    async def work():
        alone = [(await batcher.embed([text]))[0].row for text in keys(texts)]
        for seed in range(2):
            some = random.Random(seed).sample(range(len(texts)), 5 + 11 * seed)
            entries = await batcher.embed(keys(texts[n] for n in some))
            for n, entry in zip(some, entries, strict=True):
                np.testing.assert_array_equal(entry.row, alone[n])

    run(batcher, work)


def test_the_cache_forgets_what_was_not_used_for_longest(encoder):
    batcher = batcher_of(encoder)
    batcher.cache = LRUCache(10_000, batcher.cache.getsizeof)
    texts = keys(f"a dog {n}" for n in range(30))

    async def work():
        for text in texts:
            await batcher.embed([texts[0], text])
            assert 0 < batcher.cache.currsize <= 10_000
        kept = batcher.cache.currsize
        await batcher.embed(keys(["a dog " * 2_000]))
        assert batcher.cache.currsize == kept

    run(batcher, work)
    assert [texts[n] in batcher.cache for n in (0, 1, 29)] == [True, False, True]
