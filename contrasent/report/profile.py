"""The table of a profile: the operators that took most of a step."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrasent.profiling import StepProfile

_SHOWN = 15


def print_profile(console: Console, profile: StepProfile) -> None:
    """Print the operators of a profile, and where its trace is; or why there is none."""
    if not profile.operators:
        message = f"no profile: it needs {profile.needed} steps, and the work ended before"
        console.print(Text(message), soft_wrap=True)
        return
    console.print(profile_table(profile))
    message = f"profile: {profile.path} (open it at https://ui.perfetto.dev)"
    console.print(Text(message), soft_wrap=True)


def profile_table(profile: StepProfile) -> Table:
    """A row per operator; those that took less share one, and so does the time without any."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("of a step", overflow="fold")
    for heading in ("ms", "share", "calls"):
        table.add_column(heading, justify="right")
    shown, others = profile.operators[:_SHOWN], profile.operators[_SHOWN:]
    spent = sum(operator.seconds for operator in profile.operators)
    rows = [(it.name, it.seconds, f"{it.calls / profile.recorded:g}") for it in shown]
    rows.append((f"{len(others)} other operators", sum(it.seconds for it in others), ""))
    rows.append(("Python and waiting", max(0.0, profile.seconds - spent), ""))
    for name, seconds, calls in rows:
        milliseconds = f"{1000 * seconds / profile.recorded:.2f}"
        table.add_row(Text(name), milliseconds, f"{seconds / profile.seconds:.1%}", calls)
    return table
