"""Several sources, each with its columns and prompt, and data in memory; resumed bit for bit."""

import json

import numpy as np
import pytest
import torch
from helpers.command_line import worked
from helpers.interrupted import kill_after
from helpers.run_files import RunFiles, logged_losses, weights
from helpers.tiny_sentences import sentence, write

import contrasent
from contrasent.data.examples import keep_rows, open_examples
from contrasent.errors import ConfigError, ContrasentError, DataError
from contrasent.objectives import build
from contrasent.recipe import load_recipe
from contrasent.training import loop
from contrasent.training.run import train
from contrasent.training.run_folder import complete
from contrasent.training.scoring import tasks_of
from contrasent.training.setup import prepare


@pytest.fixture
def qa_file(tmp_path):
    rows = [{"q": sentence(n, 5), "a": sentence(n + 3, 4)} for n in range(20)]
    return write(tmp_path / "qa.jsonl", map(json.dumps, rows))


def test_a_run_on_several_sources_is_resumed_bit_for_bit(
    recipe, tmp_path, triplet_file, qa_file, text_file
):
    qa = {"file": str(qa_file), "columns": ["q", "a"], "weight": 0.4, "prompt": "faq: "}
    text = {"file": str(text_file), "objective": "esimcse"}
    sources = [f"{triplet_file}:0.4", qa, text]
    loaded = recipe(data__file=sources, train__epochs=2, evaluation__every=6)
    result = train(loaded, tmp_path / "whole")
    whole = RunFiles.read(tmp_path / "whole")
    assert result.steps == 2 * (5 + 3 + 5)
    steps = [line for line in whole.metrics if "loss" in line]
    named = [name for line in steps for name in line if name.startswith("loss_")]
    assert all(line[name] == line["loss"] for line, name in zip(steps, named, strict=True))
    names = {"loss_triplets.csv": 5, "loss_qa.jsonl": 5, "loss_text.txt": 3}
    for epoch in (named[:13], named[13:]):
        assert {name: epoch.count(name) for name in names} == names
    kept = json.loads((tmp_path / "whole" / "data.json").read_text())
    assert kept["examples"] == 100
    assert kept["sources"]["qa.jsonl"]["examples"] == 20
    assert [len(it["sha256"]) for it in (kept, *kept["sources"].values())] == [64] * 4
    for calls in (1, 4):
        with kill_after("loop.save_state", calls):
            train(loaded, tmp_path / f"cut{calls}")
        train(loaded, tmp_path / f"cut{calls}", resume=True)
        assert RunFiles.read(tmp_path / f"cut{calls}") == whole


def gradient(weights):
    """Of all weights end to end; not a number where a step leaves one out."""
    none = torch.tensor(torch.nan)
    return torch.cat(
        [(none.expand_as(it) if it.grad is None else it.grad).ravel() for it in weights]
    )


