"""What a careless person asks of `contrasent train`: one clear message, exit code 2, no trace."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers.careless import PLAIN, QUIET, prepare, train
from helpers.command_line import call, refused, tree, worked


@pytest.fixture(autouse=True)
def desk(tmp_path, monkeypatch, tiny_bert):
    """The folder one works in."""
    return prepare(tmp_path, monkeypatch, tiny_bert)


def test_the_command_that_the_others_spoil_works(desk):
    worked(*train())
    assert (desk / "out" / "last" / "model.safetensors").is_file()


SETTINGS = [
    (
        ("--train.batch_sise", "8"),
        r"unknown setting of 'train': 'batch_sise'\. Did you mean 'batch_size', '\w+' or '\w+'\?",
    ),
    (("--trian.epochs", "8"), r"unknown recipe section 'trian'; .* Did you mean 'train'\?"),
    (("--objective.temprature", "1"), r".*'temprature'\. Did you mean 'temperature', .*"),
    (("--objective.name", "simsce"), r"unknown objective 'simsce'. Did you mean 'simcse', .*"),
    (("--outptu", "o"), r"unknown option 'outptu'\. Did you mean 'output', .*"),
    (("-x", "o"), r"unexpected '-x': settings are given as --section\.key VALUE"),
    (("stray",), r"unexpected 'stray': settings are given as --section\.key VALUE"),
    (("--train.seed",), r"--train\.seed needs a value: --train\.seed VALUE"),
    (("--train.seed", "--train.epochs", "2"), r"--train\.seed needs a value.*"),
    (("--train.seed", "--resume"), r"--train\.seed needs a value.*"),
    (("--encoder.pooler", "msan"), r"unknown pooler 'msan'; choose one of .*'mean'\?"),
    (("--encoder.head", "mpl"), r"encoder\.head cannot be 'mpl': input should be 'mlp' or 'none'"),
    (("--objective.temperature", "0"), r"objective\.temperature cannot be 0: .*greater than 0"),
    (("--objective.temperature", "-0.05"), r"objective\.temperature cannot be -0\.05: .*"),
    (("--objective.temperature=nan",), r"objective\.temperature cannot be .*: .*finite.*"),
    (("--train.batch_size", "1"), r"train\.batch_size cannot be 1: .*greater than or equal to 2"),
    (("--train.learning_rate", "0"), r"train\.learning_rate cannot be 0: .*greater than 0"),
    (("--train.learning_rate", "nan"), r"train\.learning_rate cannot be 'nan': .*finite number"),
    (("--train.learning_rate", "fast"), r"train\.learning_rate cannot be 'fast': .*number.*"),
    (("--max-steps", "0"), r"train\.max_steps cannot be 0: .*greater than 0"),
    (
        ("--data.max_tokens", "65"),
        r"data\.max_tokens is 65, but tiny takes at most 64 .*; lower it",
    ),
    (("--data.max_tokens", "2"), r"data\.max_tokens cannot be 2: .*greater than or equal to 3"),
    (("--data.columns", "1"), r"text\.txt holds one sentence per line, so columns=1 .*leave it.*"),
    (("--objective.hard_negatives", "1"), r"objective\.hard_negatives is 1, .*this data has 1"),
    (("--evaluation.task", "stsx"), r"unknown task .*'stsx'.*"),
    (
        ("--objective.keep_head", "true", "--objective.head", "batchnorm"),
        r"objective\.keep_head keeps a Linear\+Tanh, but objective\.head is batchnorm; .*",
    ),
    (
        ("--evaluation.task", "none.tsv"),
        r"no file none\.tsv; .*\nOr train without: --evaluation\.task none",
    ),
    (
        ("--evaluation.task", "stsb-dev"),
        r"no task has data.*sts-dev\.csv is missing.*contrasent data fetch.*"
        r"Or train without: --evaluation\.task none",
    ),
    (("--evaluation.final", "stsx"), r"unknown task .*'stsx'.*"),
    (("--train.trackers", "tensorbord"), r"unknown tracker 'tensorbord'.*'tensorboard', .*"),
    (("--resume", "--overwrite"), r"--resume keeps the run that --overwrite replaces; give one.*"),
]


@pytest.mark.parametrize(("words", "said"), SETTINGS, ids=lambda it: " ".join(it)[:40])
def test_a_wrong_setting_is_told_and_nothing_is_written(desk, words, said):
    before = tree(desk)
    message = refused(*train(*words))
    assert re.fullmatch(said, message, re.DOTALL), message
    assert tree(desk) == before


def test_a_tracker_that_is_not_installed_is_told_with_its_package(desk, monkeypatch):
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    message = refused(*train("--train.trackers", "wandb"))
    assert message == "tracker 'wandb' needs its package: pip install wandb"
    assert not (desk / "out").exists()


DATA = [
    ("none.txt", None, r"there is no file none\.txt; look for a misspelling, or give .*"),
    ("empty.txt", b"", r"empty\.txt is empty; it needs at least one sentence per line or row"),
    ("blank.txt", b"\n \n\n", r"blank\.txt is empty; .*"),
    ("one.txt", b"only one\n", r"one\.txt holds 1 example .*, but at least 2 are needed; .*"),
    ("ragged.csv", b"a,b\nc,d\ne\n", r"ragged\.csv:3: 1 column, but the first row has 2; .*"),
    ("latin.txt", b"one\ntwo\ncaf\xe9\n", r"latin\.txt:3: not UTF-8: byte 0xe9 at 3; convert .*"),
    ("notes.docx", b"PK", r"notes\.docx: unknown kind of file; known are \.txt, .*"),
    ("cut.txt.gz", b"\x1f\x8b\x08\x00", r"cut\.txt\.gz: damaged or truncated gzip .*"),
    ("bad.parquet", b"PAR1", r"bad\.parquet: not a readable Parquet file: .*"),
    ("bad.jsonl", b'{"text": "a"}\n{"text": \n', r"bad\.jsonl:2: not JSON: .*one object or .*"),
]


@pytest.mark.parametrize(("name", "content", "said"), DATA, ids=[row[0] for row in DATA])
def test_wrong_data_is_told_with_its_line_and_nothing_is_written(desk, name, content, said):
    if content is not None:
        (desk / name).write_bytes(content)
    before = tree(desk)
    message = refused(*train("--data", name))
    assert re.fullmatch(said, message, re.DOTALL), message
    assert tree(desk) == before


def test_a_folder_is_no_data():
    assert refused(*train("--data", ".")).startswith(". is a folder; give one file: .txt")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (("--data", "text.txt"), "no encoder to start from: name a folder or model with --encoder"),
        (("--encoder", "tiny"), "no training text: name a file or data set with --data"),
    ],
)
def test_what_is_missing_is_asked_for(desk, left, said):
    assert refused("train", "unsup-simcse", "--output", "out", *left, *QUIET) == said
    assert not (desk / "out").exists()


@pytest.mark.parametrize("setting", ["--evaluation.task", "--evaluation.final"])
def test_scores_that_are_all_equal_are_told_before_training(desk, setting):
    (desk / "flat.tsv").write_text("a dog\tthe dog\t3\na cat\tsad\t3\nred\tgreen\t3\n")
    message = refused(*train(setting, "flat.tsv"))
    assert message.startswith(
        "flat.tsv: the score of all 3 pairs is 3, so there is no correlation; is the right column "
    )
    assert not (desk / "out").exists()


RECIPES = [
    ("train:\n  batch_sise: 3\n", r"my\.yaml:2: unknown setting .*Did you mean 'batch_size', .*"),
    ("data: {}\ntrian:\n  epochs: 3\n", r"my\.yaml:2: unknown setting .*Did you mean 'train'\?"),
    ("- a\n- b\n", r"my\.yaml.* must hold sections such as 'encoder:', not \['a', 'b'\]"),
    ("train: {batch_size: [\n", r"my\.yaml:\d: not YAML: .*"),
    ("train:\n  epochs: many\n", r"my\.yaml:2: train\.epochs cannot be 'many': .*"),
    ("objective:\n  name: simsce\n", r"unknown objective 'simsce'\. Did you mean 'simcse', .*"),
]


@pytest.mark.parametrize(("text", "said"), RECIPES, ids=[row[0][:20] for row in RECIPES])
def test_a_wrong_recipe_file_is_told(desk, text, said):
    (desk / "my.yaml").write_text(text)
    message = refused("train", "my.yaml", *PLAIN)
    assert re.fullmatch(said, message, re.DOTALL), message
    assert not (desk / "out").exists()


def test_an_unknown_recipe_and_an_absent_recipe_file_are_explained():
    message = refused("train", "unsup-simsce", *PLAIN)
    assert message.startswith("unknown recipe 'unsup-simsce'. Did you mean 'unsup-simcse', ")
    assert message.count("'") == 8
    message = refused("train", "mine.yaml", *PLAIN)
    assert message.startswith("no recipe file mine.yaml; 'contrasent recipes' lists ")


def test_an_unknown_command_is_told_with_the_nearest():
    said = call("trian", "unsup-simcse")
    assert (said.code, said.out) == (2, "")
    assert "'trian'" in said.err and "'train'" in said.err
    said = call("data", "chek", "text.txt")
    assert (said.code, said.out) == (2, "")
    assert "'chek'" in said.err and "'check'" in said.err


# The encoder


@pytest.fixture
def copied(desk, tiny_bert):
    return shutil.copytree(tiny_bert, desk / "copied")


def cut(path):
    path.write_bytes(path.read_bytes()[:1000])


def flip(path):
    path.write_text("{" + path.read_text())


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("config.json", os.unlink, r"copied holds no config\.json, so it is not an encoder"),
        ("config.json", flip, r"cannot load copied: .*"),
        ("model.safetensors", cut, r"cannot load copied: .*"),
        ("model.safetensors", os.unlink, r"cannot load copied: .*no file named model\.saf.*"),
        ("tokenizer.json", flip, r".*copied.*"),
    ],
)
def test_a_damaged_encoder_is_told(copied, desk, name, spoil, said):
    spoil(copied / name)
    before = tree(desk)
    message = refused(*train("--encoder", "copied"))
    assert re.fullmatch(said, message), message
    assert tree(desk) == before


def test_an_encoder_that_is_nowhere_is_told():
    message = refused(*train("--encoder", "nowhere"))
    assert message.startswith("'nowhere' is no folder here, and the Hugging Face hub did not give")
    assert "check the name" in message and "contrasent[offline]" in message


@pytest.mark.slow
def test_an_unreachable_hub_is_told_quickly():
    """The hub is at a port where nobody listens, as it is without a network."""
    unreachable = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": "hf"}
    code = (
        "import sys, time, huggingface_hub, transformers\n"
        "from contrasent.errors import CheckpointError\n"
        "from contrasent.model.encoder import SentenceEncoder\n"
        "start = time.perf_counter()\n"
        "try: SentenceEncoder.load('bert-base-uncased')\n"
        "except CheckpointError as error: print(time.perf_counter() - start, error)"
    )
    said = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **unreachable},
    )
    seconds, _, message = said.stdout.partition(" ")
    assert float(seconds) < 10
    assert message.startswith("'bert-base-uncased' is no folder here, and the Hugging Face hub")
    assert "check the name, the network" in message


# Launchers


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ((1, 4, "no"), r"accelerate was told to use 4 gradient accumulation steps .*"),
        ((1, 1, "fp16"), r"accelerate was told .*mixed precision 'fp16'; start without .*"),
    ],
)
def test_a_launcher_that_would_train_otherwise_is_refused(state, said, desk, monkeypatch):
    from accelerate import Accelerator

    for name, value in zip(
        ("num_processes", "gradient_accumulation_steps", "mixed_precision"), state, strict=True
    ):
        monkeypatch.setattr(Accelerator, name, property(lambda _, value=value: value))
    message = refused(*train())
    assert re.fullmatch(said, message), message
    assert not (desk / "out").exists()


def test_selecting_by_a_test_split_is_warned_of(desk, monkeypatch):
    folder = desk / "senteval" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    rows = ["g\tf\ty\t1\t5\ta dog\tthe dog", "g\tf\ty\t2\t1\ta cat\tsad", "g\tf\ty\t3\t2\tred\tno"]
    (folder / "sts-test.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.setenv("CONTRASENT_DATA", str(desk / "senteval"))
    said = worked(*train("--evaluation.task", "stsb"))
    assert "warning: the best step is selected by the test split of STS-B" in said.err
