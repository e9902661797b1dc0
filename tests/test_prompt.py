"""Prompts: their tokens, the bias by hand, CoT-BERT's loss in loops, and what others load."""

import math

import pytest
import torch
import transformers
from helpers.padded import rows_of
from helpers.tiny_models import SENTENCES

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import ConfigError
from contrasent.model.encoder import SentenceEncoder

ANCHOR = 'the {mask} is "{text}" .'
LAST = "the child sings {text} is {mask}"
FIRST = "{mask} is {text} ."
OPPOSITE = "{mask} is not {text}"
TEXTS = ["a dog runs", "one bird sings , two birds sing !"]


def prompted(folder, prompt, pooler):
    encoder = SentenceEncoder.load(folder, pooler=pooler, head="none", device="cpu")
    encoder.tokenizer = encoder.tokenizer.with_prompt(prompt)
    encoder.backbone.set_dropout(0.0)
    return encoder


@pytest.mark.parametrize(
    ("prompt", "before", "after"),
    [
        ("{text}", "[CLS]", "[SEP]"),
        (FIRST, "[MASK] is", ". [SEP]"),
        (LAST, "[CLS] the child sings", "is [MASK]"),
        (' the {mask} is "{text}". ', "[CLS] the [MASK] is [UNK]", "[UNK] . [SEP]"),
    ],
)
def test_the_tokens_of_a_prompt(prompt, before, after, tiny_bert):
    tokenizer = Tokenizer.load(tiny_bert)
    wanted = [[tokenizer.vocabulary_map[it] for it in part.split()] for part in (before, after)]
    template = tokenizer.with_prompt(prompt).template
    assert [list(template.before), list(template.after)] == wanted
    assert template == tokenizer.template_of(prompt)
    assert tokenizer.with_prompt(LAST).with_prompt(prompt).template == template
    assert tokenizer.template == tokenizer.template_of("{text}")


def test_a_prompt_stands_within_what_the_tokenizer_puts_around_a_text(tiny_bert):
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.load(tiny_bert)
    [unknown, end] = [tokenizer.vocabulary_map[it] for it in ("[UNK]", "[SEP]")]
    for single, ends in (("$A", []), ("$A [UNK]", [unknown]), ("[SEP] $A", [])):
        backend = tokenizer._pretrained.backend_tokenizer
        known = [("[UNK]", unknown), ("[SEP]", end)]
        backend.post_processor = TemplateProcessing(single=single, special_tokens=known)
        own = Tokenizer(tokenizer._pretrained)
        for template in (own.template_of("{text} runs"), own.with_prompt("{text} runs").template):
            assert list(template.before) == [end] * single.startswith("[SEP]")
            assert list(template.after) == [own.vocabulary_map["runs"], *ends]


@pytest.mark.parametrize("prompt", ["{text}", LAST])
def test_a_limit_without_room_for_a_word_is_refused(prompt, tiny_bert):
    tokenizer = Tokenizer.load(tiny_bert).with_prompt(prompt)
    room = tokenizer.specials + 1
    assert tokenizer.cut_ids(["dog dog"], room)[1] == [True]
    for limit in (1, room - 1):
        with pytest.raises(ConfigError, match=f"must be above {room - 1}, not {limit}"):
            tokenizer.cut_ids(["dog dog"], limit)


