from .shards import FinishedShards as FinishedShards
from .shards import Sentences as Sentences
from .shards import end_with_parent as end_with_parent
from .shards import keep_few_compiled_products as keep_few_compiled_products
from .shards import open_sentences as open_sentences
from .shards import require_output as require_output
from .shards import run_processes as run_processes
from .shards import write_embeddings as write_embeddings
