from .materials import ENCODER as ENCODER  # the model that --encoder stands in place of
from .materials import SMOKE_MODELS as SMOKE_MODELS
from .outcome import PaperRequest as PaperRequest
from .outcome import document as document
from .outcome import failures as failures
from .outcome import listing as listing
from .outcome import open_filler as open_filler
from .outcome import plan_lines as plan_lines
from .outcome import reproduce_tables as reproduce_tables
from .outcome import verdicts_document as verdicts_document
from .papers import choose as choose
from .recorded import Recorded as Recorded
