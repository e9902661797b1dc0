"""The subsets of the STS tasks of 2012-2016."""

from contrasent.evaluation.task_names import STS_TASKS

SUBSETS = {task.name: task.subsets for task in STS_TASKS.values() if task.subsets}
