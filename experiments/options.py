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
  least: float | None = None,
  most: float = types.MOST,
  positional: bool = False,
) -> Any:
  """A dataclass field that is an option.

  Args:
    default: where the option is not given.
    help_text: what it does, in a line.
    parse: from the option's text; the default's type if None.
    choices: the only values there are.
    least: the smallest number there is; None for any, or where what it is for
      checks it.
    most: the largest, where there is a smallest.
    positional: take a word without a name before it, or where the default is a
      tuple one or more, as a tuple; `parse` is then of each, as it is if None.
  """
  return dataclasses.field(
    default_factory=lambda: default,
    metadata={
      "default": default,
      "help": help_text,
      "parse": parse or (str if positional else type(default)),
      "choices": choices,
      "least": least,
      "most": most,
      "positional": positional,
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
  fields = dataclasses.fields(kind)  # type: ignore[arg-type]
  unknown = set(presets or {}) - {field.name for field in fields}
  if unknown:
    raise ValueError(f"expected presets of options, found {sorted(unknown)}")
  positional = [field for field in fields if field.metadata["positional"]]
  words = [
    f"{x.name.upper()} [{x.name.upper()} ...] "
    if isinstance(x.metadata["default"], tuple)
    else f"{x.name.upper()} "
    for x in positional
  ]
  parser = _OneLineParser(
    usage=f"python -m {module(kind)} {''.join(words)}[options]",
    description=description,
    formatter_class=_Formatter,
    allow_abbrev=False,
  )
  for field in fields:
    default = (presets or {}).get(field.name, field.metadata["default"])
    _add(parser, field, default)
  # Unlike `parse_args`, this lets options stand among the positional words.
  found = vars(parser.parse_intermixed_args(argv))
  for field in positional:
    if isinstance(found[field.name], list):
      found[field.name] = tuple(found[field.name])
  for field in fields:
    least, most = field.metadata["least"], field.metadata["most"]
    if least is not None:
      _check_range(parser, field.name, found[field.name], least, most)
  return kind(**found)


def module(kind: type[Any]) -> str:
  """The module that a program's options are of, as one would import it."""
  if kind.__module__ != "__main__":
    return kind.__module__
  main = sys.modules["__main__"]
  if main.__spec__ is not None:
    return main.__spec__.name
  return pathlib.Path(main.__file__ or "").stem


def flag(name: str) -> str:
  """A field's name on the command line."""
  return "--" + name.replace("_", "-")


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


def _check_range(
  parser: argparse.ArgumentParser,
  name: str,
  value: float,
  least: float,
  most: float,
) -> None:
  """Exits with status 2 where a number is out of range."""
  try:
    types.check_range(flag(name), value, least, most)
  except types.ConfigError as error:
    parser.error(str(error))


def _add(
  parser: argparse.ArgumentParser, field: dataclasses.Field[Any], default: Any
) -> None:
  """Adds the option of a field."""
  name = flag(field.name)
  about = {"default": default, "help": field.metadata["help"]}
  if field.metadata["positional"]:
    name, about = field.name, {"help": field.metadata["help"]}
    if isinstance(default, tuple):
      about["nargs"] = "+"
  if isinstance(default, bool):
    parser.add_argument(name, action=argparse.BooleanOptionalAction, **about)
    return
  # Of an option's long name, the last word says what is wanted.
  whole, last = field.name.upper(), field.name.rpartition("_")[2].upper()
  short = {int: "N", float: "X"}.get(
    type(default), whole if field.metadata["positional"] else last
  )
  parser.add_argument(
    name,
    type=field.metadata["parse"],
    choices=field.metadata["choices"],
    metavar=None if field.metadata["choices"] else short,
    **about,
  )


class _Formatter(argparse.RawDescriptionHelpFormatter):
  """Keeps the description's lines, and adds the defaults as one gives them."""

  def _get_help_string(self, action: argparse.Action) -> str:
    said, value = action.help or "", action.default
    if isinstance(value, tuple):
      value = ",".join(map(str, value))
    elif isinstance(value, dict):
      value = ",".join(f"{key}={item}" for key, item in value.items())
    if value in ("", None, argparse.SUPPRESS):
      return said
    return f"{said} (default: {value})".replace("%", "%%")


class _OneLineParser(argparse.ArgumentParser):
  """A parser whose errors are one line."""

  def error(self, message: str) -> NoReturn:
    """Says what is wrong in one line, and exits with status 2."""
    fail(types.ConfigError(message + "; see --help"))
