"""Text as it is found, with many kinds of dirt: what is told of each, and what is cleaned."""

import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import contrasent
from contrasent.data.documents import find_documents
from contrasent.data.examples import open_examples
from contrasent.data.readers import without_markup
from contrasent.errors import ConfigError

WIKIPEDIA = Path(contrasent.__file__).parent / "quickstart_data/wikipedia.txt"


@cache
def articles():
    """350 documents of ten sentences each."""
    return [it.splitlines() for it in WIKIPEDIA.read_text(encoding="utf-8").strip().split("\n\n")]


def article_lines(count):
    return [line for article in articles()[:count] for line in article]


@cache
def unrelated():
    """The same sentences in a random order."""
    lines = article_lines(350)
    random.Random(1).shuffle(lines)
    return lines


def questions(count=1000):
    """A question and its answer, line by line; the next question is about something else."""
    rows = (article[k : k + 2] for k in range(0, 8, 2) for article in articles())
    return [line for row in list(rows)[:count] for line in row]


def joined(documents, end="\n"):
    return f"{end}{end}".join(end.join(it) for it in documents) + end


def with_blanks(lines, count):
    """Blank lines by accident, anywhere."""
    places = {0, *random.Random(2).sample(range(1, len(lines)), count)}
    return "".join("\n" * (k in places) + f"{line}\n" for k, line in enumerate(lines))


def wrapped(article, width=72):
    words, lines = " ".join(article).split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


POEM = ["The wind is in the barley", "and in the barley it is still", "still as the stone", "Rain"]
SUBTITLE = "{n}\n00:{n:02}:01,000 --> 00:{n:02}:04,000\n{text}\n"


def kind(content, documents=False, name="a.txt", **dirt):
    """What stands in a file, whether it has documents, and the counts of dirt."""
    return name, content, documents, dirt


KINDS = {
    "blank lines by accident": kind(with_blanks(unrelated(), 80)),
    # each answer is near to its question, and no blank line says where a pair ends
    "questions and answers": kind(with_blanks(questions(), 40)),
    "questions and answers in pairs": kind(
        joined(questions()[k : k + 2] for k in range(0, 600, 2)), documents=True
    ),
    "a blank line after every line": kind("\n\n".join(unrelated()[:300])),
    # a document of one line has no next sentence
    "double-spaced articles": kind("\n\n\n".join(article_lines(40))),
    "articles": kind(joined(articles()[:100], "\r\n"), documents=True, tags=0, urls=0),
    "a CSV export": kind(
        "id,text\n\n" + "".join(f'{k},"{k} ""said"" <b>a</b>\nb"\n' for k in range(40)),
        name="a.csv",
        tags=40,
    ),
    "HTML pages": kind(
        "".join(f"<p>{line.replace('and', '&amp;')}</p>\n" for line in unrelated()[:200]),
        tags=200,
        entities=sum("and" in line for line in unrelated()[:200]),
    ),
    # the paragraphs below a heading belong together
    "Markdown": kind(
        joined([f"# {article[0][:20]}", *article] for article in articles()[:50]),
        documents=True,
        markdown=50,
    ),
    "repeats": kind("\n".join([*unrelated()[:100]] * 3), repeated=200),
    "several languages": kind(
        "Das ist nicht die Frage, und es wird kalt\nIl est dans la rue avec les autres\n"
        "это не так, как я думал\nThe answer is in the book that you have\n日本語の文です\n"
    ),
    # its paragraphs are lines: what the file holds is one text, not several documents
    "one text in a file": kind("\n".join(article_lines(3))),
    "a chat with times": kind(
        "".join(f"[12:{k % 60:02}] <ann_{k}> ok\x1b[0m https://a.example\n" for k in range(300)),
        tags=0,
        urls=300,
        control=300,
    ),
    "wrapped paragraphs": kind(joined(map(wrapped, articles()[:80])), documents=True),
    # too little to measure, but blank lines stand all over it
    "a poem": kind(joined([POEM] * 6), documents=True, short=6, repeated=20),
    "JSON lines": kind(
        "".join(json.dumps({"text": f"&lt;{k} "}) + "\n\n" for k in range(30)),
        name="a.jsonl",
        entities=30,
        short=30,
    ),
    # chapters are parted by two blank lines, paragraphs by one
    "a book": kind(
        "\n\n".join(f"CHAPTER {k}\n\n{joined(articles()[k : k + 10])}" for k in range(0, 100, 10)),
        documents=True,
    ),
    # more than half of the lines are numbers and times
    "subtitles": kind(
        "\n".join(SUBTITLE.format(n=n % 60, text=line) for n, line in enumerate(unrelated()[:200]))
    ),
}


