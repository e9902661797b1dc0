"""Sentences to rows: order, streams, precision; while serving, the same by another way; and changed
weights, of which an encoder keeps cast copies for a while, are noticed."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tiny_models import SENTENCES, unigram, with_template

from contrasent.data.batch import pack
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import DataError
from contrasent.model import encoder as encoding
from contrasent.model.backbones import base
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import POOLERS

pytestmark = pytest.mark.precision

MANY = [f"{a} {b}" for a, b in itertools.product(SENTENCES, ["", "dog", "the cat sits"])]
LONG = "dog " * 80


@pytest.fixture
def rows(tiny_encoder):
    return tiny_encoder.encode(MANY, precision="fp32")


def test_rows_are_float32_in_the_order_of_the_sentences(tiny_encoder, rows):
    assert rows.shape == (len(MANY), 16) == (21, tiny_encoder.width)
    assert rows.dtype == np.float32
    for sentence, row in zip(MANY, rows, strict=True):
        alone = tiny_encoder.encode([sentence], precision="fp32")
        np.testing.assert_allclose(alone[0], row, rtol=0, atol=1e-6)
    assert np.array_equal(tiny_encoder.encode("a dog"), tiny_encoder.encode(["a dog"])[0])


@pytest.mark.parametrize("batch_tokens", [1, 7, 20, 100, 100_000])
def test_the_batch_budget_does_not_matter(batch_tokens, tiny_encoder, rows):
    got = tiny_encoder.encode(MANY, batch_tokens=batch_tokens, precision="fp32")
    np.testing.assert_allclose(got, rows, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 5, 21, 1000])
def test_a_stream_gives_chunks_in_order_and_reads_no_further_than_needed(chunk, tiny_encoder, rows):
    taken = []
    sentences = (taken.append(s) or s for s in MANY)
    stream = tiny_encoder.encode_stream(sentences, chunk=chunk, precision="fp32")
    first = next(stream)
    assert len(taken) == min(chunk, len(MANY))
    parts = [first, *stream]
    assert [len(p) for p in parts[:-1]] == [chunk] * (len(parts) - 1)
    np.testing.assert_allclose(np.concatenate(parts), rows, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 4, 10, 1000])
def test_tokenizing_ahead_changes_no_bit(chunk, tiny_encoder, monkeypatch):
    settings = {"chunk": chunk, "precision": "fp32"}
    expected = list(tiny_encoder.encode_stream(iter(MANY), **settings))
    monkeypatch.setattr(encoding, "overlaps", lambda _: True)
    found = list(tiny_encoder.encode_stream(iter(MANY), **settings))
    assert len(found) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_stream_that_is_closed_early_leaves_no_thread(tiny_encoder, monkeypatch):
    monkeypatch.setattr(encoding, "overlaps", lambda _: True)
    before = threading.active_count()
    stream = tiny_encoder.encode_stream(itertools.cycle(MANY), chunk=4)
    next(stream)
    assert threading.active_count() == before + 1
    stream.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("nothing", [[], (), iter([])])
def test_no_sentence_gives_no_row(nothing, tiny_encoder):
    rows = tiny_encoder.encode(nothing)
    assert rows.shape == (0, 16)
    assert rows.dtype == np.float32
    assert list(tiny_encoder.encode_stream([])) == []


@pytest.mark.parametrize("item", [None, 3.5, float("nan"), b"dog", ["dog"]])
def test_what_is_not_a_string_is_named_with_its_number(item, tiny_encoder):
    sentences = ["a", "b", "c", item]
    said = f"sentence 3 is {type(item).__name__}, not a string: "
    with pytest.raises(DataError, match=said):
        tiny_encoder.encode(sentences)
    with pytest.raises(DataError, match=said):
        list(tiny_encoder.encode_stream(iter(sentences), chunk=2))


def test_a_sentence_without_a_token_is_named_with_its_number(tiny_encoder):
    bare = with_template(tiny_encoder, "$A")
    assert bare.encode(["a dog"]).shape == (1, 16)
    for texts, number in (([""], 0), (["a dog", " ", "a cat"], 1)):
        with pytest.raises(DataError, match=rf"text {number} has no token: ' ?'"):
            bare.encode(texts)


@pytest.mark.parametrize("form", [iter, list])
def test_too_long_sentences_are_cut_with_one_warning_and_their_number(form, tiny_encoder):
    sentences = ["dog", LONG, "dog " * 62, "dog " * 63, LONG]  # 64 tokens with the two specials
    with pytest.warns(UserWarning, match="^3 of 5 sentences were cut at 64 tokens$") as caught:
        rows = tiny_encoder.encode(form(sentences), precision="fp32")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    np.testing.assert_allclose(rows[1], rows[2], rtol=0, atol=1e-6)
    with pytest.warns(UserWarning, match="^3 of 5 sentences were cut at 64 tokens$") as caught:
        list(tiny_encoder.encode_stream(sentences, chunk=2))
    assert len(caught) == 1
    silent = tiny_encoder.encode(sentences, on_overflow="truncate", precision="fp32")
    np.testing.assert_allclose(silent, rows, rtol=0, atol=1e-6)


def test_sentences_of_unknown_words_alone_are_counted(tiny_encoder, recwarn):
    tiny_encoder.encode(["a dog", "", "a qqqq"])
    tiny_encoder.encode(["qqqq", *["a dog"] * 99])  # one of a hundred is no matter
    assert not recwarn
    with pytest.warns(UserWarning, match=r"^2 of 4 sentences have no word that .* knows"):
        tiny_encoder.encode(["a dog", "qqqq", "ไทย qqqq", ""])


def test_a_lone_space_is_no_word(tmp_path):
    unigram(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    ids, _ = tokenizer.ids(["\u0e44\u0e17\u0e22", "a dog \u0e44", "a dog", ""], None)
    assert [tokenizer.wordless([row]) for row in ids] == [1, 0, 0, 0]


def test_too_long_sentences_can_be_an_error(tiny_encoder):
    fitting = tiny_encoder.encode(["dog " * 62], on_overflow="error", precision="fp32")
    assert fitting.shape == (1, 16)
    said = "2 of the sentences 2 to 3 are longer than 64 tokens; .* on_overflow='truncate'"
    with pytest.raises(DataError, match=said):
        list(tiny_encoder.encode_stream(["a", "b", LONG, LONG], chunk=2, on_overflow="error"))


def test_normalize_gives_unit_rows_and_its_default_is_the_encoders(tiny_encoder, rows):
    unit = tiny_encoder.encode(MANY, normalize=True, precision="fp32")
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected, rtol=0, atol=1e-6)
    tiny_encoder.normalize = True
    assert np.array_equal(tiny_encoder.encode(MANY, precision="fp32"), unit)
    raw = tiny_encoder.encode(MANY, normalize=False, precision="fp32")
    assert np.array_equal(raw, rows)


def modes(encoder):
    return {name: part.training for name, part in encoder.named_modules()}


def test_every_part_is_put_back_into_its_mode(tiny_encoder, rows):
    tiny_encoder.train()
    tiny_encoder.backbone.model.embeddings.eval()
    before = modes(tiny_encoder)
    assert {True, False} == set(before.values())
    dropped = tiny_encoder.encode(MANY, precision="fp32")
    assert modes(tiny_encoder) == before
    np.testing.assert_allclose(dropped, rows, rtol=0, atol=1e-6)
    with pytest.raises(KeyError), tiny_encoder.serving():
        assert not any(modes(tiny_encoder).values())
        served = tiny_encoder.encode(MANY, precision="fp32")
        raise KeyError
    assert modes(tiny_encoder) == before and not tiny_encoder.is_serving
    np.testing.assert_allclose(served, rows, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 0.1)])
def test_a_sentence_has_the_same_vector_while_serving(pooler, precision, tolerance, tiny_bert):
    encoder = SentenceEncoder.load(tiny_bert, pooler=pooler, head="none", device="cpu")
    rows = encoder.encode(SENTENCES, precision=precision)
    with encoder.serving() as serving:
        assert serving is encoder
        alone = np.stack([encoder.encode(it, precision=precision) for it in SENTENCES])
        together = encoder.encode(SENTENCES, precision=precision)
    assert np.array_equal(together, rows)
    np.testing.assert_allclose(alone, rows, rtol=0, atol=tolerance)
    cosine = (alone * rows).sum(1) / np.linalg.norm(alone, axis=1) / np.linalg.norm(rows, axis=1)
    assert cosine.min() > 0.999


CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("capabilities", "supported", "chosen"),
    [
        ({"avx512_bf16": True}, True, ("bf16", "fp32")),
        ({"amx_bf16": True}, True, ("bf16", "fp32")),
        ({"avx512_f": True, "avx512_bf16": False}, True, ("fp32", "bf16")),
        ({}, True, ("fp32", "bf16")),
        # As ONEDNN_MAX_CPU_ISA=AVX2 makes it, with which .ci/run runs these tests again.
        ({"avx512_bf16": True}, False, ("fp32", "bf16")),
    ],
)
def test_auto_is_bf16_where_a_cpu_multiplies_it(capabilities, supported, chosen, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    assert base.torch_precisions(CPU) == chosen


@pytest.mark.parametrize(
    ("available", "chosen"), [(("bf16", "fp32"), "fp32"), (("fp32",), "fp32"), (("int8",), "int8")]
)
def test_auto_is_fp32_before_a_fitted_map_where_that_is_computed(available, chosen):
    assert base.resolve_precision("auto", available, "the engine", amplified=True) == chosen


def test_the_context_decides_the_products():
    a = torch.ones(2, 2)
    with base.matrix_precision("bf16", CPU):
        assert (a @ a).dtype == torch.bfloat16
        with base.matrix_precision("fp32", CPU):
            assert (a @ a).dtype == torch.float32
    assert (a @ a).dtype == torch.float32


@pytest.fixture
def products():
    """The process's setting for fp32 products, put back afterwards."""
    yield torch.backends.cuda.matmul
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("loose", ["high", "medium"])
def test_fp32_is_fp32_whatever_the_process_allows(loose, device, products):
    torch.set_float32_matmul_precision(loose)
    with base.matrix_precision("fp32", device):
        assert torch.get_float32_matmul_precision() == "highest"
        assert not products.allow_tf32
    assert torch.get_float32_matmul_precision() == loose
    with base.matrix_precision("bf16", CPU):
        assert torch.get_float32_matmul_precision() == loose


