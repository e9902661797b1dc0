"""A place to make mistakes in, and a command that is right until one is added."""

PLAIN = ("--encoder", "tiny", "--data", "text.txt", "--output", "out")
QUIET = ("--evaluation.task", "none", "--evaluation.final", "none", "--max-steps", "2")


def train(*words):
    """The words of a command that works, unless later words spoil it."""
    return ("train", "unsup-simcse", *PLAIN, *QUIET, *words)


def prepare(tmp_path, monkeypatch, encoder):
    """Make the folder one works in, with an encoder, text and scored pairs, and go there."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "text.txt").write_text("".join(f"a dog and {n} cats\n" for n in range(20)))
    (folder / "pairs.tsv").write_text("a dog\tthe dog\t5\na cat\tsad\t1\nred\tgreen\t2\n")
    (folder / "tiny").symlink_to(encoder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return folder
