"""Command lines from dataclasses: each field is an option."""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from seedx import types

T = TypeVar("T")


def option(
  default: Any,
  help_text: str,
  *,
  parse: Any = None,
  choices: Sequence[str] | None = None,
) -> Any:
  """A dataclass field that is an option.

  Args:
    default: where the option is not given.
    help_text: what it does, in a line.
    parse: from the option's text; the default's type if None.
    choices: the only values there are.
  """
  return dataclasses.field(
    default_factory=lambda: default,
    metadata={
      "default": default,
      "help": help_text,
      "parse": parse or type(default),
      "choices": choices,
    },
  )


def parse(
  kind: type[T],
  argv: Sequence[str],
  description: str | None,
  presets: Mapping[str, Any] | None = None,
) -> T:
  """Reads a command line; exits with status 2 and one line where it is wrong.

  Args:
    kind: a dataclass, all of whose fields are made by `option`.
    argv: without the program's name.
    description: opens `--help`.
    presets: replace defaults.

  Raises:
    ValueError: a preset is of no option.
  """
  unknown = set(presets or {}) - {
    field.name
    for field in dataclasses.fields(kind)  # type: ignore[arg-type]
  }
  if unknown:
    raise ValueError(f"expected presets of options, found {sorted(unknown)}")
  parser = _OneLineParser(
    usage="python -m experiments.%(prog)s [options]",
    prog=pathlib.Path(sys.argv[0]).stem,
    description=description,
    formatter_class=_Formatter,
    allow_abbrev=False,
  )
  for field in dataclasses.fields(kind):  # type: ignore[arg-type]
    default = (presets or {}).get(field.name, field.metadata["default"])
    name = "--" + field.name.replace("_", "-")
    about = {"default": default, "help": field.metadata["help"]}
    if isinstance(default, bool):
      parser.add_argument(name, action=argparse.BooleanOptionalAction, **about)
      continue
    parser.add_argument(
      name,
      type=field.metadata["parse"],
      choices=field.metadata["choices"],
      metavar=field.name.upper() if not field.metadata["choices"] else None,
      **about,
    )
  return kind(**vars(parser.parse_args(argv)))


def integers(text: str) -> tuple[int, ...]:
  """Parses `0,1,2`."""
  return tuple(int(part) for part in text.split(",") if part)


def names(text: str) -> tuple[str, ...]:
  """Parses `a,b`."""
  return tuple(part for part in text.split(",") if part)


def keywords(text: str) -> dict[str, Any]:
  """Parses `key=value,key=value`, each value as JSON or else as a string."""
  pairs = {}
  for part in names(text):
    key, equals, value = part.partition("=")
    if not equals:
      raise argparse.ArgumentTypeError(
        f"expected KEY=VALUE,KEY=VALUE, found {part!r}"
      )
    try:
      pairs[key] = json.loads(value)
    except json.JSONDecodeError:
      pairs[key] = {"True": True, "False": False}.get(value, value)
  return pairs


def fail(error: types.ConfigError) -> NoReturn:
  """Says in one line what is wrong, and exits with status 2."""
  print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
  raise SystemExit(2)


class _Formatter(
  argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter
):
  """Keeps the description's lines, and adds the defaults."""


class _OneLineParser(argparse.ArgumentParser):
  """A parser whose errors are one line."""

  def error(self, message: str) -> NoReturn:
    """Says what is wrong in one line, and exits with status 2."""
    fail(types.ConfigError(message + "; see --help"))
