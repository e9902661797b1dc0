"""Files of rows in every data format."""

import csv
import gzip
import io
import json


def write(path, *, names, rows, mark="", end="\n", between=","):
    """A file with a column of numbers and then the rows', in the format that its name says.

    ``names`` are of the columns, that of the numbers first; ``mark`` stands before the first line,
    as a byte order mark; ``between`` is for a ``.csv``, as all else has tabs.
    """
    table = records(names, rows)
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(table), path)
        return str(path)
    if ".jsonl" in path.name:
        text = "".join(json.dumps(row) + end for row in table)
    elif ".csv" in path.name:
        file = io.StringIO()
        writer = csv.writer(file, delimiter=between, lineterminator=end)
        writer.writerows([names, *(row.values() for row in table)])
        text = file.getvalue()
    else:
        cells = [names, *(row.values() for row in table)]
        text = "".join("\t".join(map(str, row)) + end for row in cells)
    data = (mark + text).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def write_retrieval(folder, corpus, queries, judged, qrels="qrels.tsv"):
    """A retrieval task as BEIR's: texts by their ids, and rows of query, document, relevance."""
    (folder / qrels).parent.mkdir(parents=True)
    for name, texts in (("corpus", corpus), ("queries", queries)):
        lines = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    lines = "".join("\t".join(map(str, row)) + "\n" for row in judged)
    (folder / qrels).write_text(f"query-id\tcorpus-id\tscore\n{lines}", "utf-8")


def records(names, rows):
    """The rows as objects, with a number each in front."""
    return [dict(zip(names, (number, *row), strict=True)) for number, row in enumerate(rows)]
