from .cells import read_records as read_records
from .cells import write_records as write_records
from .materials import ENCODER as ENCODER  # the model that --encoder stands in place of
from .materials import SMOKE_MODEL as SMOKE_MODEL
from .outcome import PaperRequest as PaperRequest
from .outcome import document as document
from .outcome import failures as failures
from .outcome import fill_tables as fill_tables
from .outcome import listing as listing
from .outcome import open_filler as open_filler
from .outcome import plan_lines as plan_lines
from .outcome import reproduce_tables as reproduce_tables
from .outcome import verdicts_document as verdicts_document
from .papers import choose as choose
from .verdicts import verdicts as verdicts
