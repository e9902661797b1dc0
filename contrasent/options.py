"""Options of commands and of the functions of the Python surface, each written once.

A field is an option: its name, type and default are those of the keyword argument and of the flag,
and the docstring under it is what help, docstrings and the reference say of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt

from contrasent.files import listed
from contrasent.settings import ARGUMENT, EncoderSettings, Spelling, TrainSettings, settings

Listed = Annotated[Sequence[str], BeforeValidator(listed), AfterValidator(tuple)]  # by commas

Seeds = Annotated[Sequence[NonNegativeInt], BeforeValidator(listed), AfterValidator(dict.fromkeys)]
"""Seeds, each once."""

Precision = Literal["auto", "bf16", "fp32", "int8"]  # each encoder has some, and says which


@settings
class Named:
    """The encoder of a command."""

    model: Annotated[str, ARGUMENT]
    """The encoder: a folder, a training run or a Hugging Face id."""


@settings
class OnDevice:
    """Where an encoder computes."""

    device: str | None = None
    """cpu, cuda, cuda:1 and the like; else the accelerator if there is one."""


@settings
class Pooling:
    """How token states become an embedding, in place of an encoder's own way."""

    pooler: Annotated[str | None, Spelling(of=EncoderSettings)] = None

    head: str | None = None
    """none or mlp; else the encoder's own."""


@settings
class Loading(OnDevice, Pooling):
    """How an encoder is loaded."""

    engine: str = "torch"
    """What computes the transformer: torch, or on a CPU int8."""

    truncate_dim: int | None = None
    """Keep so many leading dimensions of an embedding; else as it was saved."""

    prompt_name: str | None = None
    """The encoder's prompt to put before every text; else its default one."""


@settings
class InPrecision:
    """The precision of the matrix products."""

    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 where the hardware has it."""


@settings
class Sharding(InPrecision):
    """How embeddings are written, shard by shard."""

    batch_tokens: PositiveInt | None = None
    """Tokens computed at once; memory grows with it."""

    normalize: bool | None = None
    """Scale every row to length 1; else as the encoder was saved."""

    role: Literal["query", "document"] | None = None
    """query or document: embed texts as an index embeds these; else with the default prompt."""

    shard_size: PositiveInt = 65536
    """Sentences written at a time; a kill loses no more than that."""

    vectors: Literal["float32", "float16", "int8", "binary"] = "float32"
    """Numbers in a .npy; int8 (ranges in a second file) and bits as in sentence-transformers."""

    shards: Literal["npy", "parquet"] | None = None
    """npy or parquet: leave a folder of shards of this kind, with manifest.json."""


@settings
class Measuring(Loading):
    """How an encoder is loaded to be measured."""

    precision: Precision | None = None
    """fp32, bf16 or auto; else fp32, or what an engine other than torch computes in."""

    @property
    def precision_name(self) -> str:
        """The precision as an encoder resolves it: full, unless the engine has one of its own."""
        return self.precision or ("fp32" if self.engine == "torch" else "auto")


@settings
class DataFolder:
    """Where the data of public tasks is."""

    data_dir: str | Path | None = None
    """Folder in SentEval's layout; else $CONTRASENT_DATA, else where 'data fetch' writes."""


@settings
class TextColumn:
    """Which column of a file is embedded."""

    columns: Annotated[str | None, Spelling(metavar="COLUMN")] = None
    """The column of the texts, by name or by number from 0."""


@settings
class FoundText:
    """How a text is read that was found somewhere."""

    clean: bool = False
    """Leave out HTML tags and entities, control characters, spare spaces, repeats; count them."""

    documents: Annotated[bool | None, Spelling(flag="--documents/--lines")] = None
    """Blank lines end documents, or every line is a text by itself; else the text tells."""


@settings
class IndexedText(TextColumn):
    """Which columns of a file are indexed."""

    clean: Annotated[bool, Spelling(of=FoundText)] = False

    ids: Annotated[str | None, Spelling(metavar="COLUMN")] = None
    """The column of the ids; else texts are numbered from 0."""


