"""The whole way on shipped text: train, score before and after, index, search. No network."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from itertools import accumulate, pairwise
from pathlib import Path
from textwrap import shorten

from contrasent.errors import ConfigError
from contrasent.evaluation.compare import Gain, compare, gains
from contrasent.evaluation.embed import EncoderUse, Scores
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.sts import StsTasks
from contrasent.evaluation.sts_data import Subset, Task, load
from contrasent.evaluation.task_names import TaskName
from contrasent.files import refuse_existing, write_text
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import OFFLINE_NAMES, offline_folder
from contrasent.recipe import load_recipe
from contrasent.records import Record
from contrasent.search.index import Index
from contrasent.search.snapshot import Hit
from contrasent.training.run import train
from contrasent.training.scoring import AS_IT_COMES

ENCODER = OFFLINE_NAMES[0]
"""The name of the encoder it starts from."""

RECIPE = "unsup-simcse"
SETTINGS: dict[str, str] = {}
"""Settings of the recipe that are other than its own."""

QUERIES = (
    "A storm destroyed houses and left people without power",
    "children learning their first words",
    "how steel is made easier to cut",
)
TOP_K = 3
PARTS = {"answers-forums": 375, "answer-answer": 254, "question-question": 209}
"""Parts of the shipped pairs, in their order, with the number of their pairs."""

_DATA = Path(str(files("contrasent") / "quickstart_data"))
TEXT = _DATA / "wikipedia.txt"
PAIRS = _DATA / "stack_exchange_pairs.tsv"

_ALL = "all together"
_SHOWN = 120
_WRITTEN = ("run", "index", "results.json")


@dataclass(frozen=True, slots=True)
class QuickstartResult:
    """What came out."""

    encoder: Path  # folder of the trained encoder
    index: Path  # folder of the index over the training text
    steps: int  # updates made
    before: list[Record]  # records of the start as it comes
    after: list[Record]  # records of the trained encoder
    gain: Gain  # the difference over all pairs, with its interval
    hits: dict[str, list[Hit]]  # the nearest sentences to each of `QUERIES`
    seconds: dict[str, float]  # time of each stage


def quickstart(
    output: str | Path,
    *,
    overwrite: bool = False,
    device: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
    show_progress: bool = False,
) -> QuickstartResult:
    """Train the offline encoder on the shipped sentences and use the result.

    MissingExtraError if the offline encoder is not installed; CheckpointError if it is not the
    published one; ConfigError if ``output`` exists and is not to be replaced, or is no
    quickstart's. ``output`` gets ``run``, ``index`` and ``results.json``; ``tell`` is told what
    comes next.
    """
    output = Path(output)
    start = offline_folder()
    _prepare(output, overwrite)
    settings = {**SETTINGS, "encoder.name": str(start), "data.file": str(TEXT)}
    # The pairs select nothing, so that the score after training is that of unseen text.
    recipe = load_recipe(
        RECIPE, {**settings, "evaluation.task": "none", "evaluation.final": "none"}
    )
    texts = TEXT.read_text(encoding="utf-8").splitlines()
    pairs, seconds = StsTasks([_scored_pairs()]), dict[str, float]()

    count = sum(PARTS.values())
    tell(f"1/4 scoring {ENCODER} as it comes on {count} pairs of sentences")
    with _timed(seconds, "score before"):
        before = _score(pairs, start, None, device, show_progress)
    tell(f"2/4 training it on {len(texts)} Wikipedia sentences, no labels (recipe {RECIPE})")
    with _timed(seconds, "train"):
        result = train(recipe, output / "run", device=device, show_progress=show_progress)
    if result is None:
        raise ConfigError(f"{output / 'run'} holds a complete run; name another --output")
    tell("3/4 scoring the trained encoder")
    with _timed(seconds, "score after"):
        after = _score(pairs, result.last, recipe.train.seed, device, show_progress)
        gain = _gain(pairs, before, after)
    tell("4/4 indexing the sentences with it, and searching them")
    with _timed(seconds, "index and search"):
        encoder = SentenceEncoder.load(result.last, device=device)
        index = Index.build(encoder, texts, output / "index", show_progress=show_progress)
        results = index.search(encoder, QUERIES, TOP_K)
    hits = dict(zip(QUERIES, results, strict=True))
    outcome = QuickstartResult(
        encoder=result.last,
        index=index.folder,
        steps=result.steps,
        before=list(before.records),
        after=list(after.records),
        gain=gain,
        hits=hits,
        seconds=seconds,
    )
    write_text(output / "results.json", json.dumps(_described(outcome, output), indent=2) + "\n")
    return outcome


def spearman(records: list[Record], part: str = "") -> float:
    """The correlation on one of :data:`PARTS`, or on all pairs together, in [-1, 1]."""
    wanted = ("spearman", part, "subset" if part else "all")
    return next(r.value for r in records if (r.metric, r.subset, r.aggregation) == wanted)


def summary(outcome: QuickstartResult, output: Path) -> str:
    """The scores, the hits, and what to do next, to be printed."""
    rows = {
        name: (spearman(outcome.before, part), spearman(outcome.after, part))
        for name, part in {**{part: part for part in PARTS}, _ALL: ""}.items()
    }
    lines = [
        f"\nSimilarity of sentences: {ENCODER} as it comes, and after {outcome.steps} steps (fp32)",
        "Spearman correlation x 100 with people's judgement, Stack Exchange pairs of STS15/STS16\n",
        f"{'':<20}{'pairs':>6}{'before':>9}{'after':>9}{'change':>9}",
    ]
    for name, (before, after) in rows.items():
        values = f"{100 * before:>9.2f}{100 * after:>9.2f}{100 * (after - before):>+9.2f}"
        lines.append(f"{name:<20}{PARTS.get(name, sum(PARTS.values())):>6}{values}")
    changes = {name: after - before for name, (before, after) in rows.items() if name != _ALL}
    lines.append("\n" + _verdict(outcome.gain, changes))
    for query, hits in outcome.hits.items():
        lines.append(f"\nNearest to: {query}")
        lines += [f"  {h.score:.3f}  {shorten(h.text, _SHOWN, placeholder=' ...')}" for h in hits]
    index, encoder = shlex.quote(str(outcome.index)), shlex.quote(str(outcome.encoder))
    lines.append(f"""
{output} holds the run (its encoder: {outcome.encoder}), the index, and results.json.
It took {sum(outcome.seconds.values()):.0f} s.

