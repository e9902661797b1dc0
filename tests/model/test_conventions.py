"""Prompts and dimensions: vectors are those of sentence-transformers, and folders keep them."""

import numpy as np
import pytest
import torch
import transformers
from helpers.tiny_models import SENTENCES, save_tiny, transformer, unigram

import contrasent
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import load_encoder
from contrasent.model.protocol import role_options

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

BAR = 2e-6
GEMMA_PROMPTS = {"query": "task : people | query : ", "document": "title : no | text : "}


def gemma(folder):
    config = transformers.Gemma3TextConfig(
        vocab_size=unigram(folder),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        sliding_window=4,
        use_bidirectional_attention=True,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    transformer(config).save_pretrained(folder)
    torch.manual_seed(1)
    identity = torch.nn.Identity()
    parts = [
        modules.Transformer(str(folder)),
        modules.Pooling(16, "mean"),
        modules.Dense(16, 40, bias=False, activation_function=identity),
        modules.Dense(40, 16, bias=False, activation_function=identity),
        modules.Normalize(),
    ]
    return st.SentenceTransformer(modules=parts, prompts=GEMMA_PROMPTS, device="cpu")


def pooled(folder, kind, pooling, *after, **how):
    parts = [modules.Transformer(str(save_tiny(folder, kind))), modules.Pooling(16, pooling)]
    return st.SentenceTransformer(modules=[*parts, *after], device="cpu", **how)


def e5(folder):
    prompts = {"query": "query: ", "passage": "passage: "}
    return pooled(folder, "xlm-roberta", "mean", modules.Normalize(), prompts=prompts)


def bge(folder):
    how = {"prompts": {"query": "read the sentence : "}, "default_prompt_name": "query"}
    return pooled(folder, "bert", "cls", modules.Normalize(), **how)


def gte(folder):
    how = {"prompts": {"query": "Instruct: read .\nQuery: "}, "similarity_fn_name": "dot"}
    return pooled(folder, "roberta", "lasttoken", truncate_dim=6, **how)


def alike(encoder, model):
    for call in ("encode", "encode_query", "encode_document"):
        for options in (
            {},
            {"truncate_dim": 5},
            {"truncate_dim": 5, "normalize_embeddings": True},
            {"prompt": "dog "},
            {"prompt_name": "query", "normalize_embeddings": True},
        ):
            mine = getattr(encoder, call)(SENTENCES, precision="float32", **options)
            theirs = getattr(model, call)(SENTENCES, **options)
            assert mine.shape == theirs.shape
            assert np.abs(mine - theirs).max() <= BAR, (call, options)
    rows = model.encode(SENTENCES)
    np.testing.assert_allclose(
        encoder.similarity(rows, rows[:2]), model.similarity(rows, rows[:2]), atol=1e-6
    )


@pytest.mark.parametrize("layout", [e5, bge, gte, gemma])
@pytest.mark.filterwarnings("ignore")
def test_prompts_and_dimensions_are_those_of_sentence_transformers(layout, tmp_path):
    model = layout(tmp_path / "plain")
    model.save(str(tmp_path / "theirs"), create_model_card=False)
    encoder = SentenceEncoder(tmp_path / "theirs", device="cpu")
    alike(encoder, model)
    encoder.save(tmp_path / "ours")
    again = SentenceEncoder(tmp_path / "ours", device="cpu")
    assert again.conventions == encoder.conventions
    assert again.fingerprint() == encoder.fingerprint() or layout is gemma  # two maps became one
    alike(again, st.SentenceTransformer(str(tmp_path / "ours"), device="cpu"))


@pytest.mark.filterwarnings("ignore")
def test_linear_layers_of_a_folder_are_trained_with_it(tmp_path):
    gemma(tmp_path / "plain").save(str(tmp_path / "theirs"), create_model_card=False)
    how = {"train.max_steps": 2, "train.batch_size": 4, "train.learning_rate": 0.01}
    how |= {"evaluation.task": "none", "evaluation.final": "none", "train.precision": "fp32"}
    texts, folder = SENTENCES[:8], str(tmp_path / "theirs")
    how |= {"encoder": folder, "data": texts, "output": tmp_path / "run", "device": "cpu"}
    made = contrasent.train("improve", **how)
    start, trained = (SentenceEncoder(it, device="cpu") for it in (folder, made.last))
    assert not torch.equal(start.transform.weight, trained.transform.weight)
    alike(trained, st.SentenceTransformer(str(made.last), device="cpu"))
    turned = trained.transform.folded()
    trained.transform.bias.copy_(torch.arange(16.0))
    rows = [it(torch.eye(16)) for it in (trained.transform, trained.transform.folded())]
    torch.testing.assert_close(rows[0] @ rows[0].T, rows[1] @ rows[1].T, atol=1e-3, rtol=1e-5)
    assert not turned.bias.any()


def test_the_fingerprint_tells_prompts_and_dimensions_apart(tiny_encoder, tiny_bert):
    plain = tiny_encoder.fingerprint()
    options = {"pooler": "cls", "head": "none", "device": "cpu"}
    empty = SentenceEncoder(tiny_bert, **options, prompts={"query": "", "document": ""})
    assert empty.fingerprint() == plain
    others = [
        SentenceEncoder(tiny_bert, **options, prompts={"query": "q: "}),
        SentenceEncoder(
            tiny_bert, **options, prompts={"query": "q: "}, default_prompt_name="query"
        ),
        SentenceEncoder(tiny_bert, **options, truncate_dim=8),
    ]
    assert len({plain, *(encoder.fingerprint() for encoder in others)}) == 4


def test_a_prompt_for_documents_that_is_not_used_is_told(tiny_bert):
    prompts = {"query": "q: ", "passage": "p: "}
    encoder = SentenceEncoder(tiny_bert, pooler="cls", head="none", prompts=prompts)
    with pytest.warns(UserWarning, match="the prompt 'passage' .* prompt_name='passage'"):
        rows = encoder.encode_document(SENTENCES)
    assert np.array_equal(rows, encoder.encode(SENTENCES))
    assert role_options(encoder, "query") == {"prompt": "q: "}
    for prompts in ({"passage": ""}, {"passage": "p: ", "document": "d: "}):
        encoder.prompts = prompts
        encoder.encode_document(SENTENCES)  # without a word


def test_a_chosen_prompt_is_before_queries_and_documents_and_saved_for_them(tiny_bert, tmp_path):
    SentenceEncoder(tiny_bert, pooler="cls", head="none", prompts={"sts": "dog "}).save(
        tmp_path / "saved"
    )
    encoder = load_encoder(tmp_path / "saved", prompt_name="sts")
    wanted = encoder.encode(SENTENCES, prompt="dog ", precision="fp32")
    encoder.save(tmp_path / "again")
    for each in (encoder, load_encoder(tmp_path / "again")):
        for call in (each.encode, each.encode_query, each.encode_document):
            assert np.array_equal(call(SENTENCES, precision="fp32"), wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt_name": "qury"}, "unknown prompt 'qury'.* query"),
        ({"truncate_dim": 17}, "truncate_dim is 17; give a number from 1 to 16"),
        ({"batch_size": 0}, "batch_size cannot be 0: input should be greater than 0"),
        ({"task": "classify"}, "task cannot be 'classify'"),
        ({"precision": "fp16"}, "unknown precision 'fp16'; choose one of auto, bf16, fp32"),
        ({"on_overflow": "warning"}, "on_overflow cannot be 'warning': input should be 'error', "),
        ({"device": "cuda:7"}, "cannot compute on the device 'cuda:7'"),
    ],
)
def test_options_that_cannot_be(options, said, tiny_bert):
    encoder = SentenceEncoder(tiny_bert, pooler="cls", head="none", prompts={"query": "q: "})

    def untouched():
        raise AssertionError("a sentence was read")
        yield ""

    with pytest.raises(ConfigError, match=said):
        encoder.encode(untouched(), **options)


