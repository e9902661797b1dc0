"""MTEB runs our encoders: on tasks with local data, against our own scores of the same text."""

import json
import os

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tiny_models import SENTENCES

from contrasent import evaluate
from contrasent.errors import ConfigError
from contrasent.evaluation.mteb_encoder import MtebEncoder, mteb_tasks, run_mteb
from contrasent.files import write_text
from contrasent.metrics import relevant_ranks, retrieval_score
from contrasent.records import read_records

# Other people's packages may warn.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("mteb")]

PAIRS = [(a, b) for a in SENTENCES for b in SENTENCES if a != b]
GOLD = [round(float(x), 1) for x in np.random.default_rng(0).uniform(0, 5, len(PAIRS))]


@pytest.fixture(scope="module")
def mteb(tmp_path_factory):
    """The package, with its cache of results out of the way."""
    os.environ.setdefault("MTEB_CACHE", str(tmp_path_factory.mktemp("mteb")))
    return pytest.importorskip("mteb", reason="needs the extra mteb")


def described(kind, score, **changes):
    """The metadata of a known task, of one whose data is local."""
    import mteb

    known = mteb.get_task({"STS": "STS12", "Retrieval": "NFCorpus"}[kind]).metadata
    given = {
        "name": f"Local{kind}",
        "main_score": score,
        "dataset": {"path": f"local/{kind.lower()}", "revision": "r1"},
        "eval_splits": ["test"],
        "eval_langs": ["eng-Latn"],
        "prompt": None,
    }
    return known.model_copy(update={**given, **changes})


def sts_task(pairs=PAIRS, gold=GOLD, languages=None):
    from datasets import Dataset
    from mteb.abstasks import AbsTaskSTS

    first, second = map(list, zip(*pairs, strict=True))
    rows = {"sentence1": first, "sentence2": second, "score": list(gold)}
    half = len(gold) // 2
    parts = {
        "default": rows,
        "en": {name: column[:half] for name, column in rows.items()},
        "fr": {name: column[half:] for name, column in rows.items()},
    }
    wanted = ["default"] if languages is None else [*languages]
    given = {} if languages is None else {"eval_langs": languages}

    class Task(AbsTaskSTS):
        metadata = described("STS", "cosine_spearman", **given)

        def load_data(self, **_):
            self.dataset = {name: {"test": Dataset.from_dict(parts[name])} for name in wanted}
            self.data_loaded = True

    return Task()


CORPUS = [f"{sentence} {word}" for sentence in SENTENCES for word in ("stone", "music")]
RELEVANT = [[3, 5], [0], [7, 8, 13], [11]]


def retrieval_task():
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval

    class Task(AbsTaskRetrieval):
        metadata = described("Retrieval", "ndcg_at_10")

        def load_data(self, **_):
            documents = [{"id": f"d{n}", "title": "", "text": it} for n, it in enumerate(CORPUS)]
            queries = [{"id": f"q{n}", "text": it} for n, it in enumerate(SENTENCES[:4])]
            relevant = {f"q{n}": {f"d{d}": 1 for d in it} for n, it in enumerate(RELEVANT)}
            texts = {"corpus": Dataset.from_list(documents), "queries": Dataset.from_list(queries)}
            split = {**texts, "relevant_docs": relevant, "top_ranked": None}
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Task()


def only(records, metric):
    (found,) = (record for record in records if record.metric == metric)
    return found


def own_scores(encoder, folder, pairs=PAIRS, gold=GOLD):
    """Our own scores of the same text."""
    path = folder / "pairs.tsv"
    rows = [f"{a}\t{b}\t{score}\n" for (a, b), score in zip(pairs, gold, strict=True)]
    path.write_text("".join(rows))
    found = evaluate(encoder, [str(path)])
    return {it.metric: it.value for it in found if it.aggregation == "all"}


def test_sts_of_mteb_is_ours_on_the_same_text(mteb, tiny_encoder, tmp_path):
    found = run_mteb(MtebEncoder(tiny_encoder), [sts_task()])
    assert found.problems == ()
    own = own_scores(tiny_encoder, tmp_path)
    for metric, value in own.items():
        for name in (metric, f"cosine_{metric}"):
            assert only(found.records, name).value == pytest.approx(value, abs=1e-6)
    assert abs(own["spearman"]) > 0.01
    main = only(found.records, "cosine_spearman")
    assert (main.task, main.split, main.subset, main.aggregation) == ("LocalSTS", "test", "", "all")
    assert (main.pairs, main.protocol) == (len(PAIRS), "mteb")
    assert (main.pooler, main.head, main.precision, main.max_tokens) == ("cls", "none", "fp32", 64)
    assert (main.versions["mteb"], main.versions["local/sts"]) == (mteb.__version__, "r1")
    assert {it.protocol for it in found.records if it is not main} == {None}
    assert not {"main_score", "languages"} & {it.metric for it in found.records}


