"""DiffCSE against its authors' method, written with loops on padded sentences and transformers.

Generator, encoder and discriminator are transformers' own models with transformers' own forward;
the discriminator's embedding layer has its first row replaced by a hook. Dropout is 0, because the
two sides draw it differently.
"""

import json
import shutil

import pytest
import torch
import transformers
from helpers.padded import padded, rows_of
from helpers.shared_data import SHARED
from helpers.tiny_models import SENTENCES, save_tiny_masked_lm
from torch import nn
from torch.nn import functional as F

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.model import masked_lm as generators
from contrasent.model.encoder import SentenceEncoder

BAR = 1e-5
TEMPERATURE, WEIGHT = 0.05, 0.3


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """A masked language model without dropout, which is encoder, discriminator and generator."""
    place = tmp_path_factory.mktemp("reference") / request.param
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if request.param != "minilm-mlm":
        return save_tiny_masked_lm(place, request.param, **rates)
    if not (SHARED / "data").is_dir():
        pytest.skip(f"no shared data in {SHARED}; name its folder in CONTRASENT_SHARED")
    shutil.copytree(SHARED / "data" / "weights" / request.param, place)
    config = json.loads((place / "config.json").read_text(encoding="utf-8"))
    (place / "config.json").write_text(json.dumps({**config, **rates}), encoding="utf-8")
    return place


class Reference(nn.Module):
    """Encoder, projector, generator and discriminator, and their loss."""

    def __init__(self, folder, objective, projector):
        super().__init__()
        fp32 = {"dtype": torch.float32}
        plain = {"add_pooling_layer": False, **fp32}
        self.encoder = transformers.AutoModel.from_pretrained(folder, **plain)
        self.discriminator = transformers.AutoModel.from_pretrained(folder, **plain)
        self.generator = transformers.AutoModelForMaskedLM.from_pretrained(folder, **fp32)
        width = self.encoder.config.hidden_size
        self.first = transformers.AutoTokenizer.from_pretrained(folder).cls_token_id
        self.filling = self.encoder.config.pad_token_id
        self.projector = nn.Identity()
        if projector == "batchnorm":
            self.projector = nn.Sequential(
                nn.Linear(width, 2 * width, bias=False),
                nn.BatchNorm1d(2 * width),
                nn.ReLU(),
                nn.Linear(2 * width, width, bias=False),
                nn.BatchNorm1d(width, affine=False),
            )
        if projector == "mlp":
            self.projector = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 2)
        ours = list(objective.projector.parameters())
        for parameter, value in zip(self.projector.parameters(), ours, strict=True):
            parameter.data.copy_(value)
        self.head.load_state_dict(objective.difference.conditional.heads["replace"].state_dict())

    def forward(self, sentences, masked, settings):
        """The two terms."""
        ids, attention = padded(sentences, self.filling).values()
        pooled = self.encoder(ids, attention).last_hidden_state[:, 0]
        projected = self.projector(pooled)
        fake = self.edited(ids, masked, settings) * attention
        known = pooled if settings["rtd_embedding"] == "pooled" else projected
        logits = self.head(self.discriminate(fake, attention, known))
        labels = (fake != ids).long() * attention
        return contrast(projected), detection(logits, labels, attention, settings)

    @torch.no_grad()
    def edited(self, ids, masked, settings):
        guesses = self.generator(**padded([r for r, _ in masked], self.filling)).logits.argmax(-1)
        if settings["edit_positions"] == "masked":
            for row, (_, chosen) in enumerate(masked):
                for column, was_chosen in enumerate(chosen):
                    if not was_chosen:
                        guesses[row, column] = ids[row, column]
        guesses[:, 0] = self.first
        return guesses

    def discriminate(self, ids, attention, known):
        def replaced(module, inputs, output):  # noqa: ARG001
            return torch.cat([known.unsqueeze(1), output[:, 1:]], dim=1)

        handle = self.discriminator.embeddings.register_forward_hook(replaced)
        states = self.discriminator(ids, attention).last_hidden_state
        handle.remove()
        return states


