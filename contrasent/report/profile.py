"""Where the time of a step goes, as a table."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrasent.profiling import StepProfile

_LEAST_SHARE = 0.005
_REST = "smaller kinds"


def print_profile(console: Console, profile: StepProfile) -> None:
    """Print the kinds of work of a profile, and where its trace is; or why there is none."""
    if not profile.kinds:
        said = f"no profile: it needs {profile.needed} steps, and the work ended before"
        console.print(Text(said), soft_wrap=True)
        return
    console.print(profile_table(profile))
    said = f"profile: {profile.path} (open it at https://ui.perfetto.dev)"
    console.print(Text(said), soft_wrap=True)


def profile_table(profile: StepProfile) -> Table:
    """A row per kind of work; those below half a percent share one."""
    shown = [kind for kind in profile.kinds if kind.share >= _LEAST_SHARE]
    rest = [kind for kind in profile.kinds if kind.share < _LEAST_SHARE]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("of a step", no_wrap=True)
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    table.add_column("mostly", overflow="fold")
    for kind in shown:
        most = Text(", ".join(name.rpartition("::")[2] for name in kind.most))
        table.add_row(Text(kind.name), f"{kind.milliseconds:.2f}", f"{kind.share:.1%}", most)
    if rest:
        spent, share = sum(k.milliseconds for k in rest), sum(k.share for k in rest)
        table.add_row(Text(_REST), f"{spent:.2f}", f"{share:.1%}", "")
    return table
