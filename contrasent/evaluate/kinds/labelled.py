"""A user's own labelled sentences, learned as SentEval's transfer tasks are."""

from __future__ import annotations

from collections.abc import Sequence

from contrasent.data.hub import dataset_parts
from contrasent.errors import ConfigError
from contrasent.evaluate.kinds.base import Options
from contrasent.evaluate.kinds.transfer import SPLITS, Learned, Transfer
from contrasent.evaluate.labelled_read import holds_labels, read_labelled, require_enough
from contrasent.evaluate.own_names import CLASSIFY, OWN_FILE, require_source
from contrasent.evaluate.tasks import TaskName
from contrasent.evaluate.transfer_sklearn import logistic_regression


class Labelled(Transfer):
    """Accuracy and macro-F1 of classifiers on frozen embeddings."""

    name = "labelled"
    place = 25

    def names(self, asked: Sequence[str], options: Options) -> tuple[list[TaskName], list[str]]:
        """Pick the files and data sets of labelled sentences out of what a user asked for.

        Args:
            asked: after :data:`contrasent.evaluate.own_names.CLASSIFY` a file, files or a data set
                as :func:`read_labelled` takes them; or one that :func:`holds_labels` knows; and
                anything else.
            options: splits other than dev and test are left out.

        Raises:
            ConfigError: no split is left, or no file is named.
        """
        found: list[TaskName] = []
        others: list[str] = []
        for text in asked:
            if not _is_labelled(text.strip(), options):
                others.append(text)
                continue
            wanted = [split for split in SPLITS[::-1] if split in options.splits]
            if not wanted:
                raise ConfigError(
                    f"{text!r}: labelled sentences have no score on {', '.join(options.splits)}, "
                    "only on dev and test"
                )
            found += [TaskName(text.strip(), split) for split in wanted]
        return list(dict.fromkeys(found)), others

    def load(self, names: Sequence[TaskName], options: Options) -> Learned:
        """Read one task, and make sure that its classes have rows for the folds.

        Raises:
            MissingExtraError: scikit-learn is asked for and not installed.
        """
        if options.learning.classifier == "sklearn":
            logistic_regression()
        task = read_labelled(names[0].name, options.columns)
        require_enough(task, options.learning)
        return Learned(task, tuple(name.split for name in names))

    def averaged(self, names: Sequence[TaskName]) -> list[TaskName]:
        """None: users' own tasks have little in common."""
        del names
        return []

    def note(self, task: Learned) -> str:
        """How the columns were understood."""
        return task.task.note


KIND = Labelled()


def _is_labelled(text: str, options: Options) -> bool:
    if text.startswith(CLASSIFY):
        require_source(text, CLASSIFY, "FILE or classify:TRAIN+TEST")
        return True
    own = OWN_FILE.search(text) or ("/" in text and dataset_parts(text))
    return bool(own) and holds_labels(text, options.columns)
