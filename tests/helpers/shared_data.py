"""Where the real data is that acceptance tests read, and smaller parts of it."""

import os
from pathlib import Path

SHARED = Path(os.environ.get("CONTRASENT_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data" / "senteval"

SEMEVAL = {
    "sts12": "MSRpar MSRvid SMTeuroparl surprise.OnWN surprise.SMTnews",
    "sts13": "FNWN headlines OnWN",
    "sts14": "deft-forum deft-news headlines images OnWN tweet-news",
    "sts15": "answers-forums answers-students belief headlines images",
    "sts16": "answer-answer headlines plagiarism postediting question-question",
}
FILES = {
    "stsb": ("STS/STSBenchmark/sts-test.csv", 0, (5, 6, 4)),
    "sickr": ("SICK/SICK_test_annotated.txt", 1, (1, 2, 3)),
}


def write_some_sts(root, every, whole=None):
    """Write SentEval's STS folder with one in so many pairs of each file, all of ``whole``."""
    paths = {DATA / path: header for path, header, _ in FILES.values()}
    paths[DATA / "STS/STSBenchmark/sts-dev.csv"] = 0
    for task, names in SEMEVAL.items():
        for subset in names.split():
            for kind in ("input", "gs"):
                paths[DATA / f"STS/{task.upper()}-en-test/STS.{kind}.{subset}.txt"] = 0
    for path, header in paths.items():
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [*lines[:header], *lines[header :: 1 if whole and whole in path.name else every]]
        copy = root / path.relative_to(DATA)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(b"".join(kept))
    return root
