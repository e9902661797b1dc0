"""Groups of texts that are alike: duplicates, of which one stays, and clusters, which get names.

Shapes: N texts, D width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrasent.data.examples import Rows, keep_rows
from contrasent.encode.shards import manifest_in, open_sentences
from contrasent.encode.vectors import npy_writer
from contrasent.errors import ConfigError, require_extra
from contrasent.files import scratch
from contrasent.model.loading import load_encoder
from contrasent.model.protocol import Encoder, unit_rows
from contrasent.options import ClusterOptions, DuplicatesOptions, GroupedText
from contrasent.search.index import Index
from contrasent.search.mining import letters
from contrasent.search.nearest import nearest
from contrasent.search.words import words
from contrasent.settings import checked, takes

Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]

_BLOCK = 1_024
_NEIGHBOURS, _CHANCE, _FLOOR = 4_096, 0.2, 0.8  # of a threshold that is suggested
_TREE, _MOST = 4_096, 100  # texts of a tree, and clusters of its finest cut
_WORDS, _LIFT, _MAP = 4, 1.5, 2_000


@dataclass(frozen=True, slots=True)
class Groups:
    """N texts, and the groups of some or all of them, the largest first."""

    source: str
    ids: list[str]
    texts: list[str]
    # rows of each group; the first is the duplicate that stays, or nearest to the centre
    groups: Sequence[list[int]] = ()
    names: Sequence[str] = ()  # of each group
    similarity: Vectors | None = None  # ``(N,)``, cosine with the text that stays, or the centre
    chosen: str = ""  # how the threshold, or the number of clusters
    # places of some texts, by row, on a square map (t-SNE, van der Maaten and Hinton 2008)
    places: dict[int, tuple[float, float]] | None = None

    def members(self) -> Iterator[list[dict[str, Any]]]:
        """The texts of each group with their ids and similarity."""
        cosines = [] if self.similarity is None else self.similarity.round(4).tolist()
        for rows in self.groups:
            yield [
                {"similarity": cosines[n], "id": self.ids[n], "text": self.texts[n]} for n in rows
            ]

    def facts(self) -> dict[str, Any]:
        """The groups, as JSON has them."""
        pairs = zip(self.names, self.members(), strict=True)
        groups = [{"name": name, "texts": texts} for name, texts in pairs]
        return {"source": self.source, "chosen": self.chosen, "groups": groups}


@contextmanager
def _embedded(
    text: str | Path | Rows | Index,
    encoder: Encoder | str | Path | None,
    asked: GroupedText,
    show_progress: bool,
) -> Iterator[tuple[Groups, Vectors]]:
    """Texts of a source, and their vectors ``(N, D)`` of length 1, mapped from disk."""
    with ExitStack() as stack:
        folder, ids, texts = Path(stack.enter_context(scratch("groups"))), list[str](), list[str]()
        source = ""
        if isinstance(text, str | Path) and manifest_in(Path(text), "contrasent-index-"):
            text = Index.open(text)
        if not isinstance(text, Index):
            if encoder is None:
                raise ConfigError("name the encoder of the text (--encoder), or give an index")
            file = str(text if isinstance(text, str | Path) else keep_rows(text))
            reading = open_sentences(file, asked.columns, asked.ids, clean=asked.clean)
            sentences = stack.enter_context(reading)
            count, columns = sentences.count(), sentences.examples.columns
            source = f"{sentences.source}: {count:,} texts; {columns}"
            if isinstance(encoder, str | Path):
                encoder = load_encoder(encoder, device=asked.device)
            to = folder / "index", sentences.ids()
            shown: dict[str, Any] = {"show_progress": show_progress}
            text = Index.build(encoder, sentences, *to, kind="flat", words=False, **shown)
        with npy_writer(folder / "rows.npy", text.manifest.encoder.width) as append:
            for block in text.blocks():
                append(unit_rows(np.array(block.vectors, np.float32)), ())
                ids += block.ids
                texts += block.texts
        source = source or f"{text.folder}: {len(texts):,} texts"
        yield Groups(source, ids, texts), np.load(folder / "rows.npy", mmap_mode="r")


def _sample(texts: int, count: int) -> Numbers:
    """Sorted rows of ``count`` texts, or of all."""
    return np.sort(np.random.default_rng(0).permutation(texts)[:count])


def _split(rows: Numbers, labels: Numbers) -> list[list[int]]:
    """Rows of each label, which stand together; the most first."""
    parts = np.split(rows, np.flatnonzero(np.diff(labels[rows])) + 1)
    return sorted((part.tolist() for part in parts if part.size), key=len, reverse=True)


@takes(DuplicatesOptions)
def duplicates(
    text: str | Path | Rows | Index,
    *,
    encoder: Encoder | str | Path | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Groups:
    """Find texts that repeat others, as ``contrasent duplicates`` does.

    In their order, a text stays if no text that stays has the same letters and digits, or a cosine
    of the threshold with it; else it joins the nearest one of these.

    Args:
        text: text as `train` takes it, one in a row, or an index, or its folder.
        encoder: the encoder of a text, or its name.
        show_progress: a progress bar on standard error.
        **options: by name.

    Example:
        >>> contrasent.duplicates("faq.txt", encoder="all-MiniLM-L6-v2").groups  # doctest: +SKIP
    """
    asked = checked(DuplicatesOptions, options)
    with _embedded(text, encoder, asked, show_progress) as (known, vectors):
        places, keys = dict[str, int](), map(letters, known.texts)
        first = np.array([places.setdefault(key, n) for n, key in enumerate(keys)], int)
        distinct = np.unique(first)
        threshold, why = asked.threshold, "as it was given"
        if threshold is None:
            threshold, why = suggested_threshold(vectors, distinct)
        stays, similarity = (it[first] for it in _leaders(vectors, distinct, threshold))
    rows = np.flatnonzero(np.bincount(stays)[stays] > 1)
    groups = _split(rows[np.argsort(stays[rows], kind="stable")], stays)
    names = [known.texts[rows[0]] for rows in groups]
    equal, near = len(first) - len(distinct), len(distinct) - len(np.unique(stays))
    chosen = f"{equal:,} are equal and {near:,} near to others; threshold {threshold:.3f}, {why}"
    return replace(known, groups=groups, names=names, similarity=similarity, chosen=chosen)


def suggested_threshold(vectors: Vectors, distinct: Numbers) -> tuple[float, str]:
    """A cosine that texts without a duplicate rarely have with their nearest neighbour.

    These cosines are taken to be normal, as the lower half of what a sample has is (the empirical
    null of Efron 2004), and at most a fifth of all that are so large to be of these texts
    (Benjamini and Hochberg 1995). It is at least 0.8: of few texts, those of one subject stand out.
    """
    from scipy.stats import norm

    rows = distinct[_sample(len(distinct), _NEIGHBOURS)]
    live, threshold = np.isin(np.arange(len(vectors)), distinct), 1.0
    near = zip(rows, nearest([vectors], vectors[rows], 2, live), strict=True)
    cosines = np.sort([it for row, best in near for other, it in best if other != row])[::-1]
    if len(cosines):
        quartile, median = np.quantile(cosines, (0.25, 0.5))
        deviation = max((median - quartile) / norm.isf(0.25), 1e-3)
        expected = len(cosines) * norm.sf((cosines - median) / deviation)
        rare = cosines[expected <= _CHANCE * np.arange(1, len(cosines) + 1)]
        threshold = max(float(rare[-1]), _FLOOR) if len(rare) else threshold
    return threshold, f"as the nearest neighbours of {len(rows):,} texts suggest"


def _leaders(vectors: Vectors, distinct: Numbers, threshold: float) -> tuple[Numbers, Vectors]:
    """For each text ``(N,)`` the row of the nearest that stays, and their cosine."""
    import faiss

    index, leaders = faiss.IndexFlatIP(vectors.shape[1]), np.empty(0, int)
    stays, similarity = np.arange(len(vectors)), np.ones(len(vectors), np.float32)
    for start in range(0, len(distinct), _BLOCK):
        rows = distinct[start : start + _BLOCK]
        block = vectors[rows]
        best, of = np.full(len(rows), -1.0, np.float32), rows.copy()
        if len(leaders):
            scores, places = index.search(block, 1)
            best, of = scores[:, 0], leaders[places[:, 0]]
        leads, within = best < threshold, np.tril(block @ block.T, -1)
        for n in np.flatnonzero((within >= threshold).any(axis=1)).tolist():
            cosines = np.where(leads, within[n], -1.0)
            leader = int(np.argmax(cosines))
            if cosines[leader] >= threshold and cosines[leader] > best[n]:
                best[n], of[n], leads[n] = cosines[leader], rows[leader], False
        stays[rows[~leads]], similarity[rows[~leads]] = of[~leads], best[~leads]
        leaders = np.concatenate([leaders, rows[leads]])
        index.add(block[leads])
    return stays, np.minimum(similarity, 1)


@takes(ClusterOptions)
def cluster(
    text: str | Path | Rows | Index,
    *,
    encoder: Encoder | str | Path | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Groups:
    """Divide texts into clusters, as ``contrasent cluster`` does.

    They are those of spherical k-means, from the clusters of up to 4,096 texts (Ward 1963).

    Args:
        text: text as `train` takes it, one in a row, or an index, or its folder.
        encoder: the encoder of a text, or its name.
        show_progress: a progress bar on standard error.
        **options: by name.

    Example:
        >>> contrasent.cluster("faq.txt", encoder="all-MiniLM-L6-v2").names  # doctest: +SKIP
    """
    require_extra("cluster", "cluster", "sklearn")
    import faiss
    from scipy.cluster.hierarchy import fcluster, linkage
    from sklearn.manifold import TSNE

    asked = checked(ClusterOptions, options)
    with _embedded(text, encoder, asked, show_progress) as (known, vectors):
        count, clusters, why = len(vectors), asked.clusters, "as many as asked"
        if count <= (clusters or 2):
            raise ConfigError(f"{count} texts are too few for {clusters or 2} clusters")
        sample = _sample(count, _TREE)
        tree = linkage(vectors[sample], "ward")
        if clusters is None:
            clusters, why = _best_cut(tree, vectors[sample])
        parts = fcluster(tree, clusters, "maxclust")
        means = np.stack([vectors[sample[parts == n]].mean(axis=0) for n in np.unique(parts)])
        kmeans = faiss.Kmeans(*means.shape[::-1], spherical=True, min_points_per_centroid=1)
        read = _sample(count, max(_TREE, kmeans.cp.max_points_per_centroid * clusters))
        kmeans.train(vectors[read], init_centroids=unit_rows(means))
        similarity, labels = (it[:, 0] for it in kmeans.index.search(vectors, 1))
        groups = _split(np.lexsort((-similarity, labels)), labels)
        shown = np.union1d(_sample(count, _MAP), [rows[0] for rows in groups])
        drawn = TSNE(metric="cosine", perplexity=min(30.0, len(shown) / 4), random_state=0)
        square = drawn.fit_transform(vectors[shown])
    square = 1000 * (square - square.min(axis=0)) / np.ptp(square, axis=0).max()
    return replace(
        known,
        groups=groups,
        names=_names(known.texts, groups),
        similarity=similarity,
        chosen=f"{len(groups)} clusters, {why}",
        places=dict(zip(shown.tolist(), square.round(1).tolist(), strict=True)),
    )


def _best_cut(tree: Any, vectors: Vectors) -> tuple[int, str]:
    """The number of clusters of a tree of texts with the best silhouette (Rousseeuw 1987)."""
    from scipy.cluster.hierarchy import fcluster
    from sklearn.metrics import silhouette_score

    most, scores = min(_MOST, len(vectors) // 2), {2: -1.0}
    distances = np.maximum(1 - vectors @ vectors.T, 0)
    np.fill_diagonal(distances, 0)
    for clusters in np.unique(np.geomspace(2, most, 25).astype(int)).tolist():
        labels = fcluster(tree, clusters, "maxclust")
        if 1 < len(np.unique(labels)) < len(labels):
            scores[clusters] = float(silhouette_score(distances, labels, metric="precomputed"))
    best = max(scores, key=lambda clusters: scores[clusters])
    return best, f"which of 2 to {most} have the best silhouette, {scores[best]:.3f}"


def _names(texts: list[str], groups: Sequence[list[int]]) -> list[str]:
    r"""The words of each cluster with the largest class-based TF-IDF (Grootendorst 2022, BERTopic).

    Of a word that has the share s of a cluster's words, and is f times in all clusters, which have
    n words in the mean, that is :math:`s \ln(1 + n / f)`. It has to be half as frequent again as
    elsewhere, which takes the place of a list of stop words.
    """
    counts = [Counter(word for row in rows for word in words(texts[row])) for rows in groups]
    everywhere, names = Counter[str](), list[str]()
    for count in counts:
        everywhere.update(count)
    for count in counts:
        scores = dict[str, float]()
        for word, times in count.items():
            share, often = times / count.total(), everywhere[word] / everywhere.total()
            if share >= _LIFT * often:
                scores[word] = share * np.log1p(1 / (len(groups) * often))
        names.append(", ".join(sorted(scores, key=lambda it: (-scores[it], it))[:_WORDS]))
    return names
