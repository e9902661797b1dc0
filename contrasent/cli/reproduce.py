"""``contrasent reproduce``."""

from pathlib import Path
from textwrap import wrap
from typing import Annotated

from pydantic import PositiveInt, StringConstraints

from contrasent.cli.app import say, tell
from contrasent.cli.parameters import raise_failures
from contrasent.errors import pick
from contrasent.options import DataFolder, Listed, OnDevice, Replacing, Seeds
from contrasent.settings import Spelling, settings


@settings
class ReproduceCommand(DataFolder, OnDevice, Replacing):
    """Reproduce tables and figures from the papers, with the published numbers beside ours.

    A row whose material is not given has the published numbers alone, and its note names what is
    missing. Finished runs are kept.
    """

    tables: Annotated[list[str], Spelling(argument=True, metavar="TABLE")]
    """Tables and figures: simcse/T1, diffcse/T3, study/T4, simcse/F2, a paper (simcse, diffcse,
    study), baselines, successors, or all. Before them 'list' shows what there is and needs,
    'verdicts' which claims hold, 'commands' how every row is made."""

    output: Path = Path("reproduction")
    """The folder; what is done in it is kept, so that the same command goes on."""

    encoder: str | None = None
    """Start of every trained transformer: a masked language model, folder or id."""

    material: Annotated[
        list[Annotated[str, StringConstraints(pattern="^[^=]+=.+$")]] | None,
        Spelling(metavar="NAME=PATH"),
    ] = None
    """A text, or a model in place of one by its id: sentences=wiki1m.txt, words=glove.txt,
    triplets=nli.csv, roberta-base=FOLDER; 'list' says what is needed. Give it once for each."""

    scale: str | None = None
    """small: short runs of the encoder and data at hand; smoke: tiny shipped models, two steps
    each; paper: the papers' encoders, data and settings. Else as the folder, or small."""

    seeds: Annotated[Seeds | None, Spelling(metavar="S1,S2,...")] = None
    """Comma-separated seeds of training, else 42; a cell is mean and deviation."""

    rows: Listed = ()
    """Comma-separated rows, by name or a part of it; else all."""

    tasks: Listed = ()
    """What is scored, in place of the scale's tasks: such as sts,transfer."""

    jobs: PositiveInt = 1
    """Rows that are worked on at once, sharing the cores."""

    from_records: Path | None = None
    """A folder of the .parquet files that an earlier command wrote beside its tables: they are
    printed from these, and 'verdicts' judges by them; nothing is made."""

    def __call__(self) -> None:
        from contrasent import reproduce

        what = self.tables[0] if self.tables[0] in ("list", "verdicts", "commands") else ""
        names = self.tables[1:] if what else self.tables
        if what == "commands":
            say("\n".join(reproduce.plan_lines(names)))
            return
        data_dir = None if self.data_dir is None else str(self.data_dir)
        if self.from_records is not None:
            records = reproduce.read_records(self.from_records, data_dir)
            chosen = reproduce.choose(names or list(records), self.rows, self.tasks)
            chosen = [it for it in chosen if it.name in records]
            if not chosen:
                pick("record", names[0], records)
            filled = [records[it.name] for it in chosen]
            if what == "verdicts":
                _show(reproduce.verdicts_document(filled))
            else:
                tables = (it.part(table) for it, table in zip(filled, chosen, strict=True))
                _show("\n".join(reproduce.document(table) for table in tables))
            return
        chosen = reproduce.choose(names, self.rows, self.tasks)
        folder = reproduce.PaperRequest.read(self.output)
        encoder = {} if self.encoder is None else {reproduce.ENCODER: self.encoder}
        asked = reproduce.PaperRequest(
            given=encoder | dict(text.split("=", 1) for text in self.material or ()),
            seeds=tuple(self.seeds or (what and folder.seeds) or (42,)),
            data_dir=data_dir,
            device=self.device,
        )
        request = folder.followed_by(self.scale, asked)
        if what == "list":
            overview = reproduce.listing(request, chosen, self.output)
            notes = ("\n".join(wrap(note, 100, break_on_hyphens=False)) for note in overview.notes)
            _show("\n".join((overview.markdown(), *(f"{note}\n" for note in notes))))
        elif what == "verdicts":
            filled = reproduce.fill_tables(request, chosen, self.output)
            _show(reproduce.verdicts_document(filled))
        else:
            filled = reproduce.reproduce_tables(
                request, chosen, self.output, tell, jobs=self.jobs, overwrite=self.overwrite
            )
            _show("\n".join(reproduce.document(table) for table in filled))
            if failed := reproduce.failures(filled):
                raise_failures(["cells that could not be made:", *failed])


def _show(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text)) if console.is_terminal else say(text, nl=False)