def contrast(projected):
    """SimCSE's loss, row by row."""
    first, second = projected.chunk(2)
    total = 0.0
    for i in range(len(first)):
        scores = [F.cosine_similarity(first[i], other, dim=0) / TEMPERATURE for other in second]
        total = total - scores[i] + torch.logsumexp(torch.stack(scores), 0)
    return total / len(first)


def detection(logits, labels, attention, settings):
    """Over the positions of tokens; the mean may count those of padding too."""
    total = 0.0
    for row in range(len(labels)):
        for column in attention[row].nonzero().flatten():
            total = total + F.cross_entropy(logits[row, column], labels[row, column])
    if settings["rtd_reduction"] == "sum":
        return total
    ignored = settings["rtd_padding"] == "ignored"
    return total / (int(attention.sum()) if ignored else labels.numel())


USUAL = {
    "projector": "batchnorm",
    "rtd_embedding": "projected",
    "rtd_reduction": "mean",
    "rtd_padding": "as_reference",
    "edit": "argmax",
    "edit_positions": "all",
    "temperature": TEMPERATURE,
    "rtd_weight": WEIGHT,
    "mask_rate": 0.4,
    "generator_dropout": True,
    "exclude_duplicates": False,
}
SETTINGS = [
    {},
    {"rtd_padding": "ignored"},
    {"rtd_reduction": "sum"},
    {"edit_positions": "masked"},
    {"rtd_embedding": "pooled"},
    {"projector": "mlp"},
    {"projector": "mlp", "rtd_embedding": "pooled", "rtd_padding": "ignored"},
    {"projector": "none"},
]
REAL = [
    pytest.param("minilm-mlm", it, marks=[pytest.mark.acceptance, pytest.mark.slow])
    for it in (SETTINGS[0], SETTINGS[-2])
]
CASES = [*((kind, it) for kind in ("bert", "roberta") for it in SETTINGS), *REAL]


@pytest.mark.parametrize(("folder", "changes"), CASES, ids=str, indirect=["folder"])
def test_terms_and_gradients_are_those_of_the_authors_method(changes, folder, monkeypatch):
    settings, masks, mask_tokens = {**USUAL, **changes}, [], generators.mask_tokens

    def noted(*args, **kwargs):
        masks.append(mask_tokens(*args, **kwargs))
        return masks[-1]

    monkeypatch.setattr(generators, "mask_tokens", noted)
    torch.manual_seed(0)
    encoder = SentenceEncoder.load(folder, pooler="cls", head="none", device="cpu").train()
    objective = objectives.build(
        "diffcse", settings, width=encoder.width, data_views=1, encoder=encoder
    ).train()
    reference = Reference(folder, objective, settings["projector"]).train()
    texts, _ = encoder.tokenizer.ids(SENTENCES, 32)
    batch = pack([*texts, *texts], views=2)
    terms = objective(encoder(batch, objective.layers), objective.prepare(batch))
    (masked,) = masks
    rows = (rows_of((it, batch.offsets)) for it in (masked.token_ids, masked.chosen))
    contrasted, detected = reference(rows_of(batch), list(zip(*rows, strict=True)), settings)
    torch.testing.assert_close(terms["contrast"], contrasted, rtol=BAR, atol=BAR)
    torch.testing.assert_close(terms["rtd"], WEIGHT * detected, rtol=BAR, atol=BAR)
    assert detected > 0
    # A sum is as many times larger as there are tokens, and so is its rounding.
    bar = BAR * (len(batch.token_ids) if settings["rtd_reduction"] == "sum" else 1)
    sum(terms.values()).backward()
    (contrasted + WEIGHT * detected).backward()
    conditional = objective.difference.conditional
    pairs = [
        (encoder.backbone.model, reference.encoder),
        (conditional.transformer.model, reference.discriminator),
        (conditional.heads["replace"], reference.head),
        (objective.projector, reference.projector),
    ]
    for ours, theirs in pairs:
        wanted = [parameter.grad for parameter in theirs.parameters()]
        mine = [p.grad for name, p in ours.named_parameters() if "pooler" not in name]
        for gradient, expected in zip(mine, wanted, strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=bar)
    assert all(parameter.grad is None for parameter in reference.generator.parameters())