@settings
class MovedEncoder(OnDevice):
    """The encoder of an index."""

    encoder: str | None = None
    """Where the encoder of the index is, if it has moved."""


@settings
class SyncOptions:
    """How files become passages."""

    tokens: PositiveInt = 224
    """Longest passage, in tokens of the encoder; at most what it reads."""

    overlap: NonNegativeInt = 0
    """Tokens that a passage shares with the one before."""

    columns: Annotated[str | None, Spelling(metavar="COLUMN")] = None
    """The column of the texts in tables; else a well-known name. Others are metadata."""


@settings
class SearchOptions:
    """How an index is searched."""

    top_k: PositiveInt = 10
    """Hits to show."""

    threshold: float | None = None
    """Show only hits with this cosine or a larger one; 'contrasent calibrate' suggests one."""

    filter: Annotated[str | None, Spelling(metavar="CONDITION")] = None
    """Search texts whose metadata or id are so, as 'year >= 2020 and source = "faq"'; also: or,
    not, in (A, B), is null, id like 'docs/%' (% stands for any characters, _ for one)."""

    mode: Literal["auto", "dense", "words", "hybrid"] = "auto"
    """dense: by the encoder's similarity; words: by BM25; hybrid: by both; auto: hybrid where that
    was measured to be better when the index was built or tuned, else dense."""

    weight: Annotated[float, Field(ge=0, le=1)] | None = None
    """The share of BM25 in hybrid search; else the one that the index has."""

    fusion: Literal["scores", "ranks"] = "scores"
    """In hybrid search the weighted sum of standardised scores, or of reciprocal ranks."""


@settings
class GroupedText(IndexedText, OnDevice):
    """The texts that are grouped."""

    encoder: str | None = None
    """The encoder of a text; an index has vectors already."""


@settings
class DuplicatesOptions(GroupedText):
    """Which texts are duplicates."""

    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    """Texts with this cosine or a larger one are duplicates; 'contrasent calibrate' suggests one
    from labelled pairs; else it is chosen from the nearest neighbours of the texts."""


@settings
class ClusterOptions(GroupedText):
    """How texts are divided into clusters."""

    clusters: Annotated[int, Field(ge=2)] | None = None
    """So many clusters; else as many as a map of the texts has dense parts."""

    method: Literal["kmeans", "hdbscan"] = "kmeans"
    """kmeans: every text is in a cluster; hdbscan: those of dense parts of the map alone."""

    min_cluster_size: Annotated[int, Field(ge=2)] | None = None
    """Fewest texts of a map (of 2,000) in a dense part; else 7 to 60, as two maps agree on best."""


@settings
class Replacing:
    """True if what is there is replaced."""

    overwrite: bool = False
    """Replace what an earlier command wrote there."""


@settings
class IndexOptions(InPrecision, Replacing):
    """How an index is built."""

    kind: str = "auto"
    """flat (exact), hnsw, ivfpq (OPQ+IVF-PQ, the smallest), auto: one of these by the number of
    texts; milvus (exact) or milvus-hnsw: in Milvus; binary: candidates by bits."""

    vectors: Literal["float32", "float16", "int8", "binary"] = "float32"
    """How vectors are kept: int8 takes a quarter; binary is int8 and bits that are searched first.
    What is lost is measured on the texts."""

    words: Annotated[bool, Spelling(flag="--words/--no-words")] = True
    """Keep what searches by words need, and measure on the texts if these help."""


