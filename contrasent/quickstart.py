"""The whole way on shipped text: train, score before and after, index, search. No network.

The text is Wikipedia articles, and the job to find sentences of the same article: what the offline
encoder was not trained for, and a few hundred articles without labels improve.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from textwrap import shorten

from contrasent.errors import ConfigError
from contrasent.evaluation.compare import Gain
from contrasent.files import refuse_existing, write_text
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import OFFLINE_NAMES, offline_folder
from contrasent.recipe import load_recipe
from contrasent.records import Record
from contrasent.search.index import Index
from contrasent.search.storage import Hit
from contrasent.training.run import train

ENCODER = OFFLINE_NAMES[0]
"""The name of the encoder it starts from."""

RECIPE = "unsup-simcse"
SETTINGS = {"view.name": "next_sentence"}
"""Settings of the recipe that are other than its own."""

QUERIES = (
    "A storm destroyed houses and left people without power",
    "children learning their first words",
    "how steel is made easier to cut",
)
TOP_K = 3

_DATA = Path(str(files("contrasent") / "quickstart_data"))
TEXT = _DATA / "wikipedia.txt"
SEARCH = _DATA / "wikipedia_search"
PAIRS = _DATA / "stack_exchange_pairs.tsv"

_SHOWN = 120
_WRITTEN = ("run", "index", "results.json")
_JOBS = {
    "ndcg@10": "search: sentences of the same article, nDCG@10",
    "spearman": "other text: rated Stack Exchange pairs, Spearman",
}


@dataclass(frozen=True, slots=True)
class QuickstartResult:
    """The outcome."""

    encoder: Path  # folder of the trained encoder
    index: Path  # folder of the index over the training text
    steps: int  # updates made
    before: list[Record]  # of the start as it comes
    after: list[Record]  # of the trained encoder
    gains: list[Gain]  # what training changed on each task, with its interval
    hits: dict[str, list[Hit]]  # the nearest sentences to each of :data:`QUERIES`


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
    if output.is_dir():
        foreign = sorted(path.name for path in output.iterdir() if path.name not in _WRITTEN)
        if foreign:
            raise ConfigError(
                f"{output} holds {foreign[0]}, which no quickstart wrote; name another --output"
            )
        if overwrite:
            shutil.rmtree(output)
    refuse_existing(output, "name another folder with --output, or replace it with --overwrite")
    # The tasks select nothing, so that the scores after training are those of unseen text.
    tasks = {"evaluation.task": "none", "evaluation.final": f"{SEARCH},{PAIRS}"}
    settings = {"encoder.name": str(start), "data.file": str(TEXT), **SETTINGS, **tasks}
    texts = [line for line in TEXT.read_text(encoding="utf-8").splitlines() if line]
    tell(f"1/2 training {ENCODER} on {len(texts)} sentences of Wikipedia articles, no labels")
    recipe = load_recipe(RECIPE, settings)
    result = train(recipe, output / "run", device=device, show_progress=show_progress)
    if result is None:
        raise ConfigError(f"{output / 'run'} holds a complete run; name another --output")
    tell("2/2 indexing the sentences with it, and searching them")
    encoder = SentenceEncoder.load(result.last, device=device)
    index = Index.build(encoder, texts, output / "index", show_progress=show_progress)
    outcome = QuickstartResult(
        encoder=result.last,
        index=index.folder,
        steps=result.steps,
        before=result.before,
        after=result.after,
        gains=result.scores.gains,
        hits=dict(zip(QUERIES, index.search(encoder, QUERIES, TOP_K), strict=True)),
    )
    write_text(output / "results.json", json.dumps(asdict(outcome), indent=2, default=str) + "\n")
    return outcome


def score(records: list[Record], metric: str) -> float:
    """The score of the one task that has a metric of :data:`_JOBS`."""
    return next(r.value for r in records if r.metric == metric)


def summary(outcome: QuickstartResult, output: Path) -> str:
    """The scores, the hits, and what to do next, to be printed."""
    lines = [
        f"\n{ENCODER} as it comes, and after {outcome.steps} steps (x 100, fp32)\n",
        f"{'':<50}{'before':>8}{'after':>8}{'change':>8}",
    ]
    for metric, job in _JOBS.items():
        before, after = (100 * score(each, metric) for each in (outcome.before, outcome.after))
        lines.append(f"{job:<50}{before:>8.2f}{after:>8.2f}{after - before:>+8.2f}")
    lines += ["", *(gain.sentence for gain in reversed(outcome.gains))]
    lines.append("One run; the tasks had no part in it. What helps one job may cost another.")
    for query, hits in outcome.hits.items():
        lines.append(f"\nNearest to: {query}")
        lines += [f"  {h.score:.3f}  {shorten(h.text, _SHOWN, placeholder=' ...')}" for h in hits]
    index, encoder = shlex.quote(str(outcome.index)), shlex.quote(str(outcome.encoder))
    lines.append(f"""
{output} holds the run, the index, and results.json. Next:
  contrasent search {index} "something else"
  contrasent similarity {encoder} "a sentence" "another sentence"
  contrasent adapt {ENCODER} --data documents.txt --minutes 10 --output runs/mine
The encoder is a sentence-transformers folder:
  SentenceTransformer({str(outcome.encoder)!r}).encode(["a sentence"])""")
    return "\n".join(lines)