@pytest.mark.parametrize("chunk", [None, 5], ids=["whole", "in chunks"])
def test_steps_are_those_of_each_objective_alone(
    chunk, recipe, triplet_file, qa_file, text_file, pairs_file, monkeypatch
):
    qa, texts = {"columns": ["q", "a"]}, {"objective": {"name": "esimcse", "queue": 6}}
    rated = {"objective": {"name": "scored_pairs"}, "labels": "scores", "columns": ["0", "1", "2"]}
    files = {triplet_file: {}, qa_file: qa, text_file: texts, pairs_file: rated}
    settings = {"train__schedule": "constant", "train__optimizer": "sgd"}
    settings |= {"train__gradcache_chunk": chunk, "encoder__dropout": 0.0 if chunk else 0.1}
    data = [{"file": str(file), **more} for file, more in files.items()]
    loaded = complete(recipe("sup-simcse", data__file=data, **settings))
    found, update, parts = [], loop.update, prepare(loaded, torch.device("cpu"))
    weights = loop.trainable_parameters(*parts.modules.values())
    kept = lambda *given: (found.append(gradient(weights)), update(*given))  # noqa: E731
    monkeypatch.setattr(loop, "update", kept)
    batches = [parts.loader.batch(step) for step in range(parts.steps)]
    torch.manual_seed(1)
    steps = [it for each in loop.run(parts, iter(batches), loop.Progress(), bool) for it in each]
    seen = {it.source: it.sentences // it.examples for it in steps}
    assert seen == {"triplets.csv": 3, "qa.jsonl": 2, "text.txt": 2, "pairs.tsv": 2}

    parts = prepare(loaded, torch.device("cpu"))
    encoder, alone = parts.encoder.train(), {}
    own = [("simcse", {"head": "none"}), ("esimcse", {"queue": 6}), ("scored_pairs", {})]
    for (kind, how), name in zip(own, ("triplets.csv", "text.txt", "pairs.tsv"), strict=True):
        alone[name] = build(kind, how, width=16, data_views=seen[name], encoder=encoder).train()
        alone[name].load_state_dict(parts.objectives[name].state_dict())
    weights = loop.trainable_parameters(encoder, *alone.values())
    optimizer = torch.optim.SGD(weights, lr=loaded.train.learning_rate)
    torch.manual_seed(1)
    for step, batch, expected in zip(steps, batches, found, strict=True):
        optimizer.zero_grad()
        objective = alone.get(step.source, alone["triplets.csv"])  # pairs share that of triplets
        loss = sum(objective(encoder(batch), batch).values())
        loss.backward()
        assert loss.item() == pytest.approx(step.loss, rel=1e-5)
        atol = 1e-5 * float(expected.nan_to_num().norm())
        torch.testing.assert_close(gradient(weights), expected, rtol=0, atol=atol, equal_nan=True)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        alone["text.txt"].after_step()


def test_text_that_one_source_holds_out_is_in_no_other(recipe, tmp_path):
    lines = [f"{sentence(n, 9)} {n}" for n in range(600)]
    rows = [{"anchor": f"what of {n}", "positive": lines[n]} for n in range(599, -1, -1)]
    files = [write(tmp_path / "lines.txt", lines)]
    files += [write(tmp_path / "qa.jsonl", map(json.dumps, rows))]
    files += [write(tmp_path / "few.txt", lines[:300:3])]
    whole = {file.name: open_examples(str(file)) for file in files}
    dev, _, rests = tasks_of(recipe(evaluation__task="held-out"), whole)
    assert len(dev.suite.tasks("retrieval")) == 2
    trained = {name: set(open_examples(str(path))) for name, (_, path) in rests.items()}
    out = {line for line in lines if (line,) not in trained["lines.txt"]}
    asked = {row["positive"] for row in rows if tuple(row.values()) not in trained["qa.jsonl"]}
    assert out == asked and [count for count, _ in rests.values()] == [60, 60, 0]
    assert trained["few.txt"] == {(line,) for line in lines[:300:3] if line not in out}
    assert 60 < len(out) <= 120


def test_a_source_alone_is_what_a_file_is(recipe, tmp_path, triplet_file, caplog):
    alone = train(recipe("sup-simcse", data__file=[f"{triplet_file}:0.5"]), tmp_path / "list")
    assert "is the only source, so its weight does nothing" in caplog.text
    plain = train(recipe("sup-simcse", data__file=str(triplet_file)), tmp_path / "file")
    assert weights(alone.last.parent) == weights(plain.last.parent)


def test_every_source_has_its_own_targets(recipe, trained, tmp_path, triplet_file, text_file):
    teacher = trained(train__max_steps=2, folder="teacher", data__file=str(text_file)).last
    still = {"train__learning_rate": 1e-12, "encoder__pooler": "cls"}
    alike = {"encoder__name": str(teacher), "objective__teacher": str(teacher), **still}
    sources = [str(triplet_file), f"{text_file}:0.5"]
    steps = []
    loaded = recipe("distil", data__file=sources, data__max_tokens=32, **alike)
    train(loaded, tmp_path / "run", on_step=steps.append)
    assert {it.sentences // it.examples for it in steps} == {3, 1}
    assert all(it.measures["teacher_cosine"] > 0.9999 for it in steps)


def test_a_weight_is_a_number_behind_the_last_colon(tmp_path):
    (tmp_path / "odd:0.5").write_text("")
    given = {
        "a.csv:0.3": ("a.csv", 0.3),
        r"C:\text\a.csv:2": (r"C:\text\a.csv", 2),
        r"D:\text\a.csv": (r"D:\text\a.csv", None),
        "s3://bucket/folder:1e-1": ("s3://bucket/folder", 0.1),
        "org/name:config": ("org/name:config", None),
        "org/name:config@train:3": ("org/name:config@train", 3),
        str(tmp_path / "odd:0.5"): (str(tmp_path / "odd:0.5"), None),
    }
    for text, expected in given.items():
        file = [{"file": "other", "weight": 0.01 if expected[1] is None else 1}, text]
        read = load_recipe("unsup-simcse", {"data.file": file}).data.sources.values()
        assert (it := list(read)[1]) and (it.file, it.weight) == expected


def test_what_one_source_lacks_is_told_with_its_name(recipe, tmp_path, triplet_file, text_file):
    def said(name="sup-simcse", **settings):
        with pytest.raises(ContrasentError) as error:
            train(recipe(name, **settings), tmp_path / "run")
        assert not (tmp_path / "run").exists()
        return str(error.value)

    both = [str(triplet_file), str(text_file)]
    assert said(data__file=both).startswith("text.txt: the objective simcse takes pairs here")
    pairs = {"file": str(triplet_file), "columns": ["sent0", "sent1"], "name": "pairs"}
    three = {"data__file": [str(triplet_file), pairs], "objective__hard_negatives": 1}
    assert "2 (anchor, positive) per example" in said(**three)
    prompted = [{"file": both[1], "prompt": "a: "}, {"file": both[1], "name": "again"}]
    crops = {"data__file": prompted, "view__name": "crop"}
    assert said("unsup-simcse", **crops).startswith("text.txt: the prompt 'a: ' would be edited")
    distil = {"name": "distil", "space": "teacher", "teacher": str(tmp_path / "teacher.npy")}
    np.save(tmp_path / "teacher.npy", np.zeros((40, 16), np.float32))
    for settings in ({"keep_head": True}, distil):
        odd = {"file": str(text_file), "objective": settings}
        assert "changes what is saved" in said("unsup-simcse", data__file=[both[1], odd])
    odd = {"file": str(text_file), "objective": {"quue": 1}}
    assert said(data__file=[both[0], odd]).startswith("unknown setting of 'objective': 'quue'. Did")
    greedy = {"data__file": [f"{both[1]}:1", both[1]], "evaluation__task": "none"}
    assert said("unsup-simcse", **greedy).startswith("text.txt 2: the weights leave it none of")


@pytest.mark.parametrize(
    ("prompt", "each"), [("q: ", ["q: "] * 3), (["q: ", "d: "], ["q: ", "d: ", "d: "])]
)
def test_a_prompt_is_text_before_the_sentence(
    prompt, each, recipe, tmp_path, triplet_file, text_file
):
    rows = [line.split(",") for line in triplet_file.read_text().splitlines()[1:]]
    lines = [",".join(map("".join, zip(each, row, strict=True))) for row in rows]
    by_hand = write(tmp_path / "hand.csv", ["sent0,sent1,hard_neg", *lines])
    given = {"file": str(triplet_file), "prompt": prompt, "name": "x"}
    other = str(text_file)
    kept = []
    for first in (given, {"file": str(by_hand), "name": "x"}):
        loaded = recipe(data__file=[first, other], evaluation__task="none")
        train(loaded, tmp_path / f"{len(kept)}")
        kept.append(logged_losses(tmp_path / f"{len(kept)}"))
    assert kept[0] == kept[1]


def test_several_files_from_the_command_line_and_from_python(desk, tiny_bert):
    write(desk / "more.txt", [sentence(n, 6) for n in range(30)])
    write(desk / "text.txt", [sentence(n, 4) for n in range(30)])
    how = ["--encoder", str(tiny_bert), "--max-steps", "4", "--batch-size", "8"]
    how += ["--evaluation.task", "none", "--evaluation.final", "none"]
    more = "{file: more.txt, weight: 0.25, objective: {name: esimcse, queue: 9}}"
    worked("train", "unsup-simcse", "--data", "text.txt", "--data", more, *how)
    run = desk / "runs" / "unsup-simcse"
    own = load_recipe(run / "recipe.yaml").data.sources["more.txt"].objective
    assert (own["name"], own["queue"], own["momentum"]) == ("esimcse", 9, 0.995)
    assert "trained with simcse, esimcse" in (run / "last" / "README.md").read_text()
    kept = json.loads((run / "data.json").read_text())["sources"]
    assert {name: it["batches"] for name, it in kept.items()} == {"text.txt": 6, "more.txt": 2}
    data = {"rows": [sentence(n) for n in range(30)]}
    result = contrasent.train(
        data={**data, "file": {"file": "more.txt", "weight": 0.25}},
        encoder=str(tiny_bert),
        output="python",
        max_steps=4,
        batch_size=8,
        **{"evaluation.task": "none", "evaluation.final": "none"},
    )
    kept = json.loads((result.last.parent / "data.json").read_text())["sources"]
    assert {name: it["batches"] for name, it in kept.items()} == {"rows": 6, "file": 2}


TEXT = [sentence(n, 3 + n % 6) for n in range(40)]
PAIRS = [(sentence(n), sentence(n, 4)) for n in range(40)]
LABELS = ["entailment", "neutral", "contradiction"]
LABELLED = [
    {"premise": a, "hypothesis": b, "label": LABELS[n % 3]} for n, (a, b) in enumerate(PAIRS)
]


def of_dataset():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"anchor": [a for a, _ in PAIRS], "positive": TEXT})


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("unsup-simcse", lambda: iter(TEXT), "1 sentence per line"),
        ("sup-simcse", lambda: PAIRS, "anchor"),
        ("sup-simcse", of_dataset, "anchor"),
        ("nli-softmax", lambda: LABELLED, "premise"),
    ],
    ids=["strings", "tuples", "a datasets.Dataset", "mappings"],
)
def test_data_in_memory_is_trained_on_and_resumed(name, rows, columns, recipe, tmp_path):
    loaded = recipe(name, train__max_steps=4, data__max_tokens=32)
    steps, evaluations = [], []
    result = train(
        loaded,
        tmp_path / "run",
        data=rows(),
        on_step=steps.append,
        on_evaluation=lambda it: evaluations.append((it.step, it.score)),
    )
    assert [step.number for step in steps] == [0, 1, 2, 3]
    assert evaluations[-1][0] == 4 and dict(evaluations)[result.best_step] == result.best_score
    kept = json.loads((tmp_path / "run" / "data.json").read_text())
    assert kept["examples"] == 40 and columns in kept["columns"]
    assert train(loaded, tmp_path / "run", data=rows(), resume=True) is None
    with pytest.raises(ConfigError, match=r"cannot be resumed .*: data.file is .* there, .* now"):
        train(loaded, tmp_path / "run", data=TEXT[:20], resume=True)


