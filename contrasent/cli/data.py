"""``contrasent data``: check, fetch, leaks, build, mine, synthesize."""

import shlex
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from pydantic import NonNegativeInt, PositiveInt

from contrasent import data, evaluation, model, options, search
from contrasent.cli.app import AsJson, print_facts, print_json, raise_failures, say, tell
from contrasent.cli.evaluate import announce
from contrasent.data import senteval
from contrasent.errors import ConfigError, DataError
from contrasent.files import sha256_of
from contrasent.progress import progress_bar
from contrasent.settings import ARGUMENT, Spelling, refuse_unused, settings, shared

_ENCODER = "all-MiniLM-L6-v2"
_FEWEST = 500  # different texts of which a part can be held out, to choose by
_COLUMNS = Spelling(of=options.RunOptions, metavar="A,B,...")


@settings
class CheckCommand(AsJson, options.FoundText, options.Replacing):
    """Check text: what is understood, how long it is, what would do harm.

    Ends with a verdict and the command that trains on it, or, if training could not use the file,
    with exit code 2.
    """

    file: Annotated[str, ARGUMENT]
    """Text (.txt, .csv, .tsv, .jsonl, each also .gz; .parquet), or a data set on the Hugging Face
    hub as org/name:config@split."""

    columns: Annotated[options.Listed | None, _COLUMNS] = None

    encoder: str | None = None
    """Folder or Hugging Face id of the encoder to train: count in its tokens too."""

    max_tokens: PositiveInt = 32
    """With --encoder: count the sentences that this training limit cuts."""

    output: Path | None = None
    """Write what would be read, cleaned with --clean, to a .txt, .csv, .tsv or .jsonl."""

    def __call__(self) -> None:
        if self.encoder is None:
            refuse_unused(self, ["max_tokens"], "tokens need an --encoder")
        examples = data.open_examples(self.file, self.columns, **shared(self, options.FoundText))
        if self.output is not None:
            data.build.require_output(self.output, self.overwrite, examples.views)
        folder = self.encoder and model.read_modules(model.resolve(self.encoder))[0][1]
        tokenizer = data.Tokenizer.load(folder) if folder else None
        with progress_bar("reading examples") as advance:
            facts = data.describe(examples, tokenizer, max_tokens=self.max_tokens, progress=advance)
        lines = [*facts.lines(), *data.example_lines(facts.names, facts.shown)]
        print_facts(asdict(facts), lines, json=self.json)
        if facts.unreadable.count:
            first = facts.unreadable.first[0]
            rows = data.plural(facts.unreadable.count, "row")
            raise DataError(f"{rows} of {self.file} cannot be read, first: {first}")
        examples.require(2)
        if self.output is not None:
            data.build.write_examples(examples, self.output, facts.documents is not None)
            tell(str(self.output))
        if not self.json:
            cautions = list(facts.cautions())
            say("\nverdict: " + ("usable, but look at" if cautions else "ready"))
            say("".join(f"  {caution}\n" for caution in cautions), nl=False)
            say(self._next_command(facts))

    def _next_command(self, facts: "data.TextFacts") -> str:
        adapts = facts.views == 1 and facts.examples - facts.repeated >= _FEWEST
        recipe = "unsup-simcse" if facts.views == 1 else "sup-adapt"
        with suppress(ConfigError, DataError):  # lists of candidates, known by name
            if data.open_rows_of(self.file, "lists", self.columns).chosen.by == "name":
                recipe, adapts = "rank-distil", False
        words = ["contrasent", *(["adapt"] if adapts else ["train", recipe, "--encoder"])]
        words += [self.encoder or _ENCODER, "--data", str(self.output or facts.source)]
        if self.columns and not self.output:
            words += ["--columns", ",".join(self.columns)]
        if adapts and self.documents is not None:
            words += ["--documents" if self.documents else "--lines"]
        if self.clean and not self.output and not adapts:
            return f"what is cleaned is not kept: add --output, then: {shlex.join(words)}"
        words += ["--clean"] * (self.clean and not self.output)
        return f"train with: {shlex.join(words)}"


