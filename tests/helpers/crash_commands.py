"""Commands that are cut off at every file operation, on data that a second is enough for."""

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

from contrasent.recipe import recipes, to_yaml
from helpers.tiny_runs import TINY
from helpers.tiny_sentences import SENTENCES, sentence, write, write_pairs


@dataclass(frozen=True)
class Row:
    """A command, and how a user goes on with it after it was cut off.

    ``again`` is an option for that: ``--resume`` always, ``--overwrite`` where the command itself
    is refused because its output is there. A command that changes an output has done its work if
    the file ``mark`` is what it is then, and is not repeated. ``before`` and ``after`` are
    commands too. ``needs`` is a package. A command is a line, with what makes it small before it.
    With ``is_read`` others read an index at every moment: as it was, or as it is in the end.
    """

    name: str
    words: str | tuple
    again: str = ""
    mark: str = ""
    before: tuple = ()
    after: tuple = ()
    recipe: str = ""
    settings: dict = field(default_factory=dict, hash=False)
    needs: str = "contrasent"
    is_read: bool = False


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
    from contrasent.search import nearest

    def make(faiss, width, _, metric):
        return faiss.index_factory(width, f"PCA{width},IVF2,PQ4x4", metric), 80

    nearest.KINDS["ivfpq"] = replace(nearest.KINDS["ivfpq"], least=40, make=make)


def rows_of_index():
    """What an index holds, in a file: Milvus's own files differ from run to run."""
    from contrasent.search.index import Index

    blocks = Index.open("out").blocks()
    rows = [[*zip(it.ids, it.texts, it.vectors.tolist(), strict=True)] for it in blocks]
    Path("rows.json").write_text(json.dumps(rows))


def whole_index():
    """Print all that a reader of an index sees: its rows, and what a search by words finds."""
    from contrasent.search.index import Index

    index, hits = Index.open("out"), []
    if index.manifest.words:
        hits = index.search(None, ["one two"], 1000, mode="words")[0]
    blocks = [block for block in index.blocks() if len(block.ids)]
    rows = [row for it in blocks for row in zip(it.ids, it.texts, it.vectors.sum(1), strict=True)]
    sys.stdout.write(f"{sorted(map(str, rows))} {sorted(map(str, hits))}")


def change_files():
    """Files of which one is changed, one is removed and one has moved."""
    write(Path("files/a.txt"), SENTENCES[2:6])
    Path("files/b.txt").unlink()
    Path("files/c.txt").rename("files/moved.txt")


def small_files():
    """Published files of a few lines."""
    from contrasent.data import senteval

    senteval.TRAINING_FILES["wiki1m"] = "wiki1m_for_simcse.txt", 20


def _words(command):
    """The words of a line, or of what makes a command small and a line."""
    if isinstance(command, str):
        return tuple(command.split())
    patch, line = command
    return (through, patch, *line.split())


_PAIRS = "--evaluation.task pairs.tsv --evaluation.final pairs.tsv"
_ADAPT = (
    "adapt bert --data long.txt --output out --minutes 5 --device cpu --candidates dropout,crops "
    "--test pairs.tsv --dev pairs.tsv --train.batch_size 16 --train.precision fp32 "
    "--train.learning_rate 1e-3"
)
_TUNE = (
    "tune unsup-simcse --encoder bert --data text.txt --device cpu --batch-size 16 --max-steps 1 "
    f"--precision fp32 --output out --space train.learning_rate=1e-4,1e-3 {_PAIRS}"
)
_PRETRAIN = (
    "pretrain masked-lm --data text.txt --output out --data.max_tokens 32 --batch-size 16 "
    "--max-steps 2 --precision fp32"
)
_REPRODUCE = "reproduce simcse/T3 --rows 0.5 --scale smoke --device cpu --output out"
_TRAIN = "train recipe.yaml --output out"
_ENCODE = "encode bert text.txt --precision fp32 --shard-size 30"
_BUILD = "index build bert text.txt out --precision fp32"
_ADD = "index add out more.txt"
_MILVUS = f"{_BUILD} --kind milvus"
_OUT_OF_MILVUS = ((rows_of_index, "index info out"),)
_REMOVE = "index remove out 3"
_INDEX = {"mark": "out/manifest.json", "after": (_REMOVE,)}
_SYNC = "index sync out files"
_REEMBED = "index reembed out --encoder words.txt"
_TIDY = "index remove out none --missing-ok"
_FETCH = "data fetch wiki1m --data-dir out --url wiki.txt"
_MINE = "data mine bert anchors.tsv --corpus text.txt --margin 0 --output out.csv"
_ANALYZE = "analyze bert --pairs pairs.tsv>2 --json out.jsonl --html out.html --figures figures"
_EVALUATE = "evaluate bert --tasks pairs.tsv --json out.jsonl --html out.html --overwrite"
_TWINS = {"encoder.encoders": "twin", "evaluation.geometry_every": 1}
_TWINS["evaluation.geometry_pairs"] = "pairs.tsv>2"


