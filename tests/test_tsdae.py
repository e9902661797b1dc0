"""TSDAE: deletion, the decoder and a step, against plain loops and sentence-transformers."""

import pytest
import torch
from helpers import tiny_models
from helpers.oracles import equal_gradients
from helpers.padded import padded

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.tsdae import DamagedBatch, kept_words

ROWS = [[2, 10, 11, 12, 3], [2, 20, 3], [2, 30, 31, 32, 33, 34, 35, 3]]
LEFT = [[2, 11, 3], [2, 20, 3], [2, 30, 33, 34, 3]]


@pytest.fixture(params=["cls", "mean"])
def encoder(request, tiny_masked_lm):
    return SentenceEncoder.load(tiny_masked_lm, pooler=request.param, head="none", device="cpu")


def built(encoder, **settings):
    """The objective, with noise on its new weights, so that none is 0 or 1."""
    torch.manual_seed(0)
    objective = objectives.build("tsdae", settings, width=16, data_views=1, encoder=encoder)
    with torch.no_grad():
        for parameter in objective.cross_attention.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return objective.eval()


def compare(ours, wanted, encoder, model, objective):
    """Equal losses, and equal gradients of every weight that both have."""
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    theirs = dict(model.bert.named_parameters())
    mine = dict(encoder.backbone.model.named_parameters())
    names = [name for name in mine if name in theirs and "pooler" not in name]
    pairs = [(mine[name], theirs[name]) for name in names]
    head = model.cls.predictions
    pairs += [
        (objective.head.dense.weight, head.transform.dense.weight),
        (objective.head.norm.bias, head.transform.LayerNorm.bias),
        (objective.head.decoder.bias, head.decoder.bias),
    ]
    assert len(names) > 30
    equal_gradients(ours, wanted, tuple(zip(*pairs, strict=True)), rtol=1e-3)


def test_it_is_the_loss_of_sentence_transformers(encoder, tiny_masked_lm):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(str(tiny_masked_lm))
    pooling = Pooling(16, encoder.pooler)
    theirs = DenoisingAutoEncoderLoss(SentenceTransformer(modules=[transformer, pooling])).eval()
    objective, left = built(encoder), pack(LEFT)
    batch = DamagedBatch(left.token_ids, left.offsets, whole=pack(ROWS))
    layers = theirs.decoder.bert.encoder.layer
    with torch.no_grad():
        for layer, cross in zip(layers, objective.cross_attention, strict=True):
            cross.value.load_state_dict(layer.crossattention.self.value.state_dict())
            cross.output.load_state_dict(layer.crossattention.output.dense.state_dict())
            cross.norm.load_state_dict(layer.crossattention.output.LayerNorm.state_dict())
    features = [padded(LEFT), padded(ROWS)]
    wanted = theirs(features, None)
    terms = objective(encoder(batch), batch)
    compare(terms["reconstruction"], wanted, encoder, theirs.decoder, objective)
    crossed = [layer.crossattention for layer in layers]
    mine = [cross.value.weight for cross in objective.cross_attention]
    theirs_too = [cross.self.value.weight for cross in crossed]
    equal_gradients(terms["reconstruction"], wanted, (mine, theirs_too), rtol=1e-3)
    unused = [cross.self.query.weight for cross in crossed]
    for gradient in torch.autograd.grad(theirs(features, None), unused, allow_unused=True):
        assert gradient is None or gradient.abs().max() < 1e-7


@pytest.mark.parametrize("model_type", ["roberta", "distilbert", "camembert"])
def test_other_decoders_see_what_is_before_them_only(model_type, tmp_path):
    folder = tiny_models.save_tiny(tmp_path / model_type, model_type)
    encoder = SentenceEncoder.load(folder, pooler="mean", head="none", device="cpu")
    with pytest.warns(UserWarning, match="no masked-LM head"):
        objective = built(encoder)
    additions = [cross(torch.ones(2, 16)) for cross in objective.cross_attention]
    long = encoder.backbone.last_states(pack([[5, 6, 7, 8, 9], [10, 11]]), additions=additions)
    short = encoder.backbone.last_states(pack([[5, 6, 7], [10]]), additions=additions)
    torch.testing.assert_close(long[[0, 1, 2, 5]], short, rtol=1e-5, atol=1e-5)


def test_words_are_deleted_whole_each_by_itself_and_never_all():
    rows = [[2, 10, 11, 12, 13, 3], [2, 20, 21, 3], [2, 3]]
    begins = torch.tensor([1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1], dtype=torch.bool)
    special = torch.tensor([number < 5 for row in rows for number in row])
    torch.manual_seed(0)
    draws = [kept_words(pack(rows), begins, special, 0.6).tolist() for _ in range(4000)]
    ways = {tuple(draw) for draw in draws}
    first, second = {way[1:5] for way in ways}, {way[7:9] for way in ways}
    assert first == {(True,) * 4, (True, True, False, False), (False, False, True, True)}
    assert second == {(True, True), (True, False), (False, True)}
    assert not any(way[place] for way in ways for place in (0, 5, 6, 9, 10, 11))
    # both words: 0.4^2; one alone: 0.4 * 0.6, or half of 0.6^2
    share = {way: sum(draw[7:9] == list(way) for draw in draws) / len(draws) for way in second}
    assert share[True, True] == pytest.approx(0.16, abs=0.02)
    assert share[True, False] == pytest.approx(0.42, abs=0.03)
    assert kept_words(pack(rows), begins, special, 0.0).equal(~special)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("word_piece", "dogs, stones water", ["dog ##s", ",", "stone ##s", "water"]),
        ("byte_level", "the dog sings.", None),
        ("unigram", "the dog sings.", None),
    ],
)
def test_tokens_that_begin_a_word(kind, text, words, tmp_path):
    getattr(tiny_models, kind)(tmp_path / kind)
    tokenizer = Tokenizer.load(tmp_path / kind)
    names = {number: token for token, number in tokenizer.vocabulary_map.items()}
    begins = tokenizer.begins_word()
    inside = tokenizer.ids([text], None)[0][0][1:-1].tolist()
    pieces = []
    for place, number in enumerate(inside):
        if place == 0 or begins[number]:
            pieces.append(names[number])
        else:
            pieces[-1] += f" {names[number]}"
    if words is None:
        joined = [piece.replace(" ", "").lstrip("\u0120\u2581") for piece in pieces]
        assert joined == text.split()
    else:
        assert pieces == words
    assert len(begins) == tokenizer.vocabulary


def test_a_character_of_a_script_without_spaces_begins_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_models, "SENTENCES", ["\u5c71\u5ddd"])
    tiny_models.unigram(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    inside = tokenizer.ids(["\u5c71\u5ddd\u5c71 dog"], None)[0][0][1:-1]
    assert tokenizer.begins_word()[inside].tolist() == [True] * len(inside) and len(inside) > 3


def test_an_encoder_that_cannot_decode_is_refused(tmp_path):
    folder = tiny_models.save_tiny_masked_lm(tmp_path, "mpnet")
    encoder = SentenceEncoder.load(folder, pooler="mean", head="none", device="cpu")
    with pytest.raises(ConfigError, match="this objective takes a BERT"):
        objectives.build("tsdae", {}, width=16, data_views=1, encoder=encoder)
