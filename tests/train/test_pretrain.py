"""Masked-LM training from text: its loss, its ties, its folder, its command."""

import copy
import json

import pytest
import torch
import transformers
from helpers.command_line import refused, worked
from helpers.run_files import metrics, weights
from helpers.tiny_models import SENTENCES, config_of, save_tiny, save_tiny_masked_lm
from tokenizers import BertWordPieceTokenizer
from torch.nn import functional as F

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.masked_lm import MaskedLm
from contrasent.training.run import train


@pytest.fixture
def pretraining(recipe, tiny_masked_lm):
    """Make a recipe: 40 sentences, batches of 8, 5 steps an epoch."""

    def make(**changes):
        common = {"encoder__name": str(tiny_masked_lm), "evaluation__task": "none"}
        return recipe("pretrain-mlm", data__max_tokens=32, **{**common, **changes})

    return make


def test_some_of_the_layers_are_a_smaller_model(pretraining, tmp_path):
    result = train(pretraining(encoder__layers=1), tmp_path / "run")
    assert MaskedLm.load(result.last).backbone.depth == 1


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_loss_and_gradients_are_those_of_transformers(model_type, tmp_path):
    folder = save_tiny_masked_lm(tmp_path / "it", model_type)
    encoder = SentenceEncoder.load(folder, pooler="cls", head="none", device="cpu")
    encoder.backbone.set_dropout(0.0)
    torch.manual_seed(0)
    settings = {"mask_rate": 0.5}
    objective = objectives.build("mlm", settings, width=16, data_views=1, encoder=encoder)
    batch = objective.prepare(pack(encoder.tokenizer.ids(SENTENCES, None)[0]))
    terms = objective(encoder(batch, objective.layers), batch)
    terms["mlm"].backward()
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    losses = []
    parts = torch.split(batch.token_ids, batch.lengths.tolist())
    wanted = torch.split(batch.source.token_ids, batch.lengths.tolist())
    chosen = torch.split(batch.masked.chosen, batch.lengths.tolist())
    for hidden, original, places in zip(parts, wanted, chosen, strict=True):
        logits = model(input_ids=hidden.unsqueeze(0)).logits[0]
        losses += [F.cross_entropy(logits[n], original[n]) for n in places.nonzero().flatten()]
    loss = torch.stack(losses).mean()
    loss.backward()
    torch.testing.assert_close(terms["mlm"], loss, rtol=1e-5, atol=1e-6)
    theirs = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    (mine,) = objective._masked_lm
    for name, parameter in mine._whole[0].named_parameters():
        if name in theirs:
            torch.testing.assert_close(parameter.grad, theirs.pop(name), rtol=1e-4, atol=1e-6)
    assert not theirs


def test_a_run_learns_the_text_and_leaves_a_masked_lm(pretraining, tmp_path, tiny_masked_lm):
    before = copy.deepcopy(MaskedLm.load(tiny_masked_lm))
    train(pretraining(train__epochs=20, train__learning_rate=5e-3), tmp_path / "run")
    losses = [line["loss"] for line in metrics(tmp_path / "run")]
    assert sum(losses[-10:]) < 0.95 * sum(losses[:10])
    after = MaskedLm.load(tmp_path / "run")
    assert after.tied
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert not torch.equal(old, new)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "last")
    batch = pack([[2, 8, 9, 3]])
    with torch.no_grad():
        theirs = model.eval()(input_ids=batch.token_ids.unsqueeze(0)).logits[0]
        mine = after.eval().head(after.backbone(batch)[-1])
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    info = json.loads((tmp_path / "run" / "last" / "contrasent.json").read_text())
    assert (info["kind"], info["step"]) == ("masked-lm", 100)


def test_a_model_without_a_head_gets_a_new_one_by_the_seed(pretraining, tmp_path):
    folder = save_tiny(tmp_path / "plain")
    bits = []
    for name in ("first", "again"):
        with pytest.warns(UserWarning, match="has no masked-LM head .*starting with a new one"):
            train(pretraining(encoder__name=str(folder), train__max_steps=2), tmp_path / name)
        bits.append(weights(tmp_path / name))
    assert bits[0] == bits[1]
    MaskedLm.load(tmp_path / "first")


def command(model, text, output, *words):
    return (
        *("pretrain", model, "--data", text, "--output", output, "--max-steps", "3"),
        *("--train.batch_size", "8", "--data.max_tokens", "32", *words),
    )


def test_one_command_trains_and_says_what_is_next(tmp_path, tiny_masked_lm, text_file):
    said = worked(*command(tiny_masked_lm, text_file, tmp_path / "run"))
    assert f"masked language model: {tmp_path / 'run' / 'last'}" in said.out
    again = worked(*command(tiny_masked_lm, text_file, tmp_path / "run", "--resume"))
    assert "is complete: nothing to resume" in again.err
    assert "masked language model" not in again.out


def test_from_scratch_learns_a_vocabulary_and_begins_with_random_weights(tmp_path, text_file):
    config_of("bert", 60, positions=40).save_pretrained(tmp_path / "shape")
    bits, late = [], ("--from-scratch", "--seed", "9", "--train.min_rate", "0.5")
    assert "no use" in refused(*command(tmp_path / "shape", text_file, tmp_path / "first", *late))
    for name in ("first", "again"):
        words = command(tmp_path / "shape", text_file, tmp_path / name, "--from-scratch")
        said = worked(*words, *["--resume"] * (name == "first"))  # the start left there is of 9
        assert f"masked language model: {tmp_path / name / 'run' / 'last'}" in said.out
        bits.append(weights(tmp_path / name / "run"))
    assert bits[0] == bits[1]
    assert "holds a training run already" in refused(*words)
    worked(*words, "--resume")
    start = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "again" / "start")
    weight = start.bert.encoder.layer[0].intermediate.dense.weight
    assert abs(weight.std().item() - start.config.initializer_range) < 0.003
    theirs = BertWordPieceTokenizer(lowercase=True)
    theirs.train([str(text_file)], vocab_size=60, show_progress=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "again" / "run" / "last")
    assert len({*tokenizer.get_vocab()} ^ {*theirs.get_vocab()}) <= 6  # which breaks ties by chance
    assert start.config.vocab_size == len(tokenizer) == theirs.get_vocab_size()
    sentence = text_file.read_text().splitlines()[0]
    assert tokenizer.decode(tokenizer(sentence).input_ids[1:-1]) == sentence.lower()
    # A tokenizer beside the shape is taken, and another seed draws other weights.
    other = command(tmp_path / "again" / "start", text_file, tmp_path / "other", "--from-scratch")
    worked(*other, "--seed", "1")
    taken = transformers.AutoTokenizer.from_pretrained(tmp_path / "other" / "start")
    assert taken.get_vocab() == tokenizer.get_vocab()
    drawn = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "other" / "start")
    assert not torch.equal(drawn.bert.encoder.layer[0].intermediate.dense.weight, weight)