@pytest.mark.parametrize("case", KINDS)
def test_found_text_is_lines_or_documents_and_its_dirt_is_counted(case, facts):
    name, content, documents, dirt = KINDS[case]
    found = facts(name, content)
    assert (found.documents is not None) is documents, found.documents_why
    counts = {"repeated": found.repeated, **{it: found.signs[it].count for it in found.signs}}
    assert {it: counts[it] for it in dirt} == dirt
    assert (found.wrapped > 0.5 * found.examples) == (case == "wrapped paragraphs")
    if case == "several languages":
        assert found.scripts == {"Latin": 0.6, "Cyrillic": 0.2, "Cjk": 0.2}
        names = {"German", "French", "Russian", "English", "unknown"}
        assert found.languages == dict.fromkeys(names, 0.2)
    cleaned = facts(name, content, clean=True)
    assert cleaned.repeated == 0 and not {"tags", "entities", "control"} & {
        it for it, sign in cleaned.signs.items() if sign.count
    }
    for what in ("tags", "entities", "control"):
        assert cleaned.cleaned.get(what, 0) == found.signs[what].count
    assert cleaned.examples == found.examples - cleaned.cleaned.get("repeated", 0)
    assert cleaned.sha256 != found.sha256


def test_documents_or_lines_as_asked(write):
    lines = with_blanks(unrelated(), 80)
    assert len(find_documents(open_examples(write("a.txt", lines), documents=True)).lengths) == 81
    path = write("b.txt", joined(articles()))
    assert find_documents(open_examples(path, documents=False)).lengths is None
    assert find_documents(open_examples(path)).lengths.tolist() == [10] * 350
    with pytest.raises(ConfigError, match="has a text in every row"):
        open_examples(write("c.csv", "a dog,a cat\n"), documents=True)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a <b>bold</b> &amp; <i>odd</i>&nbsp;move", "a bold & odd\xa0move"),
        ("<p>one</p><p>two<br/>three", " one  two three"),
        ("if a <b then c", "if a <b then c"),
        ("Map<String, List<T>> m; x <3 y </3", "Map<String, List<T>> m; x <3 y </3"),
        ("AT&T; R&D ?a=1&copy=2 &copy; &#39;", "AT&T; R&D ?a=1&copy=2 © '"),
        ("<script>var x = 1</script>seen<!-- not --><!doctype html>", "  seen"),
        ("<a href='?x&amp;y'>l</a> &lt;b&gt;", "l <b>"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
    ],
)
def test_only_markup_is_taken_out(text, plain):
    assert without_markup(text)[0] == plain


def test_documents_stay_where_repeats_between_them_go(write):
    text = joined([["Same start", f"one {k}", f"two {k}"] for k in range(4)])
    examples = open_examples(write("a.txt", text), documents=True, clean=True)
    lengths = find_documents(examples).lengths
    assert lengths.tolist() == [3, 2, 2, 2] and examples.cleaned["repeated"] == 3
    texts = [text for (text,) in examples]
    assert all(a != b for a, b in pairwise(texts)) and len(texts) == lengths.sum()
