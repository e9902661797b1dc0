"""Sentences of the words that the tiny models know."""

from tiny_models import WORDS

PLAIN = [word for word in WORDS if word.isalpha()]


def sentence(number, words=7):
    return " ".join(PLAIN[(number * 7 + k * (3 + number % 5)) % len(PLAIN)] for k in range(words))
