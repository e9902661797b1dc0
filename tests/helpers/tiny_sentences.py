"""Sentences of the words that the tiny models know."""

from helpers.tiny_models import WORDS

PLAIN = [word for word in WORDS if word.isalpha()]


def sentence(number, words=7):
    """One of many sentences; near numbers share words."""
    return " ".join(PLAIN[(number * 7 + k * (3 + number % 5)) % len(PLAIN)] for k in range(words))


SENTENCES = list(dict.fromkeys(sentence(n, 3 + n % 6) for n in range(260)))[:200]


def write(path, lines):
    """Write a text file; returns its path."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


PAIRS = [f"{sentence(n)}\t{sentence(n + n % 4)}\t{5 - n % 4}" for n in range(24)]


def write_pairs(path):
    """Write pairs with scores."""
    return write(path, PAIRS)


def write_rated(path, encoder, *sides):
    """Write pairs that an encoder rates itself, so that its correlation is 1."""
    first, second = (encoder.encode(it, normalize=True, precision="fp32") for it in sides)
    rated = zip(*sides, (first * second).sum(1), strict=True)
    return write(path, [f"{a}\t{b}\t{rating:.17g}" for a, b, rating in rated])
