from .sentences import Sentences as Sentences
from .sentences import open_sentences as open_sentences
from .shards import FinishedShards as FinishedShards
from .shards import require_output as require_output
from .shards import write_embeddings as write_embeddings
from .workers import end_with_parent as end_with_parent
from .workers import run_processes as run_processes