Next, with what is there:
  contrasent search {index} "something else"
  contrasent similarity {encoder} "a sentence" "another sentence"
  contrasent evaluate {ENCODER} {encoder} --compare --tasks {shlex.quote(str(PAIRS))}

Next, with your own text, a sentence per line in sentences.txt:
  contrasent train {RECIPE} --encoder {ENCODER} --data sentences.txt --output runs/mine
  contrasent index build runs/mine sentences.txt my-index
  contrasent search my-index "what you look for"

The encoder is a sentence-transformers folder:
  SentenceTransformer({str(outcome.encoder)!r}).encode(["a sentence"])""")
    return "\n".join(lines)


def _verdict(gain: Gain, changes: dict[str, float]) -> str:
    """What the change over all pairs, and those of its parts, say, in sentences."""
    rounded = {name: round(100 * change, 2) for name, change in changes.items()}
    fell = [f"{name} ({change:+.2f})" for name, change in rounded.items() if change < 0]
    sentences = [
        gain.sentence,
        *([f"The score fell on {', '.join(fell)}."] if fell else ()),
        "This is one run; the pairs had no part in it, not even to choose a step.",
    ]
    return " ".join(sentences)


def _prepare(output: Path, overwrite: bool) -> None:
    if output.is_dir():
        foreign = sorted(path.name for path in output.iterdir() if path.name not in _WRITTEN)
        if foreign:
            raise ConfigError(
                f"{output} holds {foreign[0]}, which no quickstart wrote; name another --output"
            )
        if overwrite:
            shutil.rmtree(output)
    refuse_existing(output, "name another folder with --output, or replace it with --overwrite")


def _scored_pairs() -> Task:
    """The shipped pairs as one task with its parts."""
    task = load(TaskName(str(PAIRS)))
    (whole,) = task.subsets
    ends = [0, *accumulate(PARTS.values())]
    spans = [slice(start, end) for start, end in pairwise(ends)]
    parts = tuple(
        Subset(name, whole.first[span], whole.second[span], whole.gold[span])
        for name, span in zip(PARTS, spans, strict=True)
    )
    return replace(task, subsets=parts)


def _score(
    pairs: StsTasks, folder: Path, seed: int | None, device: str | None, show_progress: bool
) -> Scores:
    encoder = SentenceEncoder.load(folder, device=device)
    return pairs.records(EncoderUse(encoder, seed=seed, show_progress=show_progress))


def _gain(pairs: StsTasks, before: Scores, after: Scores) -> Gain:
    """The difference of the correlations over all pairs, drawn again for both alike."""
    comparison = compare(
        pairs.tasks, before, after, metric="spearman", aggregation="all", bootstrap=Bootstrap()
    )
    (gain,) = gains({AS_IT_COMES: [comparison]})
    return replace(gain, of="all pairs")


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started


def _described(outcome: QuickstartResult, output: Path) -> dict[str, object]:
    places = {"encoder": outcome.encoder, "index": outcome.index}
    return asdict(outcome) | {n: it.relative_to(output).as_posix() for n, it in places.items()}
