"""YAML files whose mistakes are told with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from contrasent.errors import ConfigError

_DEEPEST = 3
_SHOWN = 60

Lines = dict[tuple[str, ...], int]
"""The line, from 1, of each key, by the keys above it and itself."""


def read_mapping(path: Path) -> tuple[dict[str, Any], Lines]:
    """What a YAML file holds, and where.

    Raises:
        ConfigError: the file cannot be read, is not YAML, is not a mapping, or has a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content, tree = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if content is None:
        return {}, {}
    if not isinstance(content, dict):
        shown = repr(content)[:_SHOWN]
        raise ConfigError(f"{path} must hold sections such as 'encoder:', not {shown}")
    lines: Lines = {}
    _note(path, tree, (), lines)
    return content, lines


def line_of(location: tuple[str, ...], lines: Lines) -> int:
    """The line of a setting, or of the nearest key above it."""
    known = (location[:end] for end in range(len(location), 0, -1))
    return next((lines[above] for above in known if above in lines), 1)


def _note(path: Path, node: yaml.Node | None, above: tuple[str, ...], lines: Lines) -> None:
    if not isinstance(node, yaml.MappingNode) or len(above) == _DEEPEST:
        return
    for key, value in node.value:
        location, line = (*above, str(key.value)), key.start_mark.line + 1
        if location in lines:
            raise ConfigError(
                f"{path}:{line}: {'.'.join(location)} is set twice, first at line {lines[location]}"
            )
        lines[location] = line
        _note(path, value, location, lines)
