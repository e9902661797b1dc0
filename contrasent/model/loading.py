"""Loading: a transformer or word vectors, by whatever name a user gives; and publishing it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import CARD, INFO_FILE, REASON, card_text, hub_id, resolve, without_paths
from contrasent.model.int8 import require_engine
from contrasent.model.st_modules import is_static
from contrasent.model.static_encoder import StaticEncoder
from contrasent.model.word_encoder import WordEncoder, are_words

LoadedEncoder = SentenceEncoder | WordEncoder | StaticEncoder


def load_encoder(
    name: str | Path,
    *,
    pooler: str | None = None,
    head: str | None = None,
    engine: str = "torch",
    device: str | None = None,
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
) -> LoadedEncoder:
    """Load an encoder of any kind: a transformer, a static table or word vectors.

    Args:
        name: as `SentenceEncoder` takes it; or a folder with a StaticEmbedding, or of model2vec; a
            ``.txt`` or ``.vec`` file of word vectors, gzipped or not, or a folder that ``contrasent
            fit sif`` made of one.
        pooler: of a transformer, as the next two, as `SentenceEncoder` takes them.
        head: as there.
        engine: as there.
        device: as there; tables of vectors are read on the CPU.
        truncate_dim: keep only so many leading dimensions of an embedding.
        prompt_name: the prompt for every sentence, those that are queries or documents too.

    Raises:
        ContrasentError: as of `SentenceEncoder`.

    Example:
        >>> import contrasent
        >>> contrasent.load_encoder("glove.6B.300d.txt").encode(["a dog"])  # doctest: +SKIP
    """
    encoder: LoadedEncoder
    static = not are_words(name) and is_static(resolve(name))
    if static or are_words(name):
        require_engine("torch" if engine == "static" else engine, device)
        encoder = StaticEncoder.load(name) if static else WordEncoder.load(name)
        parts = {"pooler": (pooler, encoder.pooler), "head": (head, encoder.head_name)}
        for part, (given, used) in {**parts, "engine": (engine, encoder.engine)}.items():
            if given not in (None, used) and (part, given) != ("engine", "torch"):
                raise ConfigError(f"{name} holds word vectors, which have no {part}: leave it out")
    else:
        encoder = SentenceEncoder.load(name, pooler=pooler, head=head, device=device, engine=engine)
    if truncate_dim is not None:
        encoder.truncate_dim = truncate_dim
    if prompt_name is not None:
        encoder.conventions = encoder.conventions.with_prompt(prompt_name)
    return encoder


@dataclass(frozen=True, slots=True)
class Publication:
    """The files of an encoder as they go to the hub, and what was found there."""

    repository: str  # ``ORG/NAME``
    folder: Path  # the encoder's
    contents: dict[str, Path | bytes]  # of each file its path, or the bytes that take its place

    @classmethod
    def of(cls, name: str | Path, repository: str) -> Publication:
        """What would be published of the encoder ``name``, without any path of this machine.

        CheckpointError if there is no encoder of ours; ConfigError if ``repository`` is no
        ``ORG/NAME``.
        """
        if repository.count("/") != 1 or hub_id(repository) != repository:
            raise ConfigError(
                f"{repository!r} is no name on the hub; give ORGANISATION/NAME, such as "
                "me/my-encoder"
            )
        folder = resolve(name)
        if not all((folder / file).is_file() for file in (INFO_FILE, "modules.json")):
            raise CheckpointError(
                f"{folder} is no sentence encoder that contrasent saved (it has no {INFO_FILE} "
                "with a modules.json); name a training run, or a folder of one"
            )
        info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
        card = folder / CARD
        own = card.read_text(encoding="utf-8") if card.is_file() else card_text(folder)
        text = card_text(folder, repository) if own == card_text(folder) else own
        published = json.dumps(without_paths(info), indent=2, ensure_ascii=False) + "\n"
        changed = {INFO_FILE: published.encode(), CARD: text.encode()}
        files = sorted(it for it in folder.rglob("*") if it.is_file())
        contents: dict[str, Path | bytes] = {
            it.relative_to(folder).as_posix(): it for it in files if not it.name.startswith(".")
        }
        return cls(repository, folder, {**contents, **changed})

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {
            name: it.stat().st_size if isinstance(it, Path) else len(it)
            for name, it in self.contents.items()
        }

    def push(self, *, private: bool = False) -> str:
        """Make the repository if it is not there, and commit the files; the address of the commit.

        Raises CheckpointError if the hub refuses.
        """
        from huggingface_hub import CommitOperationAdd, HfApi

        api = HfApi()
        try:
            api.create_repo(self.repository, private=private, exist_ok=True)
            operations = [
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
                for name, content in self.contents.items()
            ]
            done = api.create_commit(
                self.repository, operations, commit_message="Publish with contrasent"
            )
        except Exception as error:  # of httpx or of requests, by the version of huggingface_hub
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CheckpointError(
                f"the hub did not take {self.repository} ({reason[:REASON]}); check the name, the "
                "network, and your login (hf auth login, or HF_TOKEN with write access)"
            ) from error
        return str(done.commit_url)