@pytest.mark.parametrize("model", ["bert", "roberta"])
@pytest.mark.parametrize(("prompt", "pooler"), [(FIRST, "cls"), (LAST, "last"), (ANCHOR, "mean")])
def test_others_compute_the_same_vectors(model, prompt, pooler, request, tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = request.getfixturevalue(f"tiny_{model}")
    encoder = prompted(folder, prompt, pooler)
    encoder.max_tokens = 16
    texts = [*SENTENCES, " ".join(SENTENCES)]
    ours = encoder.encode(texts, precision="fp32", on_overflow="truncate")
    encoder.save(tmp_path / "saved")
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(texts)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)

    ids, cut = encoder.tokenizer.ids(texts, 16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    loaded = tokenizer(texts, truncation=True, max_length=16)["input_ids"]
    assert [row.tolist() for row in ids] == loaded
    assert cut
    template = encoder.tokenizer.template
    assert len(ids[-1]) == 16
    assert tuple(ids[-1][-len(template.after) :]) == template.after
    again = SentenceEncoder.load(tmp_path / "saved", device="cpu")
    assert again.fingerprint() == encoder.fingerprint()
    assert "PreTrainedTokenizerFast" in (tmp_path / "saved" / "tokenizer_config.json").read_text()


def test_every_view_gets_its_prompt(tiny_bert):
    encoder = prompted(tiny_bert, FIRST, "cls")
    settings = {"positive": "{mask} . {text}", "negative": OPPOSITE}
    objective = objectives.build("prompt", settings, width=16, data_views=1, encoder=encoder)
    sentences = encoder.tokenizer.ids(TEXTS, None)[0]
    batch = objective.prepare(pack([*sentences] * 3, 3))
    tokenizers = [encoder.tokenizer]
    tokenizers += [encoder.tokenizer.with_prompt(prompt) for prompt in settings.values()]
    wanted = [row.tolist() for t in tokenizers for row in t.ids(TEXTS, None)[0]]
    assert rows_of(batch) == wanted
    assert batch.longest == max(map(len, wanted))
    assert batch.same_text().tolist() == [0, 1, 0, 1, 6, 7]


def by_hand(folder, ids, positions, place):
    """The last state at one place, by transformers alone."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    given = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([positions])}
    with torch.no_grad():
        return model(**given).last_hidden_state[0, place]


@pytest.mark.parametrize("bias", ["positions", "padding", "none"])
@pytest.mark.parametrize(("prompt", "pooler"), [(FIRST, "cls"), (LAST, "last")])
def test_the_bias_and_the_loss_by_hand(bias, prompt, pooler, tiny_bert):
    encoder = prompted(tiny_bert, prompt, pooler)
    opposite = OPPOSITE if pooler == "cls" else "no {text} is {mask}"
    settings = {"negative": opposite, "bias": bias, "head": "none", "temperature": 0.5}
    objective = objectives.build("prompt", settings, width=16, data_views=1, encoder=encoder)
    sentences = encoder.tokenizer.ids(TEXTS, None)[0]
    batch = objective.prepare(pack([*sentences] * 3, 3))
    terms = objective(encoder(batch), batch)

    views = []
    for asked in (prompt, prompt, opposite):
        template = encoder.tokenizer.template_of(asked)
        before, after = list(template.before), list(template.after)
        place = 0 if pooler == "cls" else -1
        rows = []
        for sentence in sentences:
            text = sentence.tolist()[len(encoder.tokenizer.template.before) :]
            text = text[: len(text) - len(encoder.tokenizer.template.after)]
            whole = [*before, *text, *after]
            row = by_hand(tiny_bert, whole, list(range(len(whole))), place)
            gap = len(before) + len(text)
            if bias == "positions":
                places = [*range(len(before)), *range(gap, len(whole))]
                row = row - by_hand(tiny_bert, [*before, *after], places, place)
            if bias == "padding":
                padding = [0] * len(text)
                alone = [*before, *padding, *after]
                row = row - by_hand(tiny_bert, alone, list(range(len(alone))), place)
            rows.append(row)
        views.append(rows)
    assert encoder.tokenizer.special_ids.pad == 0
    torch.testing.assert_close(terms["contrast"].detach(), cot_bert(*views, 0.5))


def cot_bert(anchors, positives, negatives, temperature):
    """CoT-BERT's loss in loops: the negative view is far from the anchor and from the positive."""

    def similarity(u, v):
        return math.exp(float(torch.cosine_similarity(u, v, dim=0)) / temperature)

    total = 0.0
    for anchor, positive in zip(anchors, positives, strict=True):
        rest = 0.0
        for other, negative in zip(positives, negatives, strict=True):
            rest += similarity(anchor, other) + similarity(anchor, negative)
            rest += similarity(positive, negative)
        total -= math.log(similarity(anchor, positive) / rest)
    return torch.tensor(total / len(anchors))


def test_prompts_whose_pooled_token_differs_are_refused(tiny_bert):
    encoder = prompted(tiny_bert, FIRST, "cls")
    with pytest.raises(ConfigError, match=r"begin all prompts with \{mask\} for cls"):
        objectives.build("prompt", {"positive": LAST}, width=16, data_views=1, encoder=encoder)
