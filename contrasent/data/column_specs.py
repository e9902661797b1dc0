"""Columns that each kind of data has to hold, and the headings that are known for them."""

from __future__ import annotations

from contrasent.data.columns import ColumnSpec

_FIRST = ("sentence1", "sentence_1", "sentence_a", "text1", "text_a")
_SECOND = ("sentence2", "sentence_2", "sentence_b", "text2", "text_b")
_LABELS = (
    *("label", "class", "category", "coarse_label", "gold_label", "target"),
    *("sentiment", "intent", "topic", "emotion", "labels"),
)
_DOCUMENT_IDS = ("corpus-id", "corpus_id", "document_id", "doc_id", "docid", "pid", "did")
_MEND = "mend the row or take it out"

NLI = ColumnSpec(
    roles=("premise", "hypothesis", "label"),
    names=(
        ("sent0", "premise", "context", *_FIRST),
        ("sent1", "hypothesis", *_SECOND),
        ("gold_label", "label", "entailment_judgment"),
    ),
    ranked=("label",),
)

CAPTIONS = ColumnSpec(
    roles=("image", "caption"),
    names=(
        ("image", "image_id", "image_name", "file_name", "filename", "group"),
        ("caption", "comment", "text", "sentence"),
    ),
    bare=(2,),
)

DUPLICATES = ColumnSpec(
    roles=("first question", "second question", "label"),
    names=(
        ("question1", "#1 string", *_FIRST, "anchor", "sent0"),
        ("question2", "#2 string", *_SECOND, "positive", "sent1"),
        ("is_duplicate", "label", "quality"),
    ),
    ranked=("label",),
)

PARAPHRASES = ColumnSpec(
    roles=("reference", "paraphrase", "score"),
    names=(
        ("reference", "source", *_FIRST, "anchor", "sent0"),
        ("paraphrase", "target", *_SECOND, "positive", "sent1"),
        ("score", "similarity"),
    ),
    optional=1,
    bare=(2, 3),
    numeric=True,
)

RATED_PAIRS = ColumnSpec(
    roles=("first sentence", "second sentence", "score"),
    names=(
        (*_FIRST, "sent0", "first", "question1", "premise", "anchor", "query"),
        (*_SECOND, "sent1", "second", "question2", "hypothesis", "positive", "document"),
        (
            *("score", "similarity", "similarity_score", "relatedness_score", "gold", "rating"),
            *("label", "is_duplicate"),
        ),
    ),
    ranked=("score",),
    bare=(3,),
    numeric=True,
    mend=_MEND,
    otherwise="if it holds sentences with labels, name it classify:FILE",
)

SENTENCES = ColumnSpec(
    roles=("sentence", "class"),
    names=(
        (
            *("text", "sentence", "review", "question", "query", "comment", "tweet", "utterance"),
            *("content", "document", "headline", "title"),
        ),
        _LABELS,
    ),
    ranked=("sentence", "class"),
    bare=(2,),
    mend=_MEND,
)

SENTENCE_PAIRS = ColumnSpec(
    roles=("first sentence", "second sentence", "class"),
    names=(*RATED_PAIRS.names[:2], _LABELS),
    ranked=("class",),
    bare=(3,),
    mend=_MEND,
)

TEXTS = ColumnSpec(
    roles=("id", "text", "title"),
    names=(
        ("_id", "id", "query-id", "query_id", "qid", *_DOCUMENT_IDS, "passage_id"),
        ("text", "query", "question", "document", "passage", "contents", "content", "sentence"),
        ("title",),
    ),
    ranked=("id", "text"),
    optional=1,
    bare=(2,),
    mend=_MEND,
)
"""Queries or documents of retrieval."""

RELEVANCE = ColumnSpec(
    roles=("query's id", "document's id", "relevance"),
    names=(
        ("query-id", "query_id", "queryid", "qid", "query"),
        (*_DOCUMENT_IDS, "document-id", "passage_id", "document", "passage"),
        ("score", "relevance", "rel", "grade", "label"),
    ),
    ranked=("query's id", "document's id", "relevance"),
    bare=(3,),
    numeric=True,
    mend=_MEND,
)
