"""Which configs and splits a data set on the Hugging Face hub has, found by their usual names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contrasent.data.hub import Dataset, dataset_parts
from contrasent.errors import DataError

SPLIT_NAMES = {
    "train": ("train",),
    "dev": ("dev", "validation", "valid", "val"),
    "test": ("test",),
}
"""What data sets call their splits."""

_RELEVANCE = ("default", "qrels")


def labelled_splits(source: str) -> tuple[str, ...]:
    """Train, dev (if there is one) and test split of a data set that is named without a split.

    Returns:
        Their sources, ``org/name[:config]@split``; none for a file, a source with a split, or a
        data set without a train or a test split.

    Raises:
        DataError: the data set cannot be reached.
        MissingExtraError: ``datasets`` is not installed.
    """
    parts = None if Path(source).exists() else dataset_parts(source)
    if parts is None or parts["split"]:
        return ()
    there = Dataset(source, parts).splits(parts["config"])
    found = [_split(there, wanted) for wanted in SPLIT_NAMES]
    if not found[0] or not found[-1]:
        return ()
    return tuple(f"{source}@{split}" for split in found if split)


def retrieval_sources(source: str, split: str) -> tuple[str, ...]:
    """Queries, documents and relevance of a data set laid out as BEIR's or MTEB's.

    Queries and documents are the configs ``queries`` and ``corpus``. Relevance is the config
    ``default`` or ``qrels``, or a data set of its own, ``org/name-qrels``. With
    ``org/name:de``, the configs are ``de-queries``, ``de-corpus`` and ``de-qrels``.

    Args:
        source: ``org/name`` or ``org/name:prefix``.
        split: ``train``, ``dev`` or ``test``, of the relevance.

    Returns:
        Three sources, ``org/name:config@split``.

    Raises:
        DataError: the data set cannot be reached, or is laid out in another way.
        MissingExtraError: ``datasets`` is not installed.
    """
    parts = dataset_parts(source)
    if parts is None or parts["split"]:
        raise DataError(
            f"{source} is neither a folder nor a data set of retrieval on the hub (org/name); a "
            "split is chosen with --splits"
        )
    name, prefix = parts["name"], parts["config"]
    dataset = Dataset(source, parts)
    configs = dataset.configs()

    def config(*known: str) -> str | None:
        named = [f"{prefix}-{each}" if prefix else each for each in known]
        return next((each for each in named if each in configs), None)

    queries, corpus = config("queries"), config("corpus")
    if queries is None or corpus is None:
        raise DataError(
            f"{source} has the configs {', '.join(configs)}; a data set of retrieval has queries "
            "and corpus, as BEIR's; or name three sources: retrieve:QUERIES+DOCUMENTS+RELEVANCE"
        )
    texts = [f"{name}:{each}@{_texts_split(dataset, each)}" for each in (queries, corpus)]
    relevance = config(*_RELEVANCE)
    judged = name if relevance else f"{name}-qrels"
    if not relevance:
        dataset = _dataset(judged)
    chosen = f":{relevance}" if relevance else ""
    return (*texts, f"{judged}{chosen}@{_relevance_split(dataset, relevance, split)}")


def _dataset(name: str) -> Dataset:
    parts = dataset_parts(name)
    if parts is None:
        raise DataError(f"{name} is no data set of the hub; a file or folder has that name")
    return Dataset(name, parts)


def _texts_split(dataset: Dataset, config: str) -> str:
    """The only split of a config of texts, or the one that is named as it."""
    there = dataset.splits(config)
    if len(there) == 1:
        return there[0]
    called = config.rpartition("-")[2]
    if called in there:
        return called
    raise DataError(
        f"config {config} of {dataset.source} has the splits {', '.join(there)}; one is expected"
    )


def _relevance_split(dataset: Dataset, config: str | None, split: str) -> str:
    there = dataset.splits(config)
    found = _split(there, split)
    if found is None:
        raise DataError(
            f"{dataset.source} has relevance for {', '.join(there)}, not for {split}; choose with "
            "--splits"
        )
    return found


def _split(there: Sequence[str], wanted: str) -> str | None:
    return next((name for name in SPLIT_NAMES[wanted] if name in there), None)