def _train(name, words="", **more):
    return Row(name, f"{_TRAIN} {words}", **{"recipe": "unsup-simcse", **more})


def _fit(kind, start, more=""):
    return Row(f"fit {kind}", f"fit {kind} {start} --data text.txt --output out {more}")


_ROWS = (
    *(_train(f"train {name}", again="--resume", recipe=name) for name in recipes()),
    _train("train twins", again="--resume", settings=_TWINS),
    _train("train seeds", "--seeds 1,2", again="--resume"),
    _train("train overwrite", "--overwrite", before=(f"{_TRAIN} --seed 7",)),
    Row("pretrain", _PRETRAIN, "--resume"),
    _fit("whitening", "bert"),
    _fit("flow", "bert", "--levels 2 --epochs 2"),
    Row("adapt", (few_steps, _ADAPT), "--resume"),
    Row("tune", _TUNE, "--resume"),
    Row("reproduce", _REPRODUCE),
    Row("encode npy", f"{_ENCODE} out.npy", "--overwrite"),
    Row("encode parquet", f"{_ENCODE} out.parquet", "--overwrite"),
    Row("encode shards", f"{_ENCODE} out --shards npy", "--overwrite"),
    Row("encode worker", f"{_ENCODE} out.npy --shard 1/1", after=(f"{_ENCODE} out.npy",)),
    Row(
        "encode workers",
        f"{_ENCODE} out.npy --workers 2",
        after=(f"{_ENCODE} out.npy --overwrite",),
    ),
    Row("index build flat", f"{_BUILD} --kind flat", "--overwrite"),
    Row("index build hnsw", f"{_BUILD} --kind hnsw", "--overwrite"),
    Row(
        "index build ivfpq",
        (few_codes, f"{_BUILD} --kind ivfpq"),
        "--overwrite",
        after=((few_codes, _ADD),),
    ),
    Row("index add", _ADD, before=(_BUILD,), **_INDEX),
    Row(
        "index tune", "index tune out --weight 0.3", before=(f"{_BUILD} --no-words", _ADD), **_INDEX
    ),
    Row("index remove", "index remove out 5 8", before=(_BUILD,), **_INDEX),
    Row(
        "index sync",
        _SYNC,
        before=(f"{_SYNC} --encoder bert", (change_files, "index info out")),
        after=(_TIDY,),
        is_read=True,
    ),
    Row("index reembed", _REEMBED, before=(_BUILD, _ADD), is_read=True),
    Row(
        "index optimize",
        "index optimize out --kind hnsw",
        before=(_BUILD, "index remove out 5", _ADD),
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
    Row("data fetch", (small_files, _FETCH)),
    Row("data build", "data build paraphrases pairs.tsv --output out.csv", "--overwrite"),
    Row("data mine", _MINE, "--overwrite"),
    Row("export onnx", "export bert out --format onnx", "--overwrite"),
    Row("evaluate", _EVALUATE),
    Row("analyze", f"{_ANALYZE} --overwrite"),
)
ROWS = tuple(
    replace(
        row,
        words=_words(row.words),
        before=tuple(map(_words, row.before)),
        after=tuple(map(_words, row.after)),
    )
    for row in _ROWS
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
    write_pairs(folder / "pairs.tsv")
    (folder / "files").mkdir()
    for place, name in enumerate("abcd"):
        write(folder / f"files/{name}.txt", SENTENCES[4 * place : 4 * place + 4])
    write(folder / "anchors.tsv", [f"{it}\t{it} ." for it in SENTENCES[:20]])
    if row.recipe:
        given = {"train.max_steps": 2, "evaluation.every": 1}
        if row.recipe != "pretrain-mlm":
            given["evaluation.task"] = "pairs.tsv"
        recipe = TINY[row.recipe].load(folder, starts, {**given, **row.settings})
        (folder / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8")
