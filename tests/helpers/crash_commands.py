"""Commands that are cut off at every file operation, on data that a second is enough for."""

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from contrasent.recipe import recipes, to_yaml
from helpers.tiny_runs import TINY
from helpers.tiny_sentences import SENTENCES, sentence, write


@dataclass(frozen=True)
class Row:
    """A command, and how a user goes on with it after it was cut off.

    ``again`` is an option for that: ``--resume`` always, ``--overwrite`` where the command itself
    is refused because its output is there. A command that changes an output has done its work if
    the file ``mark`` is what it is then, and is not repeated. ``before`` and ``after`` are
    commands too. ``needs`` is a package.
    """

    name: str
    words: tuple
    again: str = ""
    mark: str = ""
    before: tuple = ()
    after: tuple = ()
    recipe: str = ""
    settings: dict = field(default_factory=dict, hash=False)
    needs: str = "contrasent"


def through(patch, *words):
    """Run a command after a function of this module has made it small."""
    from contrasent.cli.app import main

    with mock.patch.object(sys, "argv", ["contrasent", *map(str, words)]):
        patch()
        main()


def few_steps():
    """A search whose trials take steps, however fast the machine is."""
    from contrasent.adaptation import rungs
    from contrasent.evaluation import proxy

    proxy.FEWEST = 5
    rungs.Rungs._steps = lambda _, names, *__: dict.fromkeys(names, 4 // len(names))


def few_codes():
    """An index of codes that few texts train."""
    import faiss

    from contrasent.search import nearest

    def make(width, _, metric):
        return faiss.index_factory(width, f"PCA{width},IVF2,PQ4x4", metric), 80

    nearest.KINDS["ivfpq"] = replace(nearest.KINDS["ivfpq"], least=40, make=make)


def rows_of_index():
    """What an index holds, in a file: Milvus's own files differ from run to run."""
    from contrasent.search.index import Index

    blocks = Index.open("out").blocks()
    rows = [[*zip(it.ids, it.texts, it.vectors.tolist(), strict=True)] for it in blocks]
    Path("rows.json").write_text(json.dumps(rows))


def small_files():
    """Published files of a few lines."""
    from contrasent.data import senteval

    senteval.TRAINING_FILES["wiki1m"] = "wiki1m_for_simcse.txt", 20


def _words(line):
    return tuple(line.split())


_PAIRS = _words("--evaluation.task pairs.tsv --evaluation.final pairs.tsv")
_ADAPT = _words(
    "adapt bert --data long.txt --output out --minutes 5 --device cpu --candidates dropout,crops "
    "--test pairs.tsv --dev pairs.tsv --train.batch_size 16 --train.precision fp32 "
    "--train.learning_rate 1e-3"
)
_TUNE = _words(
    "tune unsup-simcse --encoder bert --data text.txt --device cpu --batch-size 16 --max-steps 1 "
    "--precision fp32 --output out --space train.learning_rate=1e-4,1e-3"
)
_PRETRAIN = _words(
    "pretrain masked-lm --data text.txt --output out --data.max_tokens 32 --batch-size 16 "
    "--max-steps 2 --precision fp32"
)
_REPRODUCE = ("reproduce", "simcse/T3", "--rows", "dropout 0.5", "--scale", "smoke")
_TRAIN = _words("train recipe.yaml --output out")
_ENCODE = _words("encode bert text.txt --precision fp32 --shard-size 30")
_BUILD = _words("index build bert text.txt out --precision fp32")
_ADD = _words("index add out more.txt")
_MILVUS = (*_BUILD, "--kind", "milvus")
_OUT_OF_MILVUS = ((through, rows_of_index, *_words("index info out")),)
_REMOVE = _words("index remove out 3")
_INDEX = {"mark": "out/manifest.json", "after": (_REMOVE,)}
_FETCH = _words("data fetch wiki1m --data-dir out --url wiki.txt")
_MINE = _words("data mine bert anchors.tsv --corpus text.txt --margin 0 --output out.csv")


def _fit(kind, *more):
    start = "words.txt" if kind == "sif" else "bert"
    return Row(f"fit {kind}", (*_words(f"fit {kind} {start} --data text.txt --output out"), *more))


ROWS = (
    *(Row(f"train {name}", _TRAIN, "--resume", recipe=name) for name in recipes()),
    Row(
        "train twins",
        _TRAIN,
        "--resume",
        recipe="unsup-simcse",
        settings={
            "encoder.encoders": "twin",
            "evaluation.geometry_every": 1,
            "evaluation.geometry_pairs": "pairs.tsv>2",
        },
    ),
    Row("train seeds", (*_TRAIN, "--seeds", "1,2"), "--resume", recipe="unsup-simcse"),
    Row(
        "train overwrite",
        (*_TRAIN, "--overwrite"),
        before=((*_TRAIN, "--seed", 7),),
        recipe="unsup-simcse",
    ),
    Row("pretrain", _PRETRAIN, "--resume"),
    _fit("whitening"),
    _fit("flow", "--levels", 2, "--epochs", 2),
    _fit("sif"),
    Row("adapt", (through, few_steps, *_ADAPT), "--resume"),
    Row("tune", (*_TUNE, *_PAIRS), "--resume"),
    Row("reproduce", (*_REPRODUCE, "--device", "cpu", "--output", "out")),
    Row("encode npy", (*_ENCODE, "out.npy"), "--overwrite"),
    Row("encode parquet", (*_ENCODE, "out.parquet"), "--overwrite"),
    Row("encode shards", (*_ENCODE, "out", "--shards", "npy"), "--overwrite"),
    Row("encode worker", (*_ENCODE, "out.npy", "--shard", "1/1"), after=((*_ENCODE, "out.npy"),)),
    Row(
        "encode workers",
        (*_ENCODE, "out.npy", "--workers", 2),
        after=((*_ENCODE, "out.npy", "--overwrite"),),
    ),
    Row("index build flat", (*_BUILD, "--kind", "flat"), "--overwrite"),
    Row("index build hnsw", (*_BUILD, "--kind", "hnsw"), "--overwrite"),
    Row(
        "index build ivfpq",
        (through, few_codes, *_BUILD, "--kind", "ivfpq"),
        "--overwrite",
        after=((through, few_codes, *_ADD),),
    ),
    Row("index add", _ADD, before=(_BUILD,), **_INDEX),
    Row(
        "index tune",
        _words("index tune out --weight 0.3"),
        before=((*_BUILD, "--no-words"), _ADD),
        **_INDEX,
    ),
    Row("index remove", _words("index remove out 5 8"), before=(_BUILD,), **_INDEX),
    Row(
        "index optimize",
        _words("index optimize out --kind hnsw"),
        before=(_BUILD, _words("index remove out 5"), _ADD),
        **_INDEX,
    ),
    Row("index build milvus", _MILVUS, "--overwrite", after=_OUT_OF_MILVUS, needs="milvus_lite"),
    Row(
        "index add milvus",
        _ADD,
        before=(_MILVUS,),
        mark="out/manifest.json",
        after=(_REMOVE, *_OUT_OF_MILVUS),
        needs="milvus_lite",
    ),
    Row("data fetch", (through, small_files, *_FETCH)),
    Row("data build", _words("data build paraphrases pairs.tsv --output out.csv"), "--overwrite"),
    Row("data mine", _MINE, "--overwrite"),
    Row("export onnx", _words("export bert out --format onnx"), "--overwrite"),
    Row(
        "evaluate",
        _words("evaluate bert --tasks pairs.tsv --json out.jsonl --html out.html --overwrite"),
    ),
    Row(
        "analyze",
        _words(
            "analyze bert --pairs pairs.tsv>2 --json out.jsonl --html out.html --figures figures "
            "--overwrite"
        ),
    ),
)


def prepare(row, folder, starts):
    """Make the folder that a command works in: encoders, text and its recipe."""
    folder.mkdir()
    for name, start in starts.items():
        (folder / name).symlink_to(start)
    (folder / "words.txt").symlink_to(starts["glove"])
    write(folder / "text.txt", SENTENCES[:80])
    write(folder / "long.txt", dict.fromkeys(sentence(n, 12) for n in range(120)))
    write(folder / "more.txt", SENTENCES[100:110])
    write(folder / "wiki.txt", SENTENCES[:20])
    pairs = [f"{sentence(n)}\t{sentence(n + n % 4)}\t{5 - n % 4}" for n in range(24)]
    write(folder / "pairs.tsv", pairs)
    write(folder / "anchors.tsv", [f"{it}\t{it} ." for it in SENTENCES[:20]])
    if row.recipe:
        given = {"train.max_steps": 2, "evaluation.every": 1}
        if row.recipe != "pretrain-mlm":
            given["evaluation.task"] = "pairs.tsv"
        recipe = TINY[row.recipe].load(folder, starts, {**given, **row.settings})
        (folder / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8")