@settings
class EvaluationOptions(Measuring, DataFolder, FoundText):
    """What is scored, and by whose protocol."""

    splits: Listed = ("test",)
    """Splits of tasks named without one: any of train,dev,test,all."""

    tasks: Listed = ("sts",)
    """Comma-separated: sts (the papers' seven), sts12, sts13, sts14, sts15, sts16, stsb, sickr, one
    with its split (stsb-dev, sickr-all), or a .tsv, .csv, .jsonl or .parquet file or a data set of
    the hub (org/name:config@split) of sentence, sentence, score; transfer (the papers' seven), mr,
    cr, subj, mpqa, sst2, trec, mrpc, one with its split (mr-dev); such a file of text and label, or
    classify:TRAIN+TEST; stsb-retrieval, a folder of corpus, queries and qrels as BEIR's,
    retrieve:QUERIES+DOCUMENTS+RELEVANCE."""

    columns: Listed | None = None
    """Sentence, sentence and score, or sentence and label, of your files: names, or numbers."""

    protocol: str = "simcse"
    """Whose numbers the table is to be compared with: simcse, diffcse, sbert, isbert (Spearman,
    all), flow, whitening (wmean), declutr (mean), bgt (Pearson, mean), hill (both, all), senteval,
    infersent (Pearson, mean, regressor) or mteb."""

    aggregation: str | None = None
    """In place of the protocol's: all (one correlation over all pairs of a task), mean over its
    subsets, or wmean, weighted by their pairs."""

    metric: str | None = None
    """In place of the protocol's: spearman or pearson."""

    regressor: bool | None = None
    """In place of the protocol's: STS-B and SICK-R by SentEval's fitted regressor, or cosines."""

    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Show intervals of this confidence, such as 0.95."""

    preset: str = "test"
    """Transfer and labelled tasks: SentEval's settings: test (as in papers), fasttest or dev."""

    classifier_seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 1111
    """Transfer and labelled tasks: seed of training and folds (MR, CR, SUBJ, MPQA: always 1111)."""


@settings
class AnalysisOptions(Measuring, DataFolder):
    """The pairs that tell how embeddings lie in space."""

    pairs: str = "stsb>4"
    """Which pairs are positive: a task or file, > or >=, and a rating. Without a split, a task is
    all its splits: stsb>4 is train, dev and test."""

    columns: Listed | None = None
    """Sentence, sentence and score of your file of --pairs: three names, or numbers from 0."""

    edits: str | None = None
    """A text whose sentences are edited: how far embeddings move, how well they tell the edit."""


@settings
class MiningOptions(Replacing, InPrecision, OnDevice):
    """Which hard negatives are taken."""

    corpus: str | None = None
    """Sentences to take negatives from, as a file of text; else the positives."""

    negatives: PositiveInt = 1
    """Hard negatives of each pair."""

    margin: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """A negative's cosine with the anchor is below the positive's by this share of it or more; what
    is nearer may be a positive that nobody labelled."""

    columns: Listed | None = None
    """Columns of PAIRS, anchor and positive: names, or numbers from 0."""

    candidates: Annotated[int, Field(ge=2)] | None = None
    """Write lists for 'train rank-distil' in place of hard negatives: the positive and others near
    the anchor by the encoder or by BM25, so many in all, with scores of a teacher; else of BM25
    (0.1) and the encoder (0.9) together, each standardised for every query."""

    reranker: str | None = None
    """With --candidates the teacher: a cross-encoder of sentence-transformers, folder or id."""

    teacher: str | None = None
    """With --candidates the teacher: another encoder."""


@settings
class SynthesisOptions(FoundText, Replacing, OnDevice):
    """Which queries are made for the passages of a text, and which are kept."""

    columns: Listed | None = None
    """The column of the text: a name, or a number from 0."""

    kinds: Listed | None = None
    """Comma-separated kinds of query: title, question, sentence, keywords, found in the text; or
    with --endpoint question, keywords, title, statement; else all."""

    words: PositiveInt = 120
    """Words of a passage, at most: lines of a document are joined, longer texts are cut."""

    endpoint: str | None = None
    """Let a model write the queries: the address of a server of OpenAI's interface, such as
    http://localhost:8000/v1. Its key is $CONTRASENT_API_KEY."""

    model: str | None = None
    """With --endpoint: the name of its model."""

    concurrency: PositiveInt = 4
    """With --endpoint: requests at once."""

    max_requests: PositiveInt | None = None
    """With --endpoint: requests in all, those of earlier runs included; else one for each passage
    and kind."""

    encoder: str | None = None
    """Find passages by this encoder: a folder, a run or a Hugging Face id; else by BM25."""

    top_k: PositiveInt = 10
    """Keep a query that finds its passage among so many."""

    exclude: Annotated[list[str] | None, Spelling(metavar="FILE")] = None
    """Leave out queries that are sentences of this file, such as an evaluation's. Repeatable."""

    resume: bool = False
    """Take the answers that an earlier run with --endpoint left beside the output, and go on."""


