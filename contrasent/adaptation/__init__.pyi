from .answer import adapt as adapt
from .trials import Trial as Trial
from .trials import tune as tune