@settings
class FetchCommand:
    """Download SentEval's data, and check every file of the STS tasks by its published hash.

    A training file is checked by its number of rows. What is there is only checked.
    """

    what: Annotated[Literal["senteval", "wiki1m", "nli"], ARGUMENT] = "senteval"
    """Evaluation data, or a training file of SimCSE: its million sentences, its NLI triplets."""

    data_dir: Path | None = None
    """Folder to fill or check; else, of SentEval's data, $CONTRASENT_DATA or where 'contrasent
    evaluate' looks by itself, of a training file the folder above that."""

    url: str | None = None
    """Mirror to take the archive or file from: http://, https:// or a local path; else SimCSE's."""

    def __call__(self) -> None:
        folder = senteval.named_folder(self.data_dir)
        with progress_bar("downloading", in_bytes=True) as advance:
            if self.what != "senteval":
                path = senteval.fetch_training_file(self.what, self.data_dir, self.url, advance)
                rows = senteval.TRAINING_FILES[self.what][1]
                say(f"{path}: {rows:,} rows, sha256 {sha256_of(path)}")
                return
            if not folder.is_dir() or not any(folder.iterdir()):
                senteval.fetch(folder, self.url or senteval.SENTEVAL_URL, advance)
        root = senteval.senteval_root(self.data_dir)
        wrong, files = senteval.differences(root), len(senteval.manifest())
        for name, what in wrong.items():
            tell(f"{root / name}: {what}")
        if wrong:
            raise DataError(
                f"{len(wrong)} of {files} files under {root} are missing or not the published "
                "ones; 'contrasent data fetch --data-dir NEW' downloads them into a new folder"
            )
        say(f"{root}: {files} files are the published ones")


@settings
class LeaksCommand(options.DataFolder, AsJson):
    """Look for evaluation sentences and pairs in training text."""

    train: Annotated[str, ARGUMENT]
    """Training text, as 'contrasent data check' takes it."""

    columns: Annotated[options.Listed | None, _COLUMNS] = None

    tasks: options.Listed = ("sts",)
    """Comma-separated, as 'contrasent evaluate' takes them: sts, transfer, one task, one with its
    split (stsb-dev), files of pairs or labelled sentences, retrieval data."""

    splits: Annotated[options.Listed, Spelling(of=options.EvaluationOptions)] = ("test",)

    def __call__(self) -> None:
        training = data.open_examples(self.train, self.columns)
        suite = evaluation.load_suite(self.tasks, evaluation.Options(self.data_dir, self.splits))
        announce(suite)
        with progress_bar("reading examples") as advance:
            overlaps = evaluation.find_leaks(training, suite, advance)
        if self.json:
            print_json(asdict(overlaps), indent=2)
        else:
            say(f"{overlaps.source}: {overlaps.examples:,} examples, {overlaps.columns}")
            for it in overlaps.tasks:
                seen = f"{it.seen:,} of {it.sentences:,} sentences, by letters and digits"
                if it.pairs:
                    seen += f"; {it.pairs_seen:,} of {it.pairs:,} pairs with both sentences"
                    seen += f" anywhere, {it.pairs_together:,} in one example, in either order"
                say(f"{it.heading}: {seen}")
                for at, text in it.first:
                    say(f"  {at}: {data.shortened(text, 80)}")
        raise_failures([f"{p.task}: {p.message}" for p in suite.problems if not p.missing])


@settings
class NewFile(options.Replacing):
    """The training text that a command makes."""

    output: Path
    """The file to write: .csv, .tsv or .jsonl."""


@settings
class BuildOptions(AsJson, NewFile):
    """The options of every command that builds training files."""

    sources: Annotated[list[str], ARGUMENT]
    """Files (.csv, .tsv, .jsonl, .parquet; others hold tabs; each also .gz) or data sets on the
    Hugging Face hub as org/name:config@split."""

    columns: options.Listed | None = None
    """Comma-separated columns of every source, in the order of the text above: header names, or
    numbers from 0; else known by name."""

    sample: PositiveInt | None = None
    """Draw so many of the examples; else all."""

    seed: NonNegativeInt = 0
    """Seed of whatever is drawn."""

    skip_unreadable: bool = False
    """Leave rows out that cannot be read; else end there."""

    def __call__(self) -> None:
        name = type(self).__name__.removesuffix("Command").lower()
        data.build.require_output(self.output, self.overwrite)
        sources = [data.open_rows_of(it, name, self.columns) for it in self.sources]
        general = shared(self, BuildOptions)
        own = {it: v for it, v in shared(self, type(self)).items() if it not in general}
        own |= {"seed": self.seed} if name == "nli" else {}
        kind = getattr(data.build, name)(sources, **own)
        how = {it: general[it] for it in ("sample", "seed", "skip_unreadable")}
        with progress_bar("reading rows") as advance:
            built = data.build.build(kind, self.output, progress=advance, **how)
        print_facts(asdict(built), built.lines(), json=self.json)


