from . import build as build  # training files of NLI, captions, duplicates, paraphrases
from . import senteval as senteval  # SentEval's data: its place, download and hashes
from .check import TextFacts as TextFacts
from .check import aligned as aligned
from .check import describe as describe
from .check import example_lines as example_lines
from .check import plural as plural
from .check import shortened as shortened
from .columns import ColumnMap as ColumnMap
from .documents import find_documents as find_documents
from .documents import split_sentences as split_sentences
from .examples import Rows as Rows
from .examples import keep_rows as keep_rows  # rows of Python, kept in a file
from .examples import open_examples as open_examples
from .loader import Loader as Loader
from .loader import plain as plain
from .loader import tokenize as tokenize
from .readers import TEXT_KINDS as TEXT_KINDS
from .readers import lines as lines
from .readers import n_words as n_words
from .readers import source_kind as source_kind
from .rows import as_number as as_number
from .rows import open_rows_of as open_rows_of
from .rows import open_source as open_source
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import require_text as require_text
from .views import VIEWS as VIEWS
