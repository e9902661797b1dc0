"""ONNX Runtime and OpenVINO give torch's states, for every architecture, layer and pooler."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import transformers
from helpers.tiny_models import FAMILY, SENTENCES, SIZES, config_of, save_tiny, seeded, transformer

from contrasent.data.batch import pack
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import ConfigError
from contrasent.formats import export
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.engines import base as engines
from contrasent.model.engines.runtimes import PaddedEngine
from contrasent.model.heads import MlpHead
from contrasent.model.pooling import POOLERS
from contrasent.model.protocol import EncoderParts

VOCABULARY, LIMIT = 60, 64
GRAPHS = ("onnx", "openvino")


def mpnet():
    return transformers.MPNetConfig(
        vocab_size=VOCABULARY, max_position_embeddings=LIMIT + 2, pad_token_id=1, **SIZES
    )


def deberta_v2():
    return transformers.DebertaV2Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=LIMIT,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        **SIZES,
    )


@pytest.fixture(scope="module", params=[*FAMILY, "mpnet", "deberta_v2"])
def backbone(request):
    if request.param in FAMILY:
        return PackedBert(transformer(config_of(request.param, VOCABULARY, LIMIT))).eval()
    config = {"mpnet": mpnet, "deberta_v2": deberta_v2}[request.param]()
    return AutoBackbone(transformer(config)).eval()


@pytest.fixture(scope="module")
def plain():
    return PackedBert(transformer(config_of("bert", VOCABULARY, LIMIT))).eval()


def batch_of(lengths):
    draw = np.random.default_rng(0)
    return pack([draw.integers(0, VOCABULARY, length) for length in lengths])


def states(backbone, batch, layers=(0, 1, -1), **how):
    with torch.inference_mode():
        return backbone(batch, layers, **how)


def require_equal(found, expected):
    assert found.keys() == expected.keys()
    for layer, state in expected.items():
        assert found[layer].dtype == torch.float32
        torch.testing.assert_close(found[layer], state, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", GRAPHS)
def test_states_of_every_layer_are_those_of_torch(backbone, name):
    engine = engines.build(name, backbone)
    # Padding's own id is among the tokens: a text may spell it out.
    for lengths in ([1, 5, 2, LIMIT, 9], [3], [LIMIT] * 40):
        batch = batch_of(lengths)
        require_equal(states(engine, batch), states(backbone, batch))


@pytest.mark.parametrize("name", GRAPHS)
def test_first_rows_alone_are_those_of_the_whole(plain, name):
    batch = batch_of([4, 1, 9, 2])
    found = states(engines.build(name, plain), batch, (-1,), first_only=True)
    torch.testing.assert_close(
        found[-1], states(plain, batch, (-1,))[-1][batch.offsets[:-1]], rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_states_do_not_depend_on_the_pieces_of_a_batch(plain, name, pieces, monkeypatch):
    batch = batch_of([2, 2, 3, 5, 8, 13, 21, 34, 55])
    engine = engines.build(name, plain)
    monkeypatch.setattr(type(engine), "piece_tokens", -(-len(batch.token_ids) // pieces))
    require_equal(states(engine, batch), states(plain, batch))


@pytest.mark.parametrize("name", GRAPHS)
def test_threads_may_encode_at_once(plain, name):
    engine = engines.build(name, plain)
    batches = [batch_of([n % 7 + 1] * (n + 1)) for n in range(6)]
    expected, found = [states(engine, batch) for batch in batches], {}

    def work(number):
        found[number] = states(engine, batches[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, state in enumerate(expected):
        require_equal(found[number], state)


@pytest.fixture(scope="module")
def headed(tmp_path_factory):
    """A saved encoder with a head, whose tokenizer cuts at 32."""
    base = tmp_path_factory.mktemp("headed")
    encoder = SentenceEncoder.load(save_tiny(base / "plain"), pooler="cls", head="none")
    head = seeded(lambda: MlpHead(16, 16))
    parts = EncoderParts(backbone=encoder.backbone, tokenizer=encoder.tokenizer, head=head)
    encoder = SentenceEncoder(parts)
    encoder.max_tokens = 32
    encoder.save(base / "encoder")
    return base / "encoder"


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.precision
@pytest.mark.parametrize("pooler", POOLERS)
def test_encode_gives_torchs_embeddings_with_every_pooler_and_the_head(headed, name, pooler):
    texts = [*SENTENCES, "dog " * 100, *SENTENCES[::-1]]
    expected = SentenceEncoder.load(headed, pooler=pooler, device="cpu")
    encoder = SentenceEncoder.load(headed, pooler=pooler, engine=name)
    assert (encoder.pooler, encoder.head_name, encoder.engine) == (pooler, "mlp", name)
    how = {"batch_tokens": 64, "on_overflow": "truncate", "precision": "fp32"}
    np.testing.assert_allclose(
        encoder.encode(texts, **how), expected.encode(texts, **how), rtol=0, atol=1e-4
    )
    ours = encoder.encode(texts, on_overflow="truncate")
    theirs = expected.encode(texts, on_overflow="truncate", precision="fp32")
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    assert ((ours * theirs).sum(1) / lengths).min() > 0.999


def test_signals_arrive_after_openvino_computed_and_was_left(headed):
    code = """
import gc, signal, sys
from contrasent.model.encoder import SentenceEncoder
first, second = (SentenceEncoder.load(sys.argv[1], engine="openvino") for _ in range(2))
del first
gc.collect()
del second
gc.collect()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("stopped")
"""
    command = [sys.executable, "-c", code, str(headed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_is_not_the_model_is_refused(plain, name, monkeypatch):
    compute = PaddedEngine.forward

    def spoiled(self, batch):
        return {n: state.roll(1, dims=-1) for n, state in compute(self, batch).items()}

    monkeypatch.setattr(PaddedEngine, "forward", spoiled)
    with pytest.raises(ConfigError, match=f"{name}' gives other states than torch .* 'torch'"):
        engines.build(name, plain)


def test_an_architecture_that_cannot_be_traced_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path))
    model = PackedBert(transformer(config_of("bert", VOCABULARY, LIMIT), seed=3))
    said = (
        "a transformer of type 'bert' cannot be written as ONNX: no such thing; load it with engine"
    )

    def fails(*_, **__):
        raise RuntimeError("no such\nthing")

    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(ConfigError, match=said):
        engines.build("onnx", model)
    assert not list((tmp_path / "onnx").iterdir())


@pytest.mark.parametrize("name", GRAPHS)
def test_an_architecture_that_depends_on_padding_is_refused(name, tmp_path):
    """A graph of BigBird gives short sentences torch's states, and long ones others."""
    config = transformers.BigBirdConfig(
        vocab_size=VOCABULARY, block_size=4, num_random_blocks=1, sep_token_id=2, **SIZES
    )
    parts = EncoderParts(
        backbone=AutoBackbone(transformer(config)), tokenizer=Tokenizer.load(save_tiny(tmp_path))
    )
    with pytest.raises(
        ConfigError, match="padding changes the states of a transformer of type 'big_bird'"
    ):
        engines.build(name, parts.backbone)
    with pytest.raises(
        ConfigError, match="padding changes the states of a transformer of type 'big_bird'"
    ):
        export(SentenceEncoder(parts), tmp_path / "out", name, tasks=())
    assert not (tmp_path / "out").exists()


def test_making_an_engine_leaves_the_backbone_as_it_was(plain):
    for training in (True, False):
        plain.train(training)
        expected = {name: value.clone() for name, value in plain.state_dict().items()}
        engines.build("onnx", plain)
        assert {module.training for module in plain.modules()} == {training}
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=0)
