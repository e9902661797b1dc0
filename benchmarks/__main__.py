"""Benchmarks beside the peers: ``python -m benchmarks encode --data sentences.txt``.

Without names those of docs/performance.md, in about two hours on two cores; let nothing else run
meanwhile. Options that are named here change those of every benchmark that runs.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.material import gathered
from benchmarks.race import Process, Start, run
from benchmarks.races import TABLE, race_of
from benchmarks.results import read, setting_line, table, updated, write
from contrasent.errors import ContrasentError, pick
from contrasent.files import write_text

NAMES: Mapping[str, Mapping[str, Any]] = {**TABLE["benchmarks"], **TABLE["gpu"]}


def options_of(name: str, changes: Mapping[str, Any]) -> argparse.Namespace:
    """The options of a benchmark, some changed; ConfigError if there is none of this name."""
    defaults = {option: default for option, (default, _) in TABLE["options"].items()}
    options = {**defaults, **NAMES[pick("benchmark", name, NAMES)], **changes}
    return argparse.Namespace(**{key.replace("-", "_"): value for key, value in options.items()})


def main(arguments: Sequence[str] | None = None, start: Start = Process) -> int:
    """Measure and report; the exit code is 1 if a contestant failed, 2 for a wrong request."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    names = f"of {', '.join(NAMES)}; or a result to print, FILE.json"
    parser.add_argument("names", nargs="*", metavar="NAME", help=names)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see if it works")
    parser.add_argument("--results", type=Path, help="a folder to write NAME.json to")
    parser.add_argument("--page", type=Path, help="make the tables of this .md file anew")
    for name, (default, text) in TABLE["options"].items():
        parser.add_argument(f"--{name}", type=type(default), dest=name, help=text)
    chosen = vars(parser.parse_args(arguments))
    changes = dict(TABLE["tiny"]) if chosen["tiny"] else {}
    changes |= {key: chosen[key] for key in TABLE["options"] if chosen[key] is not None}
    failed = False
    try:
        for name in chosen["names"] or TABLE["benchmarks"]:
            saved = name.endswith(".json")
            if saved:
                result = read(name)
            else:
                options = options_of(name, changes)
                with gathered(options.encoder, options.data) as material:
                    result = run(race_of(options, material), options, material.place, start)
            print(f"\n{result.title}: {setting_line(result)}\n\n{table(result)}", flush=True)
            failed |= bool(result.failed) and not saved
            if chosen["results"] and not saved:
                write(result, chosen["results"] / f"{name}.json")
        if page := chosen["page"]:
            write_text(page, updated(page.read_text(encoding="utf-8"), page.parent))
    except ContrasentError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
