from .index import Index as Index
from .index import require_folder as require_folder
from .index import require_search as require_search
from .nearest import MILVUS as MILVUS
from .nearest import kind_for as kind_for
from .nearest import text_similarity as text_similarity
from .storage import Hit as Hit
