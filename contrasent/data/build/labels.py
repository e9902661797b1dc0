"""What a label says about a premise and a hypothesis, or about two questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contrasent.errors import ConfigError, DataError

ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS = ("entailment", "neutral", "contradiction")

_NLI = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), ENTAILMENT),
    **dict.fromkeys(("neutral", "n"), NEUTRAL),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), CONTRADICTION),
}
_YES_OR_NO = {"1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False}
_NONE = {"", "-", "-1", "none", "nan"}


class NliLabels:
    """Understands the labels of one source.

    Words are known; numbers are not, as data sets count the three labels in different orders, and a
    wrong guess would train contradictions as positives. So they need names: the data set's own, or
    the user's.

    Args:
        source: whose labels they are.
        own_names: names that the source gives to the numbers from 0; None without.
        order: the user's names for the numbers from 0; None without.

    Raises:
        ConfigError: ``order`` does not name each of the three labels once, or says something else
            than the source.
    """

    def __init__(
        self, source: str, own_names: Sequence[str] | None, order: Sequence[str] | None
    ) -> None:
        own = None if own_names is None else [_NLI.get(name.lower()) for name in own_names]
        asked = None if order is None else _ordered(order)
        if own is not None and None in own:
            own = None
        if own and asked and own != asked:
            raise ConfigError(
                f"{source}: --labels {','.join(asked)} is not the data set's own order, "
                f"{','.join(map(str, own))}; leave --labels out"
            )
        self._source = source
        self._numbers = own or asked
        if self._numbers is None:
            self.described = "words such as entailment, or their first letters"
        else:
            told = ", ".join(f"{number} = {name}" for number, name in enumerate(self._numbers))
            self.described = f"{told} ({'the data set says so' if own else 'as asked for'})"

    def understood(self, label: Any, where: str) -> str | None:
        """One of :data:`LABELS`; None if the row has none.

        Raises:
            DataError: the label is not known.
            ConfigError: the label is a number whose name is not known.
        """
        word = "" if label is None else str(label).strip().lower()
        if word in _NLI:
            return _NLI[word]
        if word in _NONE:
            return None
        if not word.isdecimal():
            raise DataError(
                f"{where}: unknown label {label!r}; known are {', '.join(LABELS)}, "
                "their first letters, and - for none"
            )
        if self._numbers is None:
            raise ConfigError(
                f"{where}: the label is the number {word}, and {self._source} does not say what "
                "it stands for; name the numbers from 0 on, as --labels "
                "entailment,neutral,contradiction, after the data set's description"
            )
        if int(word) >= len(self._numbers):
            raise DataError(f"{where}: label {word}, but only 0 to {len(self._numbers) - 1} known")
        return self._numbers[int(word)]


def yes_or_no(label: Any, where: str) -> bool | None:
    """Whether two questions are duplicates; None if the row does not say.

    Raises:
        DataError: the label is none of 0, 1, true and false.
    """
    word = "" if label is None else str(label).strip().lower()
    if word in _NONE:
        return None
    if word not in _YES_OR_NO:
        raise DataError(
            f"{where}: unknown label {label!r}; 1 or true says that the two mean the same, "
            "0 or false that they do not"
        )
    return _YES_OR_NO[word]


def _ordered(order: Sequence[str]) -> list[str]:
    named = [_NLI.get(name.strip().lower(), "") for name in order]
    if sorted(named) != sorted(LABELS):
        raise ConfigError(
            f"--labels {','.join(order)} does not name each of {', '.join(LABELS)} once; "
            "give them in the order of their numbers, from 0"
        )
    return named
