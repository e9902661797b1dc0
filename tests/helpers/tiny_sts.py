"""The subsets of the STS tasks of 2012-2016, and tasks that are read for one test."""

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


def spearman(records, encoder=None):
    """The only correlation of Spearman over all pairs, of all encoders or of one."""
    found = [it for it in records if (it.metric, it.aggregation) == ("spearman", "all")]
    (value,) = (it.value for it in found if encoder is None or it.encoder == str(encoder))
    return value


def sts_tasks(names, data_dir=None, **options):
    """STS tasks by their names, those whose data is there."""
    return StsTasks(load_suite(names, Options(data_dir, **options)).tasks("sts"))
