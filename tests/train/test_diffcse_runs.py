"""Runs of DiffCSE: what is logged and saved, resumed bit by bit, and refused before they start."""

import pytest
import torch
import transformers
from helpers.command_line import tree
from helpers.interrupted import kill_after
from helpers.run_files import logged_steps
from helpers.tiny_models import save_tiny_masked_lm
from safetensors.torch import load_file

from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives._difference import OPERATIONS
from contrasent.training.run import train

QUIET = ("--evaluation.task", "none", "--evaluation.final", "none", "--train.precision", "fp32")


@pytest.fixture
def diffcse(recipe, tiny_masked_lm):
    """A recipe of ten steps."""

    def make(**overrides):
        return recipe("diffcse", **{"encoder__name": str(tiny_masked_lm), **overrides})

    return make


@pytest.fixture
def documents(tmp_path, text_file):
    """The forty sentences in documents of five."""
    lines = text_file.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "documents.txt"
    parts = ["\n".join(lines[n : n + 5]) for n in range(0, len(lines), 5)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


# What is logged and what is saved


def test_every_step_tells_both_terms_and_how_the_discriminator_does(diffcse, tmp_path):
    train(diffcse(), tmp_path / "run")
    steps = logged_steps(tmp_path / "run")
    assert len(steps) == 10
    for line in steps:
        terms = {name: value for name, value in line.items() if name.startswith("term_")}
        assert terms.keys() == {"term_contrast", "term_rtd"}
        assert line["loss"] == pytest.approx(sum(terms.values()), rel=1e-5)
        told = {"rtd_accuracy_edited", "rtd_accuracy_original", "share_edited"}
        assert all(0 <= line[name] <= 1 for name in told)
    shares = [line["share_edited"] for line in steps]
    assert 0.05 < sum(shares) / len(shares) < 0.3


def test_the_saved_encoder_holds_nothing_of_the_discriminator(diffcse, recipe, tmp_path):
    train(diffcse(), tmp_path / "run")
    train(
        recipe(encoder__name=diffcse().encoder.name, objective__head="batchnorm"),
        tmp_path / "simcse",
    )
    for name in ("best", "last"):
        folder, plain = tmp_path / "run" / name, tmp_path / "simcse" / name
        assert tree(folder).keys() == tree(plain).keys()
        found, expected = (load_file(path / "model.safetensors") for path in (folder, plain))
        assert {k: v.shape for k, v in found.items()} == {k: v.shape for k, v in expected.items()}
    model = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        states = model(**tokenizer("a dog runs", return_tensors="pt")).last_hidden_state
    rows = SentenceEncoder.load(tmp_path / "run", device="cpu").encode(["a dog runs"])
    best = SentenceEncoder.load(tmp_path / "run" / "best", device="cpu").encode(["a dog runs"])
    assert (rows == best).all()
    plainly = {"normalize": False, "precision": "fp32"}
    last = SentenceEncoder.load(folder, device="cpu").encode(["a dog runs"], **plainly)
    torch.testing.assert_close(torch.as_tensor(last), states[:, 0], rtol=1e-5, atol=1e-5)


def test_the_state_holds_the_discriminator_and_no_generator(diffcse, tmp_path):
    with kill_after("save_state"):
        train(diffcse(objective__edit_operation="all"), tmp_path / "run")
    (state,) = (tmp_path / "run" / "state").iterdir()
    assert {path.stem for path in state.glob("*.safetensors")} == {
        *("encoder", "objective", "optimizer", "random")
    }
    names = load_file(state / "objective.safetensors")
    kinds = {".".join(name.split(".")[:3]) for name in names if not name.startswith("projector")}
    assert kinds == {"difference.conditional.transformer", "difference.conditional.heads"}
    heads = {name.split(".")[3] for name in names if ".heads." in name}
    assert heads == {"replace", "insert", "delete"}
    assert not any("decoder" in name or "cls.predictions" in name for name in names)


# Runs that are cut off


# Other encoders, other data


def test_two_encoders_with_one_discriminator(diffcse, tmp_path):
    train(diffcse(encoder__encoders="twin"), tmp_path / "run")
    weights = [load_file(tmp_path / "run" / n / "model.safetensors") for n in ("last", "last-twin")]
    assert weights[0].keys() == weights[1].keys()
    start = load_file(f"{diffcse().encoder.name}/model.safetensors")
    words = "embeddings.word_embeddings.weight"
    (there,) = (tensor for name, tensor in start.items() if name.endswith(words))
    first, second = (found[words] for found in weights)
    assert not first.equal(second)
    assert not first.equal(there) and not second.equal(there)


@pytest.mark.parametrize("operation", ["replace", "insert", "delete", "all"])
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "distilbert"])
def test_other_tokenizers_are_edited_by_the_names_of_their_special_tokens(
    kind, operation, diffcse, tmp_path, monkeypatch
):
    folder = save_tiny_masked_lm(tmp_path / kind, kind)
    special = set(transformers.AutoTokenizer.from_pretrained(folder).all_special_ids)
    ends = []
    for name in OPERATIONS:

        def noting(batch, editing, original=OPERATIONS[name]):
            edit = original(batch, editing)
            before, after = (x.token_ids.split(x.lengths.tolist()) for x in (batch, edit.batch))
            ends.extend(
                [old[0] == new[0], old[-1] == new[-1], int(new[0]) in special]
                for old, new in zip(before, after, strict=True)
            )
            assert edit.edited.any() and not edit.edited[edit.batch.offsets[:-1]].any()
            return edit

        monkeypatch.setitem(OPERATIONS, name, noting)
    settings = {"objective__edit_operation": operation, "train__max_steps": 2}
    train(diffcse(encoder__name=str(folder), **settings), tmp_path / "run")
    assert len(logged_steps(tmp_path / "run")) == 2
    assert ends and all(all(row) for row in ends)


