"""The batcher: sharing, order, refusals, cancelling, and vectors that no neighbour changes."""

import asyncio
import random
import shutil
import signal
import subprocess
import threading
import time
from functools import partial

import numpy as np
import pytest
from helpers.serving import batcher_of
from helpers.tiny_models import WORDS, save_tiny, static_encoder, with_template

from contrasent.errors import DataError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import EncoderParts
from contrasent.serve.batching import OverloadedError, StoppedError
from contrasent.serve.vector_cache import Embedded, SharedCache, VectorCache


def texts_of(count, seed=0):
    choose = random.Random(seed)
    return [" ".join(choose.choices(WORDS, k=choose.randint(1, 30))) for _ in range(count)]


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

        def slow(ids, texts):
            self.texts += texts
            self.begun.set()
            assert self.go.wait(30)
            return rows(ids, texts)

        monkeypatch.setattr(batcher, "_rows", slow)

    async def until_begun(self):
        await asyncio.to_thread(self.begun.wait, 30)


def test_requests_of_any_size_come_back_in_order(encoder):
    batcher = batcher_of(encoder)
    texts = texts_of(600)
    texts += texts[:50]
    entries = run(batcher, lambda: batcher.embed(texts))
    expected = encoder.encode(texts, normalize=False, precision="fp32")
    np.testing.assert_allclose(
        np.stack([entry.row for entry in entries]), expected, atol=1e-5, rtol=0
    )
    lengths = [len(ids) for ids in encoder.tokenizer.ids(texts, encoder.max_tokens)[0]]
    assert [entry.tokens for entry in entries] == lengths


def test_texts_are_tokenized_once(encoder, monkeypatch):
    read, cut_ids = [], encoder.tokenizer.cut_ids

    def counted(texts, limit):
        read.extend(texts)
        return cut_ids(texts, limit)

    monkeypatch.setattr(encoder.tokenizer, "cut_ids", counted)
    texts, batcher = [" ".join(["dog"] * 500), "a cat", "dog " * 400], batcher_of(encoder)
    run(batcher, lambda: batcher.embed(texts))
    assert sorted(read) == sorted(texts)


@pytest.mark.parametrize("step", ["_tokenize_all", "_batches"])
def test_nobody_waits_for_a_thread_that_ended(encoder, monkeypatch, step):
    batcher = batcher_of(encoder, cache=0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(batcher, step, lambda _: 1 / 0)

    async def work():
        calls = [batcher.embed([text]) for text in ("a dog", "a cat")]
        together = await asyncio.gather(*calls, return_exceptions=True)
        assert not batcher.is_healthy
        with pytest.raises(StoppedError):
            await batcher.embed(["a horse"])
        return together

    assert [type(each) for each in run(batcher, work)] == [StoppedError] * 2


def test_equal_texts_are_computed_once(encoder, monkeypatch):
    batcher = batcher_of(encoder)
    slow = Slow(batcher, monkeypatch)

    async def work():
        first = asyncio.ensure_future(batcher.embed(["a dog"]))
        await slow.until_begun()
        second = asyncio.ensure_future(batcher.embed(["a dog", "a cat", "a cat"]))
        await asyncio.sleep(0)
        slow.go.set()
        before = await first, await second
        return *before, await batcher.embed(["a cat"])

    one, three, cached = run(batcher, work)
    assert sorted(slow.texts) == ["a cat", "a dog"]
    assert three[0] is one[0]
    assert cached[0] is three[1] is three[2]


def test_a_text_that_fails_fails_alone(encoder, monkeypatch):
    batcher = batcher_of(encoder)
    rows = batcher._rows

    def fails(ids, texts):
        if any("fire" in text for text in texts):
            raise RuntimeError("no room")
        return rows(ids, texts)

    monkeypatch.setattr(batcher, "_rows", fails)
    texts = ["a dog", "a fire", "a \ud800", (999_999,), "a cat"]

    async def work():
        calls = [batcher.embed([text]) for text in texts]
        return await asyncio.gather(*calls, return_exceptions=True)

    good, broken, half, unknown, other = run(batcher, work)
    np.testing.assert_allclose(
        good[0].row, encoder.encode(["a dog"], normalize=False, precision="fp32")[0], atol=1e-5
    )
    assert other[0].tokens == 4
    assert isinstance(broken, RuntimeError)
    assert isinstance(half, DataError)
    assert isinstance(unknown, DataError)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["$A [SEP]", "[CLS] $A [SEP]", "$A", "prompt"])
def test_token_ids_give_the_vector_of_their_text(encoder, kind, side):
    around = with_template(encoder, kind.replace("prompt", "$A"), truncation_side=side)
    if kind == "prompt":
        tokenizer = around.tokenizer.with_prompt("the house of {text} is {mask} .")
        parts = EncoderParts(backbone=encoder.backbone, tokenizer=tokenizer, pooler="mean")
        around = SentenceEncoder(parts).eval()
    texts = ["a dog runs", "dog", "horse " * 80 + "dog " * 80]
    spans = [around.tokenizer.spans(texts, specials=specials) for specials in (True, False)]
    ids = [tuple(token.id for token in each) for form in spans for each in form]
    batcher = batcher_of(around, cache=0)
    entries = run(batcher, lambda: batcher.embed([*texts, *ids]))
    for expected, *others in zip(entries[:3], entries[3:6], entries[6:], strict=True):
        for entry in others:
            assert (entry.tokens, entry.truncated) == (expected.tokens, expected.truncated)
            np.testing.assert_allclose(entry.row, expected.row, atol=1e-5, rtol=0)