RATED = (SENTENCES[:3], SENTENCES[1:4])
CORPUS, QUERIES = dict(zip("abcd", SENTENCES, strict=False)), {"q": SENTENCES[4], "r": SENTENCES[5]}
EVALUATORS = {
    "EmbeddingSimilarity": (*RATED, [0.1, 0.5, 0.9]),
    "InformationRetrieval": (QUERIES, CORPUS, {"q": {"a"}, "r": {"b"}}),
    "Reranking": (
        [{"query": SENTENCES[0], "positive": SENTENCES[1:2], "negative": SENTENCES[2:]}],
    ),
    "ParaphraseMining": (CORPUS, [("a", "b")]),
    "MSE": (*RATED, None),
}


@pytest.mark.parametrize("name", EVALUATORS)
@pytest.mark.filterwarnings("ignore")
def test_evaluators_of_sentence_transformers_give_the_same_scores(name, tmp_path):
    """All but those of a training loss over padded features, and of a benchmark to download."""
    from sentence_transformers.sentence_transformer import evaluation

    model = e5(tmp_path / "plain")
    model.save(str(tmp_path / "theirs"), create_model_card=False)
    encoder = SentenceEncoder(tmp_path / "theirs", device="cpu")
    kind = getattr(evaluation, f"{name}Evaluator")
    scores = [
        kind(*(model if it is None else it for it in EVALUATORS[name]))(each)
        for each in (model, encoder)
    ]
    assert scores[1] == pytest.approx(scores[0], abs=5e-3) and scores[0]  # bf16 here


def test_similarities_of_other_widths_are_refused(tiny_encoder):
    for call in (tiny_encoder.similarity, tiny_encoder.similarity_pairwise):
        with pytest.raises(ConfigError, match="cannot be compared"):
            call([[1.0, 2.0]], [[1.0, 2.0, 3.0]])
        with pytest.raises(ConfigError, match="cannot be compared"):
            call([[[1.0, 2.0]], [[3.0, 4.0]]], [[[1.0, 2.0]], [[3.0, 4.0]]])
        for text in ("a dog", ["a dog"]):
            with pytest.raises(ConfigError, match="is of embeddings, not of text"):
                call(text, text)