@pytest.mark.parametrize(("at", "answer", "steps"), [(0, True, 1), (2, np.True_, 2), (2, 1.0, 4)])
def test_an_evaluation_ends_a_run_where_true_is_answered(at, answer, steps, recipe, tmp_path):
    made, settings = [], {"train__max_steps": 4, "evaluation__every": 2}
    answers = {"on_step": made.append, "on_evaluation": lambda it: it.step == at and answer}
    result = train(recipe("unsup-simcse", **settings), tmp_path / "run", data=TEXT, **answers)
    assert len(made) == steps and result.last.is_dir()


def test_rows_and_columns_that_are_left_out_are_told(recipe, tmp_path, caplog):
    rows = [("a", "b", "c"), ("d", "", "e"), ("f", "g", "h")] * 8
    train(recipe("unsup-simcse", train__max_steps=1), tmp_path / "run", data=rows)
    warned = " ".join(it.getMessage() for it in caplog.records if it.levelname == "WARNING")
    assert "only 2 are read" in warned and "8 rows with an empty sentence" in warned
    kept = json.loads((tmp_path / "run" / "data.json").read_text())
    assert kept["examples"] == 16 and "8 rows with an empty sentence" in kept["left_out"]


def test_strings_are_lines_and_empty_ones_end_documents(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path))
    path = keep_rows(["a dog\nruns", "a b", "", "c"])
    assert path.read_text() == "a dog runs\na b\n\nc\n"
    assert keep_rows(iter(["a dog\nruns", "a b", "", "c"])) == path != keep_rows(["a dog runs"])
    assert json.loads(keep_rows([("caf\u00e9", "b")]).read_text()) == ["caf\u00e9", "b"]
    assert not [path for path in (tmp_path / "rows").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a", ("b", "c")], r"row 2 of the data, \('b', 'c'\), cannot be written"),
        ([{"text": {1, 2}}], "row 1 of the data, .* cannot be written: .*; give strings, "),
        ([("a", "b \ud800")], "row 1 of the data, .* cannot be written: .* surrogates"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_kept_are_explained(rows, message):
    with pytest.raises(DataError, match=message):
        keep_rows(rows)
