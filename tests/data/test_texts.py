import numpy as np

from contrasent.data.token_store import keep_texts, text_numbers, tokenize

LINES = ["a b", " é  x ", "", "日本 😀", "a b", "x" * 5000]


def test_texts_are_the_sentences_of_the_source(opened):
    texts = keep_texts(opened(LINES, "lines.txt"))
    expected = [line.strip() for line in LINES if line]
    assert len(texts) == len(expected)
    assert [texts[number] for number in range(len(texts))] == expected


def test_the_same_bytes_read_otherwise_are_other_texts(opened):
    lines, cells = (keep_texts(opened(['"a b"', '"c"'], f"f.{kind}")) for kind in ("txt", "csv"))
    assert (lines[0], cells[0]) == ('"a b"', "a b")


def test_texts_fit_a_store_that_left_some_out(opened):
    class Letters:
        vocabulary, fingerprint = 1 << 17, "letters"

        def ids(self, texts, _):
            ids = [[ord(letter) for letter in text if letter != "x"] for text in texts]
            return [np.array(row, dtype=np.int32) for row in ids], 0

    random = np.random.default_rng(0)
    lines = random.choice(["a", "x", "", "b", "xx", "xax"], 300).tolist()
    examples = opened(lines, "lines.txt")
    store, texts = tokenize(examples, Letters(), None), keep_texts(examples)
    numbers = text_numbers(store)
    assert len(numbers) == len(store) < len(texts)
    for example, number in enumerate(numbers.tolist()):
        letters = [ord(letter) for letter in texts[number] if letter != "x"]
        assert store.tokens(example, 0).tolist() == letters
    assert store.manifest.tokenless == len(texts) - len(store)
