"""Everything that a report may show, made up, of three rows of two encoders."""

import numpy as np

from contrasent.evaluation.geometry import Geometry, Group, Trajectory
from contrasent.evaluation.neighbours import Neighbour, Neighbours, Query
from contrasent.evaluation.protocols import preset_named
from contrasent.evaluation.sts_data import Position
from contrasent.evaluation.task_names import STS, TRANSFER
from contrasent.records import Compared, Interval, Record
from contrasent.report.contents import Contents

NASTY = "<script>alert('a & b')</script>"
ROWS = (("org/alpha", "mean"), ("org/alpha", "cls"), ("runs/beta", "mean"))
LABELS = ("alpha (mean)", "alpha (cls)", "beta")
VERSIONS = {"python": "3.11.2", "torch": "2.13.0"}


def record(**changes):
    known = {"task": "stsb", "split": "test", "metric": "spearman", "aggregation": "all"}
    known |= {"value": 0.5, "pairs": 10, "encoder": "org/alpha", "pooler": "mean", "head": "none"}
    known |= {"max_tokens": 32, "precision": "fp32", "data_sha256": "0" * 64}
    return Record(**{**known, "versions": VERSIONS, **changes})


def interval(value):
    return Interval(
        low=value - 0.02, high=value + 0.0123456, error=0.01, confidence=0.95, resamples=500, seed=0
    )


def compared(baseline="org/alpha"):
    sure = interval(-0.04)
    return Compared(
        baseline=baseline, difference=-0.0412345, interval=sure, p_value=0.01, p_holm=0.07, tests=7
    )


def similarity(draw, used):
    found = []
    for task in STS:
        for metric in ("spearman", "pearson"):
            for aggregation in ("all", "mean", "wmean"):
                value = float(draw.uniform(0.2, 0.9))
                plain = (metric, aggregation) == ("spearman", "all")
                told = {"protocol": "simcse", "interval": interval(value)} if plain else {}
                of = {"task": task, "metric": metric, "aggregation": aggregation}
                found.append(record(value=value, **of, **told, **used))
        part = {"task": task, "subset": "part", "aggregation": "subset"}
        found.append(record(value=float(draw.uniform(0.2, 0.9)), **part, **used))
    return found


def transfer(draw, used):
    how = preset_named().described()
    of = {"metric": "accuracy", "classifier": how, **used}
    found = [record(task=it, value=float(draw.uniform(0.5, 0.9)), **of) for it in TRANSFER]
    return [*found, record(task="mrpc", metric="f1", value=0.8, classifier=how, **used)]


def retrieval(draw, used):
    metrics = ("recall@1", "recall@5", "recall@10")
    return [
        record(task="stsb-retrieval", metric=metric, value=float(draw.uniform()), **used)
        for metric in metrics
    ]


def geometry(draw, used, pairs="stsb-dev>4"):
    numbers = {"alignment": draw.uniform(), "uniformity": -2 * draw.uniform()}
    numbers |= {"mean_cosine": 0.1, "partition_ratio": 0.8, "spearman": draw.uniform()}
    return Geometry(
        records=tuple(
            record(split="dev", subset=">4", metric=name, value=float(value), **used)
            for name, value in numbers.items()
        ),
        pairs=pairs,
        source="STS-B dev",
        rated=100,
        sentences=150,
        spectrum=np.sort(draw.uniform(size=8))[::-1],
        groups=tuple(Group(k, k + 1, draw.uniform(-0.2, 1, size=20)) for k in range(5)),
    )


def neighbours(draw, used, queries=3, corpus="corpus.txt"):
    found = tuple(
        Query(
            text=f"query q{number}",
            left_out=(),
            nearest=tuple(
                Neighbour(text=f"sentence {row}", score=float(0.9 - 0.1 * place), row=int(row))
                for place, row in enumerate(draw.choice(9, size=4, replace=False))
            ),
        )
        for number in range(queries)
    )
    sizes = {"sentences": 10, "distinct": 9, "top_k": 4, "corpus_sha256": "1" * 64}
    known = {"head": "none", "max_tokens": 32, "precision": "fp32", "versions": VERSIONS}
    files = {"corpus": corpus, "columns": "a sentence a line", "asked": "q.txt"}
    return Neighbours(**known, **sizes, **files, queries=found, **used)


def run(label="run", pairs="stsb-dev>4"):
    positions = (Position(0.2, -1.5), Position(0.25, -2.0), Position(0.3, -2.4))
    return Trajectory(label, pairs, (0, 10, 20), positions)


def contents(**changes):
    draw = np.random.default_rng(0)
    used = [{"encoder": encoder, "pooler": pooler} for encoder, pooler in ROWS]
    records = [it for of in used for by in (similarity, transfer, retrieval) for it in by(draw, of)]
    made = {
        "records": tuple(records),
        "geometries": tuple(geometry(draw, of) for of in used),
        "runs": (run(),),
        "neighbours": tuple(neighbours(draw, of) for of in used),
        "command": "contrasent analyze --from 'a file.jsonl' --html r.html",
    }
    return Contents(**{**made, **changes})
