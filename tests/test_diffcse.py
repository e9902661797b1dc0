"""DiffCSE: its contrastive term, what edits are for, the weight, and what is refused."""

import pytest
import torch
from helpers import oracles
from helpers.tiny_diffcse import batch_of, build, scored, sentences, still_encoder
from helpers.tiny_models import save_tiny_masked_lm

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.encoder import SentenceEncoder


@pytest.fixture
def encoder(tiny_masked_lm):
    return still_encoder(tiny_masked_lm)


def looped(objective, pooled):
    """The projected embeddings, number by number."""
    projector, rows = objective.projector, pooled.double()
    if objective.config.projector == "mlp":
        return torch.tanh(rows @ projector.linear.weight.T.double() + projector.linear.bias)
    if objective.config.projector == "batchnorm":
        weights = [weight.double() for weight in projector.parameters()]
        return oracles.batch_norm_head(rows.flatten(0, 1), *weights).view(rows.shape)
    return rows


def excluded(anchors, positives, candidates):
    """Candidates that are the anchor or its positive in so many words."""
    pairs = list(zip(anchors, positives, strict=True))
    return [[text in pair for text in candidates] for pair in pairs]


# The contrastive term, and the weight of the other one


@pytest.mark.parametrize("data_views", [1, 2, 3])
@pytest.mark.parametrize("exclude", [True, False])
def test_without_weight_it_is_simcse_with_batch_normalisation(data_views, exclude, tiny_bert):
    """Bit for bit; and a checkpoint without a masked-LM head will do: there is no generator."""
    settings = {"exclude_duplicates": exclude}
    found = []
    for name, more in (
        ("diffcse", {"rtd_weight": 0.0}),
        ("simcse", {"head": "batchnorm", "mlm_weight": 0.0}),
    ):
        encoder = SentenceEncoder.load(tiny_bert, pooler="cls", head="none", device="cpu").train()
        torch.manual_seed(3)
        objective = objectives.build(
            name,
            {**settings, **more},
            width=encoder.width,
            data_views=data_views,
            encoder=encoder,
        )
        batch = batch_of(encoder, examples=7, views=objective.views)
        _, terms = scored(encoder, objective, batch)
        (term,) = terms.values()
        term.backward()
        parameters = [*encoder.parameters(), *objective.parameters()]
        found.append([term.detach(), *(p.grad for p in parameters)])
        assert objective.prepare(batch) is batch
    assert len(found[0]) == len(found[1]) > 20
    torch.testing.assert_close(*found, rtol=0, atol=0)


# Edits as further views (Table 15)


@pytest.mark.parametrize("exclude", [True, False])
@pytest.mark.parametrize("operation", ["replace", "all"])
@pytest.mark.parametrize("role", ["positives", "negatives"])
@pytest.mark.parametrize("data_views", [1, 3])
def test_edits_join_the_contrast_in_their_role(data_views, role, operation, exclude, encoder):
    """As positives, each is one among the edits of its kind; as negatives, all are candidates."""
    objective = build(
        encoder,
        data_views,
        edit_role=role,
        edit_operation=operation,
        temperature=0.5,
        exclude_duplicates=exclude,
        mask_rate=0.2,
    )
    batch = batch_of(encoder, examples=4, views=objective.views)
    twice = pack([sentences(batch)[s] for s in (0, 5, 0, 3) * objective.views], objective.views)
    torch.manual_seed(7)
    prepared = objective.prepare(twice)
    encoded = encoder(prepared)
    terms = objective(encoded, prepared)
    assert terms.keys() == {"contrast"}
    texts = sentences(prepared)
    views = [texts[n : n + 4] for n in range(0, len(texts), 4)]
    rows = looped(objective, encoded.pooled)
    kept = objective.views
    groups = [list(range(1, kept))]
    if role == "positives":
        groups += [[number] for number in range(kept, len(views))]
    else:
        groups = [list(range(1, len(views)))]
    total = 0.0
    for group in groups:
        candidates = [text for number in group for text in views[number]]
        left_out = excluded(views[0], views[1], candidates) if exclude else None
        total = total + oracles.info_nce(
            rows[0], torch.cat([rows[number] for number in group]), 0.5, excluded=left_out
        )
    expected = total / len(groups)
    torch.testing.assert_close(terms["contrast"].double(), expected, rtol=1e-5, atol=1e-6)


# What belongs to whom


AT_ODDS = [
    ({"contrast": False, "rtd_weight": 0}, "contrast is false, but .* there is no other term"),
    ({"contrast": False, "edit_role": "positives"}, "contrast is false, but .* no other term"),
    ({"edit_role": "negatives", "edit_source": "next"}, "edit_role negatives .*must be same"),
    ({"edit_role": "positives", "task": "corrective"}, "edit_role positives .*task rtd"),
    ({"task": "cmlm", "edit_operation": "delete"}, "task cmlm .*edit_operation replace"),
    ({"task": "corrective", "rtd_reduction": "sum"}, "task corrective .*must be mean"),
    ({"mask_rate": 0}, r"objective\.mask_rate cannot be 0: input should be greater than 0"),
    ({"edit": "likely"}, r"objective\.edit cannot be 'likely': .*'argmax' or 'sample'"),
    ({"generator": "nowhere"}, "'nowhere' is not a local folder"),
]


@pytest.mark.parametrize(("settings", "said"), AT_ODDS, ids=lambda value: str(value)[:60])
def test_settings_that_cannot_be_are_refused(settings, said, encoder):
    with pytest.raises((ConfigError, CheckpointError), match=said):
        build(encoder, **settings)


def test_an_encoder_without_a_head_is_no_generator_of_its_own(tiny_bert):
    for settings in ({}, {"task": "cmlm"}, {"edit_role": "positives"}):
        with pytest.raises(CheckpointError, match=r"has no masked-LM head.*contrasent pretrain"):
            build(still_encoder(tiny_bert), **settings)
    assert build(still_encoder(tiny_bert), edit_operation="delete").difference is not None


def test_other_vocabularies_and_no_mask_token_are_refused(encoder, tmp_path):
    folder = save_tiny_masked_lm(tmp_path / "roberta", "roberta")
    for settings in ({}, {"edit_role": "negatives"}):
        with pytest.raises(ConfigError, match="has another vocabulary than the encoder"):
            build(encoder, generator=str(folder), **settings)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in (("<mask>", "<mosk>"), ("mask_token", "mt"), ("Roberta", "PreTrained")):
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
    maskless = still_encoder(folder)
    for settings in ({}, {"task": "cmlm"}, {"edit_role": "positives"}, {"edit_operation": "all"}):
        with pytest.raises(ConfigError, match="this tokenizer has no mask token"):
            build(maskless, **settings)
    assert build(maskless, edit_operation="delete").difference is not None