def test_a_call_that_is_cancelled_frees_its_texts_but_not_those_of_others(encoder, monkeypatch):
    batcher = batcher_of(encoder, cache=0)
    slow = Slow(batcher, monkeypatch)

    async def work():
        blocking = asyncio.ensure_future(batcher.embed(["horse"]))
        await slow.until_begun()
        leaving = asyncio.ensure_future(batcher.embed(["a dog", "a cat"]))
        staying = asyncio.ensure_future(batcher.embed(["a cat"]))
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


def test_a_long_queue_refuses_at_once_and_recovers(encoder, monkeypatch):
    batcher = batcher_of(encoder, max_wait=1e-9)
    slow = Slow(batcher, monkeypatch)

    async def work():
        batcher.require_room()
        first = asyncio.ensure_future(batcher.embed(texts_of(20)))
        await slow.until_begun()
        with pytest.raises(OverloadedError) as refused:
            batcher.require_room()
        slow.go.set()
        await first
        batcher.require_room()
        return refused.value.retry_after

    assert run(batcher, work) > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bitwise_vectors_do_not_depend_on_the_batch(tmp_path, precision):
    # Long enough for both kernels of attention.
    folder = save_tiny(tmp_path / "bert", limit=200)
    encoder = SentenceEncoder.load(folder, pooler="mean", head="none", device="cpu")
    texts = [*texts_of(60), " ".join(WORDS * 3)[:700], " ".join(WORDS * 4)[:800]]
    batcher = batcher_of(encoder, cache=0, bitwise=True, precision=precision, batch_tokens=2048)
    batcher.warm_up()

    async def work():
        alone = [(await batcher.embed([text]))[0].row for text in texts]
        for seed in range(6):
            some = random.Random(seed).sample(range(len(texts)), 5 + 11 * seed)
            entries = await batcher.embed([texts[n] for n in some])
            for n, entry in zip(some, entries, strict=True):
                np.testing.assert_array_equal(entry.row, alone[n])

    run(batcher, work)


def test_the_cache_forgets_what_was_not_used_for_longest():
    def entry():
        return Embedded(np.zeros(100, np.float32), 3, False)

    cache = VectorCache(10_000)
    for n in range(100):
        cache.put(f"text {n:03}", entry())
        cache.get("text 000")
        assert cache.bytes <= 10_000
    assert cache.get("text 000")
    assert cache.get("text 099")
    assert cache.get("text 001") is None
    kept = cache.bytes
    cache.put("text 099", entry())
    assert cache.bytes == kept
    cache.put("x" * 20_000, entry())
    assert cache.bytes == kept


# The cache that servers share


@pytest.fixture
def redis(tmp_path):
    """A Redis or Valkey server of Debian's packages, and its process."""
    pytest.importorskip("redis", reason="contrasent[redis] is not installed")
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    socket = tmp_path / "redis.sock"
    where = ("--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path), "--save", "")
    process = subprocess.Popen([program, *where], stdout=subprocess.DEVNULL)
    while not socket.exists():
        assert process.poll() is None
        time.sleep(0.01)
    yield f"unix://{socket}", process
    process.kill()
    process.wait()


def sharing(encoder, url, precision="fp32", cache=1_000_000):
    batcher = batcher_of(encoder)
    shared = SharedCache(url)
    shared.hold(encoder, precision, bitwise=False)
    batcher.cache = VectorCache(cache, shared)
    return batcher


class Store(dict):
    """What a Redis server does here, in memory."""

    async def mget(self, keys):
        return [self.get(key) for key in keys]

    async def mset(self, values):
        self.update(values)

    async def aclose(self):
        pass


@pytest.mark.parametrize("kind", ["encoder", "static"])
def test_a_shared_cache_answers_where_vectors_are_cut(kind, tiny_bert, monkeypatch):
    pytest.importorskip("redis", reason="contrasent[redis] is not installed")
    encoder = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    encoder = encoder if kind == "encoder" else static_encoder(encoder, 8)
    encoder.truncate_dim = 6
    store = Store()
    for computed in (["a dog"], []):
        batcher = sharing(encoder, "redis://localhost:1", cache=0)
        batcher.cache._shared._client = store
        slow = Slow(batcher, monkeypatch)
        slow.go.set()
        row = run(batcher, partial(batcher.embed, ["a dog"]))[0].row
        expected = encoder.encode("a dog", normalize=False, precision="fp32")
        np.testing.assert_allclose(row[:6], expected, atol=1e-5)
        assert slow.texts == computed


def test_token_ids_and_a_text_have_different_keys():
    pytest.importorskip("redis", reason="contrasent[redis] is not installed")
    cache = SharedCache("redis://localhost:1")
    keys = {cache._key(text) for text in ((2, 7), "(2, 7)", "\0(2, 7)", "(2,7)")}
    assert len(keys) == 4


@pytest.mark.acceptance
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_shared_cache_that_does_not_answer_is_no_error(number, encoder, redis):
    batcher, texts = sharing(encoder, redis[0]), texts_of(20)

    async def twice():
        await batcher.embed(texts[:10])
        redis[1].send_signal(number)
        return await batcher.embed(texts[10:])

    rows = np.stack([entry.row for entry in run(batcher, twice)])
    expected = encoder.encode(texts[10:], normalize=False, precision="fp32")
    np.testing.assert_allclose(rows, expected, atol=1e-5, rtol=0)
