"""The mistakes of a first hour: the command, what the message holds (what was given, what is
expected, the remedy), exit code 2, no trace of Python, and nothing left behind."""

import pytest
from helpers.careless import PLAIN, QUIET, prepare, train
from helpers.command_line import call, tree

TEXT = "".join(f"My printer does not work since Monday, ticket {n}.\n" for n in range(20))
ROWS = [
    (f"T-{n:04}", f"My printer fails again {n}", f"Please turn number {n} off and on", "2024-01-02")
    for n in range(8)
]


def table(*numbers, head=None, cell=","):
    lines = [head] if head else []
    return "".join(
        f"{line}\n" for line in [*lines, *(cell.join(row[n] for n in numbers) for row in ROWS)]
    )


FILES = {
    "header.csv": table(0, 1, 2, 3, head="ticket_id,subject,description,created"),
    "ticket.csv": table(1, 2, head="ticket,article"),
    "ids.csv": table(0, 1),
    "semicolon.csv": "sent0;sent1\na dog;the dog\n",
    "flat.tsv": "a dog\tthe dog\t3\na cat\tsad\t3\nred\tgreen\t3\n",
    "words.tsv": "a dog\tthe dog\thigh\na cat\tsad\tlow\n",
    "list.yaml": "- a\n- b\n",
    "many.yaml": "train:\n  epochs: many\n",
}  # fmt: skip


@pytest.fixture
def desk(tmp_path, monkeypatch, tiny_bert):
    """A folder with an encoder, text, and files that are wrong in one way each."""
    folder = prepare(tmp_path, monkeypatch, tiny_bert)
    monkeypatch.delenv("CONTRASENT_DATA", raising=False)
    (folder / "text.txt").write_text(TEXT)
    for name, content in FILES.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    (folder / "taken").mkdir()
    (folder / "taken" / "thesis.txt").write_text("mine")
    return folder


def data(file, *words):
    return train("--data", file, *words)


def check(file, *words):
    return ("data", "check", file, *words)


def export(kind, *words):
    pooler = () if "--pooler" in words else ("--pooler", "cls")
    return ("export", "tiny", "out", "--format", kind, "--head", "none", *pooler, *words)