_SETTING = Spelling(of=TrainSettings, end="Else the recipe's.")


@settings
class RunOptions(OnDevice, Replacing):
    """A training run: settings of the recipe that are set often, and its folder."""

    data: str | list[str] | None = None
    """Text: .txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging Face dataset id.
    Repeatable: each batch is then from one of them, by size or by the weights of FILE:WEIGHT;
    '{file: FILE, weight: 0.1, objective: esimcse}' sets more of it."""

    columns: Annotated[Listed | None, Spelling(metavar="A,B,...")] = None
    """Sentence columns of the training text, anchor first: header names, or numbers from 0; else
    picked by well-known names, or all if there is no header."""

    batch_size: Annotated[int | None, _SETTING] = None
    epochs: Annotated[int | None, _SETTING] = None
    max_steps: Annotated[int | None, _SETTING] = None
    learning_rate: Annotated[float | None, replace(_SETTING, flag="--learning-rate/--lr")] = None
    precision: Annotated[str | None, _SETTING] = None
    seed: Annotated[int | None, _SETTING] = None

    output: Path | None = None
    """Folder of the run or search; else runs/RECIPE or runs/tune-RECIPE."""

    resume: bool = False
    """Continue what the same command began; 'train --resume RUN' continues a training run without
    its other options."""


@settings
class TrainingOptions(RunOptions):
    """A training run from an encoder."""

    encoder: str | None = None
    """Start from this folder, run or Hugging Face id."""


@settings
class PretrainOptions(RunOptions):
    """A training run of a masked language model."""

    from_scratch: bool = False
    """Begin with random weights: the encoder is a folder with the config.json of a shape. Its
    tokenizer is taken; where there is none, one of the config's vocab_size is learned from the
    text. OUTPUT gets start, with both, and run."""


@settings
class TuneOptions(TrainingOptions):
    """A search over settings of a recipe."""

    space: Annotated[list[str], Spelling(metavar="SETTING=VALUES")]
    """A setting and what to try: values, as train.batch_size=64,128, or a range, as
    train.learning_rate=1e-6..1e-4:log. Or a paper's grid: simcse or diffcse. Repeatable."""

    trials: PositiveInt | None = None
    """Training runs; else one for each combination of values, or 20 with a range."""


@settings
class AdaptOptions(FoundText, TextColumn, OnDevice, Replacing):
    """What is best on a text, and a search for better."""

    encoder: Annotated[str, Spelling(argument=True, of=Named, name="model")]

    data: str
    """Text without labels, one per line or row."""

    output: Path = Path("runs/adapt")
    """Folder of the answer and of the search."""

    compare: Listed = ()
    """Comma-separated encoders to judge beside it."""

    minutes: Annotated[float, Field(ge=0)] = 30
    """Time for all of it."""

    dev: str | None = None
    """A task or file of rated pairs that chooses; else held-out text."""

    test: Listed = ()
    """Comma-separated tasks to score the start and the result on."""

    candidates: Listed | None = None
    """Comma-separated names of what is tried; else all that fit."""

    teacher: str | None = None
    """A larger encoder, or its address, to learn from; with --layers, else the encoder itself."""

    reranker: str | None = None
    """A cross-encoder of sentence-transformers, folder or id, that rank-distil follows."""

    layers: NonNegativeInt | None = None
    """Look for a smaller encoder, of so many of its layers; 0: a static table."""

    seed: int = 42
    """Seed of the held-out text and all runs."""

    resume: bool = False
    """Go on with the search in the output folder."""


@settings
class MapOptions(Pooling, OnDevice, DataFolder):
    """A map that is fitted to an encoder's embeddings of text."""

    columns: Listed | None = None
    """Comma-separated sentence columns of the files: names, or numbers from 0."""

    max_tokens: PositiveInt | None = None
    """Cut the sentences to fit on there, at most where the encoder does; the papers took 64."""

    precision: Precision = "fp32"
    """fp32, bf16 or auto, to embed the text in."""