@settings
class NliCommand(BuildOptions):
    """Make triplets or pairs from natural language inference: premise, hypothesis, label.

    Reads SNLI, MultiNLI, ANLI and the like.
    """

    make: Literal[
        "triplets", "triplets+neutral", "entailment", "neutral", "contradiction", "all", "labelled"
    ] = "triplets"
    """triplets (premise, entailment, contradiction), triplets+neutral (and a neutral hypothesis as
    second hard negative), pairs with: entailment, neutral, contradiction, all; or labelled: all
    pairs, and a column label."""

    per: Literal["entailment", "premise"] = "entailment"
    """Write a triplet for each entailment, hard negatives drawn, or for each premise, all drawn."""

    contradictions: PositiveInt = 1
    """Hard negatives of a triplet; premises with fewer contradictions are left out."""

    labels: options.Listed | None = None
    """What the numbers of labels mean, from 0: such as entailment,neutral,contradiction. For
    sources with numbers that do not say it."""


@settings
class CaptionsCommand(BuildOptions):
    """Make pairs of any two captions of an image: image, caption.

    Reads Flickr's lines of image.jpg#k, tab, caption, and tables of image and caption.
    """


@settings
class DuplicatesCommand(BuildOptions):
    """Make pairs of duplicate questions: first question, second question, label 0 or 1.

    Reads Quora's question pairs (also GLUE's QQP), MRPC, PAWS and the like.
    """


@settings
class ParaphrasesCommand(BuildOptions):
    """Make pairs of sentences and their paraphrases: reference, paraphrase.

    Reads ParaNMT's lines of reference, tab, paraphrase, tab, score, and tables; takes every row.
    """


@settings
class MineCommand(options.Named, options.MiningOptions, NewFile):
    """Find hard negatives for pairs: near the anchor, and clearly farther than its positive.

    Writes sent0, sent1 and hard_neg, as 'contrasent train sup-simcse' takes them; with --candidates
    anchor, candidate_1 (the positive), candidate_2 ... and scores, for 'train rank-distil'. Never
    takes the anchor or one of its positives, however they are cased and punctuated.
    """

    pairs: Annotated[str, ARGUMENT]
    """Anchors and positives: a file (.csv, .tsv, .jsonl, .parquet) or a data set on the Hugging
    Face hub as org/name:config@split."""

    def __call__(self) -> None:
        import numpy as np

        mining = shared(self, options.MiningOptions) | {"output": self.output}
        mined = search.mine(self.model, self.pairs, show_progress=True, **mining)
        what = "scores of the teacher" if mined.scored else f"{mined.similarity} with the anchor"
        columns = zip(mined.header[2:], mined.hardest.T, strict=False)
        for name, scores in [("positive", mined.positives), *columns]:
            quantiles = np.quantile(scores, (0, 0.25, 0.5, 0.75, 1)).tolist()
            shown = ", ".join(f"{it:.2f}" for it in quantiles)
            say(data.aligned(name, f"{shown}: {what}, in quartiles"))
        say(
            f"{data.plural(len(mined.examples), 'example')} of {data.plural(mined.pairs, 'pair')}; "
            f"{mined.corpus:,} different sentences to take others from\n"
            f"left out: {data.plural(mined.without, 'pair')} without enough sentences "
            + ("in the corpus" if mined.scored else "below the margin")
        )


@settings
class SynthesizeCommand(options.SynthesisOptions, NewFile, AsJson):
    """Make pairs of query and passage from text without labels, to train and to evaluate on.

    Queries are headings, questions, first sentences and rare words, which are taken out of the
    passage where they give it away, or a language model writes them. Kept are those that find their
    passage again. Writes query, passage and kind, as 'contrasent train sup-adapt' takes them.
    """

    text: Annotated[str, Spelling(argument=True, of=CheckCommand, name="file")]

    def __call__(self) -> None:
        synthesis = shared(self, options.SynthesisOptions) | {"output": self.output}
        synthesized = evaluation.synthesize(self.text, show_progress=True, **synthesis)
        facts = asdict(synthesized) | {"pairs": len(synthesized.pairs)}
        print_facts(facts, synthesized.lines(), json=self.json)