def test_fp32_is_fp32_where_the_process_used_the_newer_name(products):
    if not hasattr(products, "fp32_precision"):
        pytest.skip("this torch has no other name")
    products.fp32_precision = "tf32"
    with base.matrix_precision("fp32", CPU):
        assert products.fp32_precision == "ieee"
    assert products.fp32_precision == "tf32"


@pytest.mark.usefixtures("products")
def test_the_last_that_leaves_puts_the_setting_back():
    torch.set_float32_matmul_precision("high")
    one, other = base.matrix_precision("fp32", CPU), base.matrix_precision("fp32", CPU)
    with base.FULL_FP32:
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "highest"
        other.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "high"
    with pytest.raises(RuntimeError, match="within"), base.matrix_precision("fp32", CPU):
        raise RuntimeError("within")
    assert torch.get_float32_matmul_precision() == "high"


def each(step, mode=nullcontext):
    def change(encoder):
        with mode():
            for parameter in encoder.parameters():
                step(parameter)

    return change


def by_a_step(optimizer, **settings):
    def change(encoder):
        encoder.train()
        stepper = optimizer(encoder.parameters(), lr=0.1, **settings)
        encoder(pack([[2, 7, 3], [2, 9, 3]])).pooled.square().sum().backward()
        stepper.step()
        encoder.eval()

    return change