def test_of_several_subsets_the_mean_is_the_main_score(tiny_encoder, tmp_path):
    task = sts_task(languages={"en": ["eng-Latn"], "fr": ["fra-Latn"]})
    records = run_mteb(MtebEncoder(tiny_encoder), [task]).records
    half = len(PAIRS) // 2
    own = [
        own_scores(tiny_encoder, tmp_path, PAIRS[part], GOLD[part])["spearman"]
        for part in (slice(None, half), slice(half, None))
    ]
    of_subsets = [it for it in records if it.metric == "cosine_spearman" and it.subset]
    assert [(it.subset, it.aggregation, it.pairs) for it in of_subsets] == [
        ("en", "subset", half),
        ("fr", "subset", len(PAIRS) - half),
    ]
    assert [it.value for it in of_subsets] == pytest.approx(own, abs=1e-6)
    (mean,) = (it for it in records if it.protocol == "mteb")
    assert (mean.aggregation, mean.subset, mean.pairs) == ("mean", "", len(PAIRS))
    assert mean.value == pytest.approx(sum(own) / 2, abs=1e-6)


def test_retrieval_of_mteb_is_a_ranking_by_cosine(tiny_encoder):
    found = run_mteb(MtebEncoder(tiny_encoder), [retrieval_task()])
    assert found.problems == ()
    queries, documents = (
        tiny_encoder.encode(texts, precision="fp32", normalize=True)
        for texts in (SENTENCES[:4], CORPUS)
    )
    ranked = [
        relevant_ranks(cosines, relevant, [1] * len(relevant))
        for cosines, relevant in zip(queries @ documents.T, RELEVANT, strict=True)
    ]
    expected = np.mean([retrieval_score("ndcg@10", *it) for it in ranked])
    main = only(found.records, "ndcg_at_10")
    assert main.value == pytest.approx(expected, abs=1e-4)  # MTEB rounds to five digits
    assert (main.pairs, main.protocol, main.prompts) == (4, "mteb", None)
    tiny_encoder.prompts = {"query": "find: ", "document": ""}
    records = run_mteb(MtebEncoder(tiny_encoder), [retrieval_task(), sts_task()]).records
    assert only(records, "ndcg_at_10").prompts == {"query": "find: ", "document": ""}
    assert only(records, "cosine_spearman").prompts is None


def test_a_task_that_fails_costs_itself_only(tiny_encoder):
    broken = sts_task(gold=["bad"] * len(PAIRS))

    class Unreachable(type(sts_task())):
        metadata = described("STS", "cosine_spearman", name="Unreachable")

        def load_data(self, **_):
            raise ConnectionError("no way\nthere")

    found = run_mteb(MtebEncoder(tiny_encoder), [broken, Unreachable(), sts_task()])
    assert only(found.records, "cosine_spearman").task == "LocalSTS"
    assert [problem.task for problem in found.problems] == ["LocalSTS", "Unreachable"]
    assert "MTEB stopped: " in found.problems[0].message
    assert found.problems[1].message == "Unreachable: MTEB stopped: no way"


def test_the_command_prints_and_saves(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr("contrasent.evaluation.mteb_tasks", lambda *_: [sts_task()])
    saved, output = tmp_path / "records.jsonl", tmp_path / "results"
    said = worked(
        *("mteb", tiny_bert, "--tasks", "Local", "--pooler", "mean"),
        *("--json", saved, "--output", output),
    )
    main = next(it for it in read_records(saved) if it.protocol == "mteb")
    lines = said.out.splitlines()
    assert lines[1].split() == ["LocalSTS"]
    assert lines[3].split() == ["bert", f"{100 * main.value:.2f}"]
    assert "bert: pooler mean, head none, fp32, sentences cut at 64 tokens" in said.out
    (own,) = output.rglob("LocalSTS.json")
    (scores,) = json.loads(own.read_text())["scores"]["test"]
    assert scores["main_score"] == pytest.approx(main.value, abs=1e-6)  # MTEB rounds its file
    assert "pooler_mean" in str(own)
    printed = worked("mteb", tiny_bert, "--tasks", "Local", "--pooler", "mean", "--json", "-")
    write_text(tmp_path / "printed.jsonl", printed.out)
    assert read_records(tmp_path / "printed.jsonl") == read_records(saved)


def test_benchmarks_are_known_by_name():
    assert "STS12" in {task.metadata.name for task in mteb_tasks((), "MTEB(eng, v2)")}
    with pytest.raises(ConfigError, match=r"has no MTEB.english"):
        mteb_tasks((), "MTEB(english)")
