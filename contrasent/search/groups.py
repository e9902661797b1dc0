"""Groups of texts that are alike: duplicates, of which one stays, and clusters, which get names.

Shapes: N texts, D width.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrasent import model
from contrasent.data.examples import Rows, keep_rows
from contrasent.encode.shards import manifest_in, open_sentences
from contrasent.encode.vectors import npy_writer
from contrasent.errors import ConfigError, DataError, require_extra, warn
from contrasent.files import scratch
from contrasent.model.protocol import unit_rows
from contrasent.options import ClusterOptions, DuplicatesOptions, GroupedText, IndexedText
from contrasent.search.index import Given, Index
from contrasent.search.mining import letters
from contrasent.search.nearest import nearest
from contrasent.search.words import words
from contrasent.settings import checked, refuse_unused, shared, takes

Texts = str | Path | Rows | Index
Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]

_BLOCK = 1_024
_NEIGHBOURS, _CHANCE, _FLOOR, _EQUAL = 4_096, 0.2, 0.8, 0.995  # of a suggested threshold
_TREE, _MAP = 4_096, 2_000  # texts of a tree, and of a map
_PARTS, _SMALLEST = 50, 10  # of a map of few texts: most parts, and fewest texts of one
_SIZES = 60, 40, 28, 20, 14, 10, 7  # of one of 2,000: these
_WORDS, _LIFT = 4, 1.5


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

    def facts(self) -> dict[str, Any]:
        """The groups, and their texts with ids and similarity, as JSON has them."""
        cos = [] if self.similarity is None else self.similarity.astype(float).round(4).tolist()
        groups = list[dict[str, Any]]()
        for name, rows in zip(self.names, self.groups, strict=True):
            texts = [{"similarity": cos[n], "id": self.ids[n], "text": self.texts[n]} for n in rows]
            groups.append({"name": name, "texts": texts})
        return {"source": self.source, "chosen": self.chosen, "groups": groups}


@contextmanager
def _embedded(
    text: Texts, encoder: Given, asked: GroupedText, show_progress: bool
) -> Iterator[tuple[Groups, Vectors]]:
    """Texts of a source, and their vectors ``(N, D)`` of length 1, mapped from disk."""
    with ExitStack() as stack:
        folder, ids, texts = Path(stack.enter_context(scratch("groups"))), list[str](), list[str]()
        if isinstance(text, str | Path) and manifest_in(Path(text), "contrasent-index-"):
            text = Index.open(text)
        if isinstance(text, Index):
            source = f"{text.folder}: {len(text):,} texts"
            given = replace(asked, encoder=None if encoder is None else str(encoder))
            why = f"{text.folder} is an index, which has vectors"
            refuse_unused(given, shared(given, GroupedText), why)
        else:
            if encoder is None:
                raise ConfigError("name the encoder of the text (--encoder), or give an index")
            file = str(text if isinstance(text, str | Path) else keep_rows(text))
            sentences = stack.enter_context(open_sentences(file, **shared(asked, IndexedText)))
            lines = [*sentences.summary("texts")]
            if sentences.examples.rows.blank and not isinstance(text, str | Path):
                raise DataError("a text is blank; leave it out, or the others change their numbers")
            if sentences.examples.skipped:
                warn(f"{lines[0]}; {lines.pop(1)}")
            source = "; ".join(lines)
            encoder = model.encoder_of(encoder, device=asked.device)
            how: dict[str, Any] = {"kind": "flat", "words": False, "show_progress": show_progress}
            text = Index.build(encoder, sentences, folder / "index", sentences.ids(), **how)
        with npy_writer(folder / "rows.npy", text.manifest.encoder.width) as append:
            for block in text.blocks():
                append(unit_rows(np.array(block.vectors, np.float32)), ())
                ids += block.ids
                texts += block.texts
        yield Groups(source, ids, texts), np.load(folder / "rows.npy", mmap_mode="r")


def _sample(texts: int, count: int) -> Numbers:
    return np.sort(np.random.default_rng(0).permutation(texts)[:count])


def _split(rows: Numbers, labels: Numbers) -> list[list[int]]:
    parts = np.split(rows, np.flatnonzero(np.diff(labels[rows])) + 1)
    return sorted((part.tolist() for part in parts if part.size), key=len, reverse=True)


@takes(DuplicatesOptions)
def duplicates(
    text: Texts, *, encoder: Given = None, show_progress: bool = False, **options: Any
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
        stays = _leaders(vectors, distinct, threshold)[first]
        cosines = (row @ vectors[n] for row, n in zip(vectors, stays, strict=True))
        similarity = np.minimum(np.fromiter(cosines, np.float32, len(stays)), 1)
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
    (Benjamini and Hochberg 1995). If that leaves only equal vectors, as where most texts have a
    duplicate, the second neighbours' cosines tell what is normal. It is at least 0.8: of few texts,
    those of one subject stand out.
    """
    from scipy.stats import norm

    rows = distinct[_sample(len(distinct), _NEIGHBOURS)]
    live, threshold = np.isin(np.arange(len(vectors)), distinct), 1.0
    near = zip(rows, nearest([vectors], vectors[rows], 3, live), strict=True)
    others = [[it for other, it in best if other != row][:2] for row, best in near]
    large = np.sort([it[0] for it in others if it])[::-1]
    for usual in zip(*others, strict=True):
        quartile, median = np.quantile(usual, (0.25, 0.5))
        deviation = max((median - quartile) / norm.isf(0.25), 1e-3)
        expected = len(large) * norm.sf((large - median) / deviation)
        rare = large[expected <= _CHANCE * np.arange(1, len(large) + 1)]
        if len(rare):
            threshold = max(float(rare[-1]) - 1e-6, _FLOOR)  # vectors are compared in float32
        if threshold < _EQUAL:
            break
    return threshold, f"as the nearest neighbours of {len(rows):,} texts suggest"


