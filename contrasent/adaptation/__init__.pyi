from .candidates import CANDIDATES as CANDIDATES  # what `adapt` tries, by name
from .halving import adapt as adapt
from .tuning import TuningTrial as TuningTrial
