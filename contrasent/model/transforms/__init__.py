"""Maps that are fitted on embeddings, each a class that is known once its file is imported."""

from contrasent.model.transforms import flow as flow
from contrasent.model.transforms import whitening as whitening
