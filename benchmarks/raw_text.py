"""Raw text as people have it: twenty kinds of dirt, and whether `adapt` answers on each.

python -m benchmarks.raw_text DATA WORK --only html     # DATA has paraphrase and wiki
"""

from __future__ import annotations

import csv
import gzip
import html
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Annotated

import typer

FOREIGN = (
    "Der Zug nach {} fährt heute wegen Bauarbeiten zwei Stunden später ab als sonst üblich.",
    "Le musée de {} est fermé le mardi, mais les visiteurs peuvent encore voir le jardin.",
    "El mercado de {} abre a las ocho de la mañana y vende fruta, pescado y pan todos los días.",
    "Поезд {} прибывает на второй путь, и пассажиры ждут его на платформе.",  # noqa: RUF001
)


def lines(texts: Iterable[str]) -> str:
    """A text per line."""
    return "\n".join(texts) + "\n"


def table(rows: list[list[str]], delimiter: str = ",") -> str:
    """A file of quoted cells."""
    quoted = ([f'"{cell.replace(chr(34), 2 * chr(34))}"' for cell in row] for row in rows)
    return lines(map(delimiter.join, quoted))


def kinds(data: Path) -> dict[str, tuple[str, str, bool]]:
    """By the name of each kind: ending of the file's name, content, whether it has documents."""
    with (data / "paraphrase/qqp_sample.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    asked = list(dict.fromkeys(row["question1"] for row in rows))[:4000]
    whole = gzip.decompress((data / "wiki/wiki_docs.txt.gz").read_bytes()).decode()
    articles = [it.split("\n") for it in islice(whole.strip().split("\n\n"), 20_000)]
    some, sentences = articles[:600], [*chain.from_iterable(articles)]
    each = [*enumerate(asked)]
    stray = [it + "\n" * (1 + (n % 50 == 7)) for n, it in each]
    columns = [["id", "date", "text", "state"]]
    columns += [[str(n), "2024-05-01", it, "open"] for n, it in each]
    tagged = [f"<p class='q'>{html.escape(it)}&nbsp;<b>new</b><br/></p>" for it in asked]
    chapters = ["\n".join([f"## {article[0][:40]}", *article]) for article in some]
    wrapped = [textwrap.fill(" ".join(article), 72) for article in some]
    cities = zip(cycle(FOREIGN), sentences[:2000], strict=False)
    foreign = [of.format(f"{it.split()[0]} {n}") for n, (of, it) in enumerate(cities)]
    chat = [f"[{n // 60 % 24:02}:{n % 60:02}] user{n % 7}: {it}" for n, it in each]
    return {
        "stray blank lines": (".txt", "".join(stray), False),
        "double spaced": (".txt", "\n\n".join(asked), False),
        "documents": (".txt", "\n\n".join(map("\n".join, some)), True),
        "one text per line": (".txt", lines(map(" ".join, some)), False),
        "csv": (".csv", table([["question"], *([it] for it in asked)]), False),
        "csv of many columns": (".csv", table(columns), False),
        "csv by semicolons": (".csv", table(columns, ";"), False),
        "tsv": (".tsv", "question\tlabel\n" + lines(f"{it}\t1" for it in asked), False),
        "jsonl": (".jsonl", lines(json.dumps({"id": 1, "text": it}) for it in asked), False),
        "html": (".txt", lines(tagged), False),
        "markdown": (".txt", "\n\n".join(chapters), True),
        "wrapped paragraphs": (".txt", "\n\n".join(wrapped), True),
        "repeats": (".txt", lines(asked[:1000] * 4), False),
        "languages": (".txt", lines(foreign + sentences[:1000]), False),
        "chat": (".txt", lines(chat), False),
        "addresses": (".txt", lines(f"- https://ex.org/{n} {it}" for n, it in each), False),
        "wrong letters": (".txt", lines(it.replace("e", "Ã©") for it in asked), False),
        "CR LF, BOM, control": (".txt", "\ufeff" + "\x07 \t \r\n".join(asked), False),
        "300 lines": (".txt", lines(sentences[:300]), False),
        "300,000 lines": (".txt", lines(islice(cycle(sentences), 300_000)), False),
    }


def told(folder: Path) -> Iterator[str]:
    """Documents or lines, and the answer."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    first, *said = result["sentences"]
    yield "documents" if " documents of " in first else "lines"
    yield " ".join([result["outcome"], str(result["hybrid_weight"] or ""), *said[:2]])


def main(
    data: Path,
    work: Path,
    minutes: float = 2,
    only: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    """Print a row per kind: exit code, seconds, documents or lines, and the answer."""
    work.mkdir(parents=True, exist_ok=True)
    for number, (name, (ending, content, documents)) in enumerate(kinds(data).items()):
        if only and name not in only:
            continue
        file, folder = work / f"raw-{number}{ending}", work / f"adapt-{number}"
        file.write_text(content, encoding="utf-8", newline="")
        command = [sys.executable, "-m", "contrasent", "adapt", "all-MiniLM-L6-v2"]
        command += ["--data", str(file), "--minutes", str(minutes), "--output", str(folder)]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--overwrite"], capture_output=True, text=True, check=False
        )
        seconds, answer = f"{time.monotonic() - began:.0f} s", [done.stderr.strip()[-300:]]
        if not done.returncode:
            found, *answer = told(folder)
            right = "right" if (found == "documents") == documents else "WRONG"
            answer = [f"{found}, {right}", *answer]
        print(f"| {' | '.join([name, str(done.returncode), seconds, *answer])} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
