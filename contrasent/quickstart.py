"""The whole way on shipped text: train, score before and after, index, search. No network.

The text is Wikipedia articles, and the job to find sentences of the same article: what the offline
encoder was not trained for, and a few hundred articles without labels improve.
"""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from contrasent.files import refuse_existing
from contrasent.model import OFFLINE_NAMES, SentenceEncoder, offline_folder
from contrasent.recipe import load_recipe
from contrasent.search import Hit, Index
from contrasent.training import Result, train

ENCODER = OFFLINE_NAMES[0]

QUERIES = (
    "A storm destroyed houses and left people without power",
    "children learning their first words",
    "how steel is made easier to cut",
)

_DATA = Path(str(files("contrasent") / "quickstart_data"))
TEXT = _DATA / "wikipedia.txt"
SEARCH = _DATA / "wikipedia_search"
PAIRS = _DATA / "stack_exchange_pairs.tsv"


def quickstart(
    output: str | Path,
    *,
    overwrite: bool = False,
    device: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
    show_progress: bool = False,
) -> tuple[Result, dict[str, list[Hit]]]:
    """Train the offline encoder on the shipped sentences; returns the run, and hits by query.

    MissingExtraError if the offline encoder is not installed; CheckpointError if it is not the
    published one; ConfigError if ``output`` exists and is not to be replaced. ``output`` gets
    ``run`` and ``index``, which alone are replaced; ``tell`` is told what comes next.
    """
    output, start = Path(output), offline_folder()
    if not overwrite:
        refuse_existing(output, "name another folder with --output, or replace it with --overwrite")
    # The tasks select nothing, so that the scores after training are those of unseen text.
    tasks = {"evaluation.task": "none", "evaluation.final": f"{SEARCH},{PAIRS}"}
    own = {"view.name": "next_sentence", "encoder.name": str(start), "data.file": str(TEXT)}
    texts = [line for line in TEXT.read_text(encoding="utf-8").splitlines() if line]
    tell(f"1/2 training {ENCODER} on {len(texts)} sentences of Wikipedia articles, no labels")
    how: dict[str, Any] = {"overwrite": overwrite, "show_progress": show_progress}
    recipe = load_recipe("unsup-simcse", own | tasks)
    result: Any = train(recipe, output / "run", device=device, **how)
    tell("2/2 indexing the sentences with it, and searching them")
    encoder = SentenceEncoder.load(result.last, device=device)
    index = Index.build(encoder, texts, output / "index", **how)
    return result, dict(zip(QUERIES, index.search(encoder, QUERIES, 3), strict=True))