def _leaders(vectors: Vectors, distinct: Numbers, threshold: float) -> Numbers:
    """For each text ``(N,)`` the row of the nearest that stays."""
    import faiss

    index, leaders = faiss.IndexFlatIP(vectors.shape[1]), np.array([-1])  # the row of none
    stays = np.arange(len(vectors))
    for start in range(0, len(distinct), _BLOCK):
        rows = distinct[start : start + _BLOCK]
        block = vectors[rows]
        scores, places = index.search(block, 1)  # where there is no leader yet, its place is -1
        nearest_cosine, leader = scores[:, 0], leaders[places[:, 0] + 1]
        leads, within = nearest_cosine < threshold, np.tril(block @ block.T, -1)
        for n in np.flatnonzero((within >= threshold).any(axis=1)).tolist():
            cosines = np.where(leads, within[n], -1.0)
            near = int(np.argmax(cosines))
            if cosines[near] >= threshold and cosines[near] > nearest_cosine[n]:
                nearest_cosine[n], leader[n], leads[n] = cosines[near], rows[near], False
        stays[rows[~leads]] = leader[~leads]
        leaders = np.concatenate([leaders, rows[leads]])
        index.add(block[leads])
    return stays


@takes(ClusterOptions)
def cluster(
    text: Texts, *, encoder: Given = None, show_progress: bool = False, **options: Any
) -> Groups:
    """Divide texts into clusters, as ``contrasent cluster`` does.

    Spherical k-means goes on from the dense parts of a map of up to 2,000 texts or, for a number of
    clusters, from those of up to 4,096 (Ward 1963); ``hdbscan`` leaves texts between the parts out.
    The arguments are those of `duplicates`, with options of the command.

    Example:
        >>> contrasent.cluster("faq.txt", encoder="all-MiniLM-L6-v2").names  # doctest: +SKIP
    """
    require_extra("cluster", "cluster", "sklearn")
    import faiss
    from scipy.cluster.hierarchy import fcluster, linkage

    asked = checked(ClusterOptions, options)
    if asked.clusters and (asked.method == "hdbscan" or asked.min_cluster_size):
        raise ConfigError("--clusters leaves nothing for hdbscan and --min-cluster-size to choose")
    with _embedded(text, encoder, asked, show_progress) as (known, vectors):
        count, few = len(vectors), asked.clusters or 2
        sample = mapped = _sample(count, _MAP)
        problem = f"{few} clusters need more texts than {count}" * (count <= few)
        if not (problem or np.ptp(vectors[mapped], axis=0).any()):  # t-SNE would end the process
            problem = f"all of {len(mapped)} texts have the same vector, so none is apart"
        if problem:
            raise ConfigError(problem)
        square, smallest = _map(vectors[mapped]), asked.min_cluster_size
        if count >= 2 * _MAP and not (smallest or asked.clusters):
            smallest = _stable_size(vectors, mapped, square)
        parts, why = _dense_parts(square, smallest)
        if asked.clusters or (asked.method == "kmeans" and parts.max() < 1):
            sample = _sample(count, _TREE)
            parts = fcluster(linkage(vectors[sample], "ward"), few, "maxclust") - 1
            most = "as many as asked" if parts.max() + 1 == few else f"as {few} do not differ"
            why = most if asked.clusters else "as the map has no dense parts"
        means = _means(vectors[sample], parts)
        if asked.method == "kmeans":
            similarity, labels = _kmeans(vectors, means[:-1])
        else:
            _, places = faiss.knn(vectors, vectors[sample], 1, faiss.METRIC_INNER_PRODUCT)
            labels = parts[places[:, 0]]
            cosines = (row @ means[n] for row, n in zip(vectors, labels, strict=True))
            similarity = np.fromiter(cosines, np.float32, count)
            why += f"; {np.count_nonzero(labels < 0):,} texts are in none"
    square = 1000 * (square - square.min(axis=0)) / np.ptp(square, axis=0).max()
    order = np.lexsort((-similarity, labels))
    groups = _split(order[labels[order] >= 0], labels)
    places = dict(zip(mapped.tolist(), square.round(1).tolist(), strict=True))
    names, chosen = _names(known.texts, groups), f"{len(groups)} clusters, {why}"
    return replace(
        known, groups=groups, names=names, similarity=similarity, chosen=chosen, places=places
    )


