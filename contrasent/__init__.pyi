from . import objectives as objectives
from .adaptation.answer import adapt as adapt
from .adaptation.trials import tune as tune
from .api import evaluate as evaluate
from .api import pretrain as pretrain
from .api import train as train
from .evaluation.geometry import analyze as analyze
from .evaluation.judgement import tune_index as tune_index
from .evaluation.synthesis import synthesize as synthesize
from .fitting import fit as fit
from .model.encoder import SentenceEncoder as SentenceEncoder
from .model.loading import Router as Router
from .model.loading import load_encoder as load_encoder
from .recipe import load_recipe as load_recipe
from .records import Record as Record
from .search.groups import cluster as cluster
from .search.groups import duplicates as duplicates
from .search.index import Index as Index
from .search.mining import mine as mine
from .search.sync import sync_index as sync_index

__version__: str