def by_new_parameters(encoder):
    new = {name: it.detach() * 1.5 for name, it in encoder.named_parameters()}
    encoder.load_state_dict(new, strict=False, assign=True)


CHANGES = {
    "data in place": each(lambda it: it.data.mul_(1.5)),
    "in place": each(lambda it: it.mul_(1.5), torch.no_grad),
    "in place in inference mode": each(lambda it: it.mul_(1.5), torch.inference_mode),
    "AdamW": by_a_step(torch.optim.AdamW),
    "fused AdamW": by_a_step(torch.optim.AdamW, fused=True),
    "new parameters": by_new_parameters,
    "data assigned": each(lambda it: setattr(it, "data", it.data * 1.5)),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_between_two_calls_is_noticed(change, precision, tiny_encoder, tiny_bert):
    before = tiny_encoder.encode(SENTENCES, precision=precision)
    change(tiny_encoder)
    after = tiny_encoder.encode(SENTENCES, precision=precision)
    fresh = SentenceEncoder.load(tiny_bert, pooler="cls", head="none", device="cpu")
    fresh.load_state_dict(tiny_encoder.state_dict())
    expected = fresh.encode(SENTENCES, precision=precision)
    assert np.abs(before - expected).max() > 1e-3
    assert np.array_equal(after, expected)


def test_freed_memory_goes_back_once_the_process_has_grown(monkeypatch):
    freed, counts = [], []  # 100 MB each
    library = SimpleNamespace(malloc_trim=lambda _: freed.clear())
    monkeypatch.setattr(base, "_glibc", lambda: library)
    monkeypatch.setattr(base, "_resident", lambda: (500 + 100 * len(freed)) << 20)
    monkeypatch.setattr(base, "_resident_after", 0)
    for _ in range(9):
        base.give_back_freed_memory()
        freed.append(0)
        counts.append(len(freed))
    assert counts == 3 * [1, 2, 3]


def test_threads_may_encode_at_once(tiny_encoder):
    texts = SENTENCES * 20
    expected = tiny_encoder.encode(texts, precision="fp32", batch_tokens=64)
    with ThreadPoolExecutor(4) as pool:
        how = {"precision": "fp32", "batch_tokens": 64}
        jobs = [pool.submit(tiny_encoder.encode, texts, **how) for _ in range(16)]
        for job in jobs:
            np.testing.assert_allclose(job.result(), expected, rtol=0, atol=1e-6)