def _map(vectors: Vectors) -> Vectors:
    from sklearn.manifold import TSNE

    drawn = TSNE(metric="cosine", perplexity=min(30.0, len(vectors) / 4), random_state=0)
    return np.asarray(drawn.fit_transform(vectors))


def _means(vectors: Vectors, parts: Numbers) -> Vectors:
    some = [vectors[parts == n].mean(axis=0) for n in range(parts.max() + 1)]
    return unit_rows(np.stack([*some, np.zeros(vectors.shape[1], np.float32)]))


def _stable_size(vectors: Vectors, mapped: Numbers, square: Vectors) -> int:
    """The size of dense parts from which clusters of other texts agree best (Ben-Hur et al. 2002).

    That is by the adjusted Rand index of k-means from this map, and from one of as many others.
    """
    from sklearn.metrics import adjusted_rand_score

    others = np.setdiff1d(_sample(len(vectors), 2 * _MAP), mapped)
    both, agreement = vectors[np.concatenate([mapped, others])], dict[int, float]()
    maps = [(vectors[mapped], square), (vectors[others], _map(vectors[others]))]
    for size in _SIZES:
        parts = [_dense_parts(places, size)[0] for _, places in maps]
        if min(it.max() for it in parts) > 0:
            starts = (_means(rows, it)[:-1] for (rows, _), it in zip(maps, parts, strict=True))
            agreement[size] = adjusted_rand_score(*(_kmeans(both, it)[1] for it in starts))
    return max(agreement, key=lambda size: agreement[size], default=_SIZES[0])


def _dense_parts(square: Vectors, smallest: int | None) -> tuple[Numbers, str]:
    """The part ``(N,)`` of each text on a map, or -1: leaves of HDBSCAN (Campello 2013)."""
    from sklearn.cluster import HDBSCAN

    smallest = min(smallest or max(len(square) // _PARTS, _SMALLEST), len(square))
    leaves = HDBSCAN(smallest, cluster_selection_method="leaf", copy=True)
    parts = np.asarray(leaves.fit_predict(square))
    return parts, f"dense parts of a map, with {smallest} of its {len(square):,} texts or more"


def _kmeans(vectors: Vectors, means: Vectors) -> tuple[Vectors, Numbers]:
    """Cosine ``(N,)`` with the nearest centre, and its number, of spherical k-means."""
    import faiss

    kmeans = faiss.Kmeans(*means.shape[::-1], spherical=True, min_points_per_centroid=1)
    read = max(_TREE, kmeans.cp.max_points_per_centroid * len(means))
    kmeans.train(vectors[_sample(len(vectors), read)], init_centroids=means)
    similarity, labels = kmeans.index.search(vectors, 1)
    return similarity[:, 0], labels[:, 0]


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
    total = everywhere.total()
    for count in counts:
        scores, own = dict[str, float](), count.total()
        for word, times in count.items():
            share, often = times / own, everywhere[word] / total
            if share * (total - own) >= _LIFT * (everywhere[word] - times):
                scores[word] = share * np.log1p(1 / (len(groups) * often))
        names.append(", ".join(sorted(scores, key=lambda it: (-scores[it], it))[:_WORDS]))
    return names
