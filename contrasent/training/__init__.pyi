from . import loop as loop  # the loop itself, for who times it
from .callbacks import DevScore as DevScore
from .callbacks import metric_name as metric_name
from .loop import StepMetrics as StepMetrics
from .run import BeforeAndAfter as BeforeAndAfter
from .run import Result as Result
from .run import train as train
from .run_folder import RunFolder as RunFolder
from .run_folder import complete as complete
from .run_folder import environment as environment
from .scoring import dev_task as dev_task
from .scoring import final_tasks as final_tasks
from .scoring import score_result as score_result
from .scoring import train_seeds as train_seeds
from .setup import start_encoder as start_encoder