def test_a_smaller_generator_of_its_own(diffcse, tmp_path):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
    generator = save_tiny_masked_lm(tmp_path / "generator", **small, seed=1)
    for name, changes in (("own", {}), ("small", {"objective__generator": str(generator)})):
        train(diffcse(train__max_steps=2, **changes), tmp_path / name)
    own, other = (logged_steps(tmp_path / name)[0] for name in ("own", "small"))
    assert own["term_contrast"] == other["term_contrast"]
    assert own["term_rtd"] != other["term_rtd"]


def test_the_next_sentence_of_the_document_is_edited(diffcse, documents, tmp_path, monkeypatch):
    encoder = SentenceEncoder.load(diffcse().encoder.name, pooler="cls", head="none", device="cpu")
    lines = documents.read_text(encoding="utf-8").splitlines()
    ids, _ = encoder.tokenizer.ids([line or "horse" for line in lines], 32)
    after = {
        (tuple(a), tuple(b)) for a, b, line in zip(ids, ids[1:], lines[1:], strict=False) if line
    }
    pairs = []

    def noting(batch, editing):
        texts = [tuple(part.tolist()) for part in batch.token_ids.split(batch.lengths.tolist())]
        own, others = texts[: len(texts) // 2], texts[len(texts) // 2 :]
        pairs.extend(zip(own, others, strict=True))
        return original(batch, editing)

    original = OPERATIONS["replace"]
    monkeypatch.setitem(OPERATIONS, "replace", noting)
    settings = {"objective__edit_source": "both", "train__epochs": 1}
    train(diffcse(data__file=str(documents), **settings), tmp_path / "run")
    assert len(pairs) == 2 * 32  # both views of those that have a next sentence
    assert set(pairs) <= after


def test_products_in_bf16(diffcse, tmp_path):
    losses = {}
    for precision in ("fp32", "bf16"):
        changes = {"train__precision": precision, "train__max_steps": 1, "encoder__dropout": 0}
        settings = {"objective__task": "corrective", "objective__edit": "argmax"}
        train(diffcse(**changes, **settings), tmp_path / precision)
        losses[precision] = logged_steps(tmp_path / precision)[0]["loss"]
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)


# Refusals
