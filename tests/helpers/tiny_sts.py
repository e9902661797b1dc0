"""The subsets of the STS tasks of 2012-2016, and tasks that are read for one test."""

from contrasent.errors import DataError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.protocols import PROTOCOLS, Options
from contrasent.evaluation.sts import score
from contrasent.evaluation.suite import load_suite
from contrasent.evaluation.task_names import STS_TASKS

SUBSETS = {task.name: task.subsets for task in STS_TASKS.values() if task.subsets}


class StsTasks:
    """Tasks read once, to be scored as often as one likes."""

    def __init__(self, tasks):
        self.tasks = tuple(tasks)

    def records(self, use, **options):
        return score(self.tasks, use, Options(**{"protocol": PROTOCOLS["hill"], **options}))

    def score(self, encoder, precision="fp32"):
        """Spearman's correlation over all pairs, by the labels of the tasks."""
        scores = self.records(EncoderUse(encoder, precision))
        if scores.problems:
            raise DataError(scores.problems[0].message)
        return {
            f"{it.task}{'' if it.split == 'test' else '-' + it.split}": it.value
            for it in scores.records
            if (it.metric, it.aggregation) == ("spearman", "all")
        }


def sts_tasks(names, data_dir=None, **options):
    """STS tasks by their names, those whose data is there."""
    return StsTasks(load_suite(names, Options(data_dir, **options)).tasks("sts"))
