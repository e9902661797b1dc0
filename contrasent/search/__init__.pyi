from .index import Index as Index
from .nearest import MILVUS as MILVUS
from .nearest import kind_for as kind_for
from .nearest import text_similarity as text_similarity
from .storage import Hit as Hit
from .storage import WordsInfo as WordsInfo
from .words import WordIndex as WordIndex
from .words import fuse as fuse
