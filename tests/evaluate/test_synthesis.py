"""Pairs of query and passage of a text, found in it or written by a tiny language model."""

import json
import random
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import pytest
import transformers
from helpers.answering import answering
from helpers.command_line import call, refused, started, worked
from helpers.oracles import bm25, letters
from helpers.tiny_models import WORDS, transformer, word_piece

import contrasent
from contrasent.data.documents import split_sentences
from contrasent.data.examples import open_examples
from contrasent.evaluation.proxy import Ask, TextSample, is_title
from contrasent.evaluation.synthesis import EXTRACTORS, _query, kept_pairs, passages_of
from contrasent.model import endpoint
from contrasent.search.words import words

DRAW = random.Random(3)
PLAIN = [word for word in WORDS if word.isalpha() and len(word) > 2]
RARE = [f"{a}{b}{c}x" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


def said(count, vocabulary=PLAIN):
    return " ".join(DRAW.choices(vocabulary, k=count))


def markdown(sections=80):
    """Sections of a topic of their own, whose name and rare word come back in the text."""
    parts = ["# Guide of all"]
    for n in range(sections):
        topic, rare = f"topic{n}", RARE[n]
        parts += [
            f"## {topic} {rare}",
            f"* A {rare} {said(9)}. What is {topic} {said(4)}? It is {rare} {said(9)}. {said(5)}.",
            f"More {rare} of {topic.upper()} {said(7)}. Odd{n} {said(4)}. {rare} {said(8)}.",
        ]
    return "\n\n".join(parts) + "\n"


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_passages_are_sections_of_joined_lines(tmp_path):
    path = tmp_path / "text.md.txt"
    text = "Before.\nit all\n# One\nAb bc cd. De ef fg.\n\nGh.\n= Two =\n---\n"
    path.write_text(f"{text}Ij jk kl lm mn. No op pq qr.\n")
    sample, _ = passages_of(open_examples(str(path), documents=False), 6)
    sections = [[sample.texts[row] for row in rows] for rows in sample.documents]
    assert sections == [
        ["Before."],
        ["it all"],
        ["# One", "Ab bc cd. De ef fg.", "Gh."],
        ["= Two =", "--- Ij jk kl lm mn.", "No op pq qr."],
    ]


def test_what_gives_a_query_away_is_taken_out_and_pairs_train_and_are_evaluated(tmp_path):
    text, out = tmp_path / "guide.txt", tmp_path / "pairs.jsonl"
    text.write_text(markdown())
    shown = worked("data", "synthesize", text, "--output", out, "--words", 60).out
    lines = [it for it in text.read_text().splitlines() if it]
    passages = [" ".join(lines[n : n + 2]) for n in range(2, len(lines), 3)]
    every = [set(words(it)) for it in (*lines[1::3], *passages)]
    rows = rows_of(out)
    assert f"{len(rows):,} pairs of query and passage" in shown
    assert {row["kind"] for row in rows} == {"title", "question", "sentence", "keywords"}
    for row in rows:
        query, passage = row["query"], row["passage"]
        assert letters(query) not in letters(passage)
        if row["kind"] == "title":
            assert f"## {query}" in lines
        elif row["kind"] == "question":
            assert query.startswith("What is")
            assert any(f"{query} {passage}" in it for it in passages)
        elif row["kind"] == "sentence":
            assert f"* {query} {passage}" in passages and split_sentences(query) == [query]
        else:
            assert len(words(query)) == 4
            for word in words(query):
                assert (word in words(passage)) == (sum(word in it for it in every) > 1)
    again = contrasent.synthesize(text, words=60)
    assert [tuple(row.values()) for row in rows] == [*again.pairs]
    vectors = tmp_path / "words.txt"
    known = sorted({word for row in rows for word in words(f"{row['query']} {row['passage']}")})
    vectors.write_text("".join(f"{it} {DRAW.random()} {DRAW.random()}\n" for it in known))
    judged = contrasent.evaluate(vectors, text=out)
    assert "pairs of pairs.jsonl" in {record.task for record in judged.records}


def test_a_line_that_asks_finds_the_line_after_it(tmp_path):
    lines = [f"Where is {RARE[n]} {said(3)}?" if n % 2 else f"It is {said(9)}." for n in range(60)]
    lines = [it if n % 2 else f"{RARE[n - 1]} {it}" for n, it in enumerate(lines)]
    path = tmp_path / "faq.txt"
    path.write_text("\n".join(lines[1:]) + "\n")
    found = contrasent.synthesize(path, documents=False, kinds="question").pairs
    assert len(found) > 20
    assert all((query, passage) in set(pairwise(lines)) for query, passage, _ in found)


def test_questions_and_sentences_end_by_the_marks_of_their_script(tmp_path):
    path, asked = tmp_path / "faq.txt", [f"{RARE[n]} كيف حالك؟" for n in range(40)]
    path.write_text("".join(f"{it} أنا {said(9)} {RARE[n]}.\n" for n, it in enumerate(asked)))
    found = contrasent.synthesize(path, documents=False, kinds="question").pairs
    assert {query for query, _, _ in found} == {*asked}
    ended = ("ठीक हूँ।", "هل وصل\u061f", "سب ٹھیک ہے\u06d4")
    assert is_title("ठीक हूँ") and not any(map(is_title, ended))
    assert split_sentences("मैं ठीक हूँ। वह आया॥ और?") == ["मैं ठीक हूँ।", "वह आया॥", "और?"]


def test_a_question_that_ends_a_document_is_not_answered_by_the_next_document(tmp_path):
    path = tmp_path / "faq.txt"
    lines = [f"It is {RARE[n]} {said(9)}.\nWhere is {RARE[n + 1]} {said(3)}?\n" for n in range(60)]
    path.write_text("\n".join(lines))
    sample, _ = passages_of(open_examples(str(path), documents=True), 8)
    assert len(sample.documents) == 60 and [*EXTRACTORS["question"](sample)] == []


def test_the_filters_are_those_of_loops():
    texts = [f"{said(DRAW.randint(3, 14))} {RARE[n % 40]} {said(3, RARE)}" for n in range(120)]
    sample = TextSample("", "", tuple(texts), (), ())
    asks = [Ask(said(DRAW.randint(1, 5), texts[n].split()), (n,)) for n in range(120)] * 2
    asks += [Ask(said(3, PLAIN), (n,)) for n in range(60)] + [Ask("?", (0,)), Ask(said(41), (1,))]
    asks += [Ask(" ".join(texts[n].split()[2:5]), (n,)) for n in range(20)]
    excluded = {letters(ask.query) for ask in asks[:300:9]}
    pairs, left_out = kept_pairs(sample, {"any": asks}, excluded, None, 5)
    expected, reasons, earlier = [], {}, []
    for ask in asks:
        query, (row,) = ask.query, ask.wanted
        own = set(words(query))
        repeat = own and any(len(own & it) >= 0.8 * len(own | it) for it in earlier)
        if not repeat:
            earlier.append(own)
        scores = bm25(texts, query)
        why = (
            "without"
            if not letters(query) or len(words(query)) > 40 or len(texts[row].split()) < 8
            else "with nearly"
            if repeat
            else "with a query that is to be"
            if letters(query) in excluded
            else "with a query that stands"
            if letters(query) in letters(texts[row])
            else "with a passage"
            if not scores[row] or sum(it > scores[row] + 1e-6 for it in scores) >= 5
            else ""
        )
        reasons[why] = reasons.get(why, 0) + 1
        expected += [(query, texts[row], "any")] * (not why)
    assert pairs == expected and len(reasons) == 6
    for why, count in left_out.items():
        assert reasons[next(it for it in reasons if it and why.startswith(it))] == count


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A tiny model with random weights, which continues a text."""
    folder = tmp_path_factory.mktemp("lm")
    size = word_piece(folder, limit=512)
    config = transformers.GPT2Config(
        vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=512, eos_token_id=None
    )
    model = transformer(config, kind=transformers.AutoModelForCausalLM)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def answer(prompt):
        ids = tokenizer(prompt, return_tensors="pt", truncation=True)["input_ids"]
        made = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
        return tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)

    return answer


@contextmanager
def serving(answer, instead=lambda _: None):
    """A server of OpenAI's interface, which may do something else for the n-th request."""
    server, lock = SimpleNamespace(instead=instead, asked=[], at_once=0, busy=0), threading.Lock()

    def reply(path, headers, body):
        assert path == "/v1/chat/completions"
        asked = json.loads(body)
        prompt = asked["messages"][0]["content"]
        with lock:
            server.asked.append((prompt, asked["model"], headers["authorization"]))
            server.busy += 1
            server.at_once = max(server.at_once, server.busy)
            other = server.instead(len(server.asked))
        message = {"message": {} if other else {"content": answer(prompt) + "\ud83d"}}
        with lock:
            server.busy -= 1
        return other or (200, {}, {"object": "chat.completion", "choices": [message]})

    with answering(reply) as address:
        server.url = f"{address}/v1"
        yield server


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The words of the command, and its output."""
    monkeypatch.setenv("CONTRASENT_API_KEY", "sesame")
    text, out = tmp_path / "text.txt", tmp_path / "pairs.jsonl"
    every = [word for word in WORDS if word.isalpha()]
    lines = (" ".join(random.Random(n).sample(every, len(every))) for n in range(6))
    text.write_text("".join(f"{line}\n" for line in lines))
    return ("data", "synthesize", text, "--output", out, "--model", "tiny", "--top-k", 99), out


def test_a_model_writes_queries_of_every_kind(asked, language_model, tmp_path):
    command, out = asked
    with serving(language_model) as server:
        shown = worked(*command, "--endpoint", server.url, "--concurrency", 3).out
    prompts = [prompt for prompt, *_ in server.asked]
    assert len(prompts) == len(set(prompts)) == 24 and 1 < server.at_once <= 3
    assert {it[1:] for it in server.asked} == {("tiny", "Bearer sesame")}
    assert "6 question, 6 keywords, 6 title, 6 statement" in shown
    queries = {language_model(prompt).strip() for prompt in prompts}
    rows = rows_of(out)
    assert rows and all(any(row["query"] in it for it in queries) for row in rows)
    assert all(f"\n\n{row['passage']}" in "".join(prompts) for row in rows)
    assert all(b"sesame" not in path.read_bytes() for path in tmp_path.iterdir())


PARTS = {"choices": [{"message": {"content": [{"type": "thinking", "thinking": "hm"}]}}]}


def failing(status, first, **headers):
    body = {"error": {"message": "no more"}}
    return lambda n: (status, headers, body) if n in first else None


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        (failing(401, range(5, 99)), "answers 401 Unauthorized: "),
        (failing(402, range(5, 99)), "answers 402 Payment Required: "),
        (failing(404, range(5, 99)), "answers 404 Not Found: "),
        (lambda n: (200, {}, b"<p>hello</p>") if n > 4 else None, "'<p>hello</p>'"),
        (lambda n: (200, {}, {"ok": True}) if n > 4 else None, "answers no completion"),
        (lambda n: (200, {}, PARTS) if n > 4 else None, "answers no completion"),
    ],
)
def test_what_was_answered_before_a_failure_is_asked_no_more(asked, language_model, instead, told):
    command, out = asked
    with serving(language_model, instead) as server:
        message = refused(*command, "--endpoint", server.url, "--concurrency", 1)
        assert told in message and f"4 answers of 24 are in {out}.answers" in message
        assert not out.exists()
        assert "--resume goes on" in refused(*command, "--endpoint", server.url)
        answered = [prompt for prompt, *_ in server.asked[:4]]
        server.instead, server.asked = (lambda _: None), []
        call(*command, "--endpoint", server.url, "--resume", "--max-requests", 10)
        assert len(server.asked) == 6
        worked(*command, "--endpoint", server.url, "--resume")
        assert len(server.asked) == 20
        assert not {prompt for prompt, *_ in server.asked} & {*answered}
    whole = out.read_bytes()
    with serving(language_model) as server:
        worked(*command, "--endpoint", server.url, "--overwrite")
    assert out.read_bytes() == whole and len(server.asked) == 24


def test_a_busy_server_is_asked_again_when_it_says_and_a_dead_one_is_told(
    asked, language_model, monkeypatch
):
    monkeypatch.setattr(endpoint, "_WAITS", (0.0,) * 4)  # what the server says is longer
    command, _ = asked
    with serving(language_model, failing(429, [2], **{"Retry-After": "1"})) as server:
        began = time.monotonic()
        said = worked(*command, "--endpoint", server.url, "--concurrency", 1, "--kinds", "title")
        assert time.monotonic() - began > 1 and len(server.asked) == 7
        assert "asking again" not in said.err  # it says when, so that nothing is wrong
        dead = server.url
    message = refused(*command, "--endpoint", dead, "--overwrite", "--kinds", "title")
    assert f"{dead}/chat/completions does not answer" in message and "0 answers of 6" in message


ODD = [
    ("he asks\n</think>\n\nWho is it?", "Who is it?"),
    ("<think>a\nb</think>Who is it?\nNobody", "Who is it?"),
    ('```json\n{"question": "Who is it?"}\n```', "Who is it?"),
    ("Here is a **question**:\n\n1. Who is it?", "Who is it?"),
    ("Keywords: who, it", "who, it"),
    ("1984: a title", "1984: a title"),
    ("<think>well, he", ""),
]


def test_a_query_is_found_in_what_a_model_says_or_asked_for_again(asked, language_model):
    assert [_query(answer) for answer, _ in ODD] == [query for _, query in ODD]
    command, _ = asked
    with serving(lambda _: ODD[-1][0]) as server:
        message = refused(*command, "--endpoint", server.url, "--concurrency", 1)
        assert "answers no query, but '<think>well, he" in message and len(server.asked) == 8
    with serving(language_model) as server:
        worked(*command, "--endpoint", server.url, "--resume")
        assert len(server.asked) == 24


def test_a_text_that_a_server_refuses_ends_nothing(asked, language_model):
    command, _ = asked
    with serving(language_model, failing(400, [2, 5])) as server:
        shown = worked(*command, "--endpoint", server.url, "--concurrency", 1)
        assert len(server.asked) == 24 and "2 without a query" in shown.out
        assert shown.err.count("answers 400 Bad Request: ") == 2
    with serving(language_model, failing(400, range(99))) as server:
        message = refused(*command, "--endpoint", server.url, "--overwrite", "--concurrency", 1)
        assert "answers no query" in message and len(server.asked) == 8


def test_a_killed_command_goes_on(asked, language_model):
    command, out = asked

    def slow(prompt):
        time.sleep(0.2)
        return language_model(prompt)

    with serving(slow) as server:
        command = (*command, "--endpoint", server.url, "--concurrency", 2)
        process = started(*command)
        while len(server.asked) < 8:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.communicate()
        kept = out.with_name(f"{out.name}.answers")
        with kept.open("ab") as file:
            file.write(b'["half a li')
        answered = len(kept.read_text().splitlines()) - 1
        time.sleep(0.5)
        server.asked = []
        worked(*command, "--resume")
        assert answered >= 5 and len(server.asked) == 24 - answered
    assert len(kept.read_text().splitlines()) == 24