# The command, and what its message has to hold.
MISTAKES = [
    # Names of commands, recipes and options
    (("trian", "unsup-simcse"), ("'trian'", "'train'")),
    (("train",), ("name a recipe", "unsup-simcse", "--resume RUN")),
    (("train", "unsup-simsce", *PLAIN), ("'unsup-simsce'", "Did you mean", "'unsup-simcse'")),
    (("train", "mine.yaml", *PLAIN), ("cannot read mine.yaml",)),
    (("evaluate", "tiny", "--taks", "sts"), ("--taks", "--tasks")),
    (("search", "index"), ("Missing argument", "QUERY")),
    (train("--outptu", "o"), ("--outptu", "did you mean", "--output")),
    (train("--num_train_epochs", "3"), ("--num_train_epochs", "--epochs")),
    (train("--temperature", "0.1"), ("--temperature", "--objective.temperature")),
    # Settings and their values
    (train("--train.batch_sise", "8"), ("'batch_sise'", "'train'", "'batch_size'")),
    (train("--objective.name", "simsce"), ("'simsce'", "Did you mean", "'simcse'")),
    (train("--train.seed"), ("--train.seed needs a value", "--train.seed VALUE")),
    (train("--seed", "1", "--train.seed", "2"), ("seed 1", "train.seed 2", "give one")),
    (train("--seeds", "1,x"), ("valid integer",)),
    (train("--seeds", "1,2", "--seed", "3"), ("leave --seed",)),
    (train("--encoder.pooler", "msan"), ("'msan'", "choose one of", "'mean'")),
    (train("--encoder.head", "mpl"), ("encoder.head", "'mpl'", "'mlp' or 'none'")),
    (train("--objective.temperature", "0"), ("objective.temperature", "0", "greater than 0")),
    (train("--batch-size", "1"), ("train.batch_size", "1", "greater than or equal to 2")),
    (train("--precision", "fp8"), ("train.precision", "'fp8'", "'auto', 'bf16'")),
    (train("--data.max_tokens", "65"), ("data.max_tokens is 65", "at most 64", "lower it")),
    (train("--objective.hard_negatives", "1"), ("objective.hard_negatives is 1", "has 1")),
    (train("--device", "cuda:99"), ("'cuda:99'", "name another one", "leave it out")),
    (train("--evaluation.task", "stsx"), ("unknown task", "'stsx'")),
    (
        train("--objective.keep_head", "true", "--objective.head", "batchnorm"),
        ("objective.keep_head", "objective.head is batchnorm"),
    ),
    (train("--evaluation.task", "none.tsv"), ("no file none.tsv", "--evaluation.task none")),
    (train("--evaluation.task", "stsb-dev"), ("sts-dev.csv is missing", "contrasent data fetch")),
    (train("--evaluation.task", "flat.tsv"), ("flat.tsv", "every gold is 3")),
    (train("--evaluation.final", "words.tsv"), ("words.tsv:1", "must be a number", "'high'")),
    (("train", "list.yaml", *PLAIN), ("list.yaml", "['a', 'b']", "sections such as 'encoder:'")),
    (("train", "many.yaml", *PLAIN), ("many.yaml:2", "train.epochs", "'many'")),
    # Training text
    (check("header.csv"), ("header.csv:1", "'ticket_id'", "--columns subject,description")),
    (data("ticket.csv"), ("ticket.csv:1", "'ticket'", "--columns ticket,article")),
    (check("ids.csv"), ("ids.csv:1", "ids, numbers or dates", "--columns")),
    (data("header.csv", "--columns", "ticket_id,subject"), ("'ticket_id'", "ids", "--columns")),
    (data("header.csv", "--columns", "subjekt"), ("'subjekt'", "Did you mean 'subject'?")),
    (check("semicolon.csv"), ("semicolon.csv", "1 example", "at least 2")),
    (data("text.txt", "--columns", "1"), ("has no columns to choose", ".csv or .tsv")),
    (data("."), (". is a folder", "give one file")),
    # Encoders and folders
    (("train", "unsup-simcse", "--data", "text.txt", *QUIET), ("name a folder", "--encoder")),
    (("train", "unsup-simcse", "--encoder", "tiny", *QUIET), ("the training text", "--data")),
    (train("--encoder", "nowhere"), ("'nowhere'", "Hugging Face Hub", "check the name")),
    (train("--encoder", "text.txt"), ("text.txt", "word vectors")),
    (train("--output", "taken"), ("taken holds files", "thesis.txt", "--output")),
    (train("--output", "text.txt"), ("text.txt is a file", "--output")),
    (train("--resume", "--overwrite"), ("--resume", "--overwrite", "give one of them")),
    # Using an encoder
    (("evaluate", "tiny", "--tasks", "stsbench"), ("'stsbench'", "Did you mean", "'stsb'")),
    (("evaluate", "tiny"), ("no task has data", "contrasent data fetch", "--data-dir")),
    (("evaluate", "tiny", "--tasks", "pairs.tsv", "--pooler", "avg"), ("'avg'", "mean")),
    (("evaluate", "tiny", "--tasks", "pairs.tsv", "--json", "taken"), ("taken exists already",)),
    (("encode", "./gone", "text.txt", "rows.csv"), ("rows.csv", ".npy", ".parquet")),
    (("encode", "./gone", "none.txt", "rows.npy"), ("no file none.txt",)),
    (("encode", "tiny", "header.csv", "rows.npy", "--columns", "a,b"), ("a,b", "choose one of")),
    (("encode", "tiny", "text.txt", "o.npy", "--precision", "fp8"), ("--precision", "'fp8'")),
    (("index", "build", "tiny", "text.txt", "taken"), ("taken exists already", "another folder")),
    (export("onxx"), ("unknown format 'onxx'",)),
    (export("onnx", "--tolerance", "0"), ("--tolerance cannot be '0'",)),
    (export("onnx", "--pooler", "mean_first_last"), ("pooler 'mean_first_last' reads",)),
    (("index", "add", "gone", "text.txt"), ("no index at gone", "contrasent index build")),
    (("fit", "whitening", "tiny", "--data", "text.txt", "--output", "taken"), ("taken exists",)),
    (("neighbors", "tiny", "--corpus", "none.txt"), ("'neighbors'", "'neighbours'")),
    (("calibrate", "tiny", "pairs.tsv>="), ("pairs.tsv>=",)),
    (("calibrate", "tiny", "text.txt"), ("'text.txt' cannot be read as rated pairs", ".tsv, .csv")),
    (("evaluate", "tiny", "--tasks", "text.txt"), ("'text.txt'", "--text FILE")),
    (train("--lr", "fast"), ("--learning-rate", "'fast'", "valid number")),
    (("similarity", "./tinny", "a", "b"), ("no folder ./tinny", "Did you mean 'tiny'?")),
    (("similarity", "all-MiniLM-L6-v3", "a", "b"), ("Did you mean 'all-MiniLM-L6-v2'?",)),
    (("mteb", "tiny", "--tasks", "STSBenchmrk"), ("STSBenchmrk",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "held"), MISTAKES, ids=[" ".join(map(str, words))[-48:] for words, _ in MISTAKES]
)
def test_a_mistake_is_explained_and_leaves_nothing_behind(desk, words, held):
    before = tree(desk)
    said = call(*words)
    assert said.code == 2, said
    assert "Traceback" not in said.err
    message = said.err.rpartition("error: ")[2] if "error: " in said.err else said.err
    for part in held:
        assert part in message, message
    assert tree(desk) == before
