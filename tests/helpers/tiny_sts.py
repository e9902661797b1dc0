"""The subsets of the STS tasks of 2012-2016, and tasks that are read for one test."""

from contrasent.evaluation.sts import StsTasks
from contrasent.evaluation.suite import load_suite
from contrasent.evaluation.task_names import STS_TASKS
from contrasent.evaluation.task_types import Options

SUBSETS = {task.name: task.subsets for task in STS_TASKS.values() if task.subsets}


def sts_tasks(names, data_dir=None, **options):
    """STS tasks by their names, those whose data is there."""
    return StsTasks(load_suite(names, Options(data_dir, **options)).tasks("sts"))
