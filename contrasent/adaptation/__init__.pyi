from .answer import adapt as adapt
from .trials import Trial as Trial
