"""Command lines from configs: each setting is a flag.

See `configs` for what a setting is. Help has no colours, an error is one line.
"""

import dataclasses
import difflib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from seedx import files, types
from seedx.app.cli import configs, synonyms

C = TypeVar("C")

# Where the sentences of `--help` begin.
_COLUMN = 24
_NUMBERS = {int: "as a whole number", float: "as a number"}
_KEYWORDS = "as KEY=VALUE,KEY=VALUE or as a JSON object"


def run(
  program: Callable[[C], int],
  options: C,
  name: str,
  description: str | None,
  argv: Sequence[str] | None,
  *,
  positional: Sequence[str] = (),
) -> int:
  """Parses a command line and runs a program with it.

  A `types.ConfigError` of the program is printed as one line, and exits with
  status 2.

  Args:
    program: takes the parsed options and returns an exit status.
    options: config with the defaults.
    name: how the program is called, such as `seedx plot`.
    description: text at the top of `--help`.
    argv: arguments without the program's name; those of this process if None.
    positional: see `parse`.

  Returns:
    The exit status.
  """
  argv = sys.argv[1:] if argv is None else argv
  try:
    with files.tentative():
      return program(
        parse(options, argv, name, description, positional=positional)
      )
  except types.ConfigError as error:
    fail(error)


def parse(
  config: C,
  argv: Sequence[str],
  program: str,
  description: str | None,
  *,
  positional: Sequence[str] = (),
  often: Collection[str] = (),
  unmeasured: Collection[str] = (),
) -> C:
  """Reads a command line; exits with status 2 and one line where it is wrong.

  Args:
    config: has the defaults.
    argv: without the program's name.
    program: how it is called.
    description: opens `--help`.
    positional: names of settings that are words without a flag before them. All
      must be given, a tuple as one or more words.
    often: names of settings that `--help` begins with.
    unmeasured: names of settings whose values are presets that nobody has
      measured.

  Returns:
    The config with what the command line says.
  """
  known = configs.settings(config)
  taken = [known[name] for name in positional]
  if asks_for_help(argv):
    print(f"usage: {program}", *map(_word, taken), "[options]\n")
    print(_help(config, description, positional, often, unmeasured))
    raise SystemExit(0)
  flags = [x for name, x in known.items() if name not in positional]
  try:
    given, rest = _read_flags(flags, argv)
    given |= _read_words(taken, rest, flags)
    return configs.replaced(config, given)
  except _WrongError as error:
    _refuse(str(error))
  except types.ConfigError as error:  # It calls settings by their fields.
    names = {name: flag(name) for name in known}
    names |= {name: name.upper() for name in positional}
    words = re.split(r"(?<=\bexpected )(\w+)", str(error))
    _refuse("".join(names.get(word, word) for word in words))


def asks_for_help(argv: Sequence[str]) -> bool:
  """Whether a command line has `--help`, whatever else it says."""
  return not {"-h", "--help"}.isdisjoint(argv)


def first(
  config: object, names: Sequence[str], argv: Sequence[str]
) -> dict[str, Any]:
  """Reads some settings only, whatever else the command line says.

  Args:
    config: has the defaults.
    names: of the settings.
    argv: without the program's name.

  Returns:
    Their values by their names.

  Raises:
    ValueError: a name is of no setting.
  """
  known = configs.settings(config)
  unknown = sorted(set(names) - set(known))
  if unknown:
    raise ValueError(f"expected names of settings, found {', '.join(unknown)}")
  try:
    read, _ = _read_flags([known[name] for name in names], argv)
  except _WrongError as error:
    _refuse(str(error))
  values = configs.values(config)
  return {name: values[name] for name in names} | read


def said(config: object, argv: Sequence[str]) -> set[str]:
  """The names of the settings that a command line says."""
  words = {_asked(word) for word in argv}
  known = configs.settings(config).values()
  return {x.name for x in known if not words.isdisjoint(_flags(x))}


def option(name: str, value: object) -> list[str]:
  """A setting as words of a command line: a flag, and its value if any."""
  if isinstance(value, bool):
    return [flag(name) if value else f"--no-{flag(name)[2:]}"]
  return [flag(name), shown(value)]


def shown(value: object) -> str:
  """Returns a value as a person writes it."""
  if isinstance(value, Mapping):
    if any("," in key or "=" in key for key in value):
      return json.dumps(value)
    return ",".join(f"{key}={_in_pairs(x)}" for key, x in value.items())
  if isinstance(value, tuple | list):
    return ",".join(map(str, value))
  return str(value)


def flag(name: str) -> str:
  """A setting's name on the command line."""
  return "--" + name.replace("_", "-")


def fail(error: types.ConfigError) -> NoReturn:
  """Says in one line what is wrong, and exits with status 2."""
  line = " ".join(str(error).split())
  # It may tell of a file that another wrote.
  print(f"error: {types.printable(line)}", file=sys.stderr)
  raise SystemExit(2)


class _WrongError(Exception):
  """A wrong command line."""


def _refuse(message: str) -> NoReturn:
  fail(types.ConfigError(f"{message}; see --help"))


def _read_flags(
  settings: Sequence[configs.Setting], argv: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
  """Reads the flags of settings.

  Returns:
    The values of the settings that are there, by their names, and the other
    words.
  """
  known = {x: setting for setting in settings for x in _flags(setting)}
  values: dict[str, Any] = {}
  rest: list[str] = []
  words = list(argv)
  while words:
    word = words.pop(0)
    if word == "--":  # No flags come after it.
      return values, [*rest, *words]
    asked, (_, equals, text) = _asked(word), word.partition("=")
    setting = known.get(asked)
    if setting is None:
      rest.append(word)
      continue
    if setting.kind is bool:
      if equals:
        raise _WrongError(f"expected no value of a switch, found {word}")
      values[setting.name] = asked == flag(setting.name)
      continue
    if not equals:
      if not words or re.match(r"--|-(?!inf$)[a-zA-Z]", words[0]):
        raise _WrongError(f"expected a value after {word}")
      text = words.pop(0)
    values[setting.name] = _read(setting.kind, text, asked)
  return values, rest


def _read_words(
  positional: Sequence[configs.Setting],
  words: list[str],
  flags: Sequence[configs.Setting],
) -> dict[str, Any]:
  """Reads the words that are no flags of settings."""
  for word in words:
    if word.startswith("-"):
      raise _WrongError(f"unrecognized arguments: {word}{_hint(word, flags)}")
  found: dict[str, Any] = {}
  for i, setting in enumerate(positional, 1):
    name, item = setting.name.upper(), configs.item(setting.kind)
    if not words:
      raise _WrongError(f"expected {name}, found no word for it")
    # Each that comes after it needs a word.
    count = max(1, len(words) - len(positional) + i) if item else 1
    taken, words = words[:count], words[count:]
    values = tuple(_read(item or setting.kind, word, name) for word in taken)
    found[setting.name] = values if item else values[0]
  if words:
    raise _WrongError(f"unrecognized arguments: {' '.join(words)}")
  return found


def _hint(word: str, settings: Sequence[configs.Setting]) -> str:
  """What may have been meant by a flag that is of none of the settings."""
  asked, known = _asked(word), [x for s in settings for x in _flags(s)]
  elsewhere = map(flag, synonyms.of(asked[2:].replace("-", "_")))
  here = [x for x in elsewhere if x in known]
  near = difflib.get_close_matches(asked, known)
  hint, flags = ("here", here) if here else ("nearest", near)
  return f" ({hint}: {', '.join(flags)})" if flags else ""


def _read(kind: Any, text: str, name: str) -> Any:
  """Reads the value of a setting that a person knows by this name."""
  choices, item = configs.choices(kind), configs.item(kind)
  if choices and text not in choices:
    known = ", ".join(choices)
    raise _WrongError(
      f"invalid choice for {name}: expected {known}, found {text!r}"
    )
  if choices or kind is str:
    return text
  try:
    if item is not None:
      parts = [part for part in text.split(",") if part]
      return tuple(x if item is str else types.number(int, x) for x in parts)
    return types.number(kind, text) if kind in _NUMBERS else _keywords(text)
  except (ValueError, RecursionError):
    wanted = "as whole numbers N,N" if item else _NUMBERS.get(kind, _KEYWORDS)
    raise _WrongError(f"expected {name} {wanted}, found {text!r}") from None


def _keywords(text: str) -> dict[str, Any]:
  """Reads `key=value,key=value`, or a JSON object; values may be JSON."""
  if text.startswith("{"):
    return json.loads(text)
  pairs = {}
  while text := text.lstrip(","):
    key, equals, rest = text.partition("=")
    if not equals or "," in key:
      raise ValueError(text)
    value, text = _first_value(rest)
    pairs[key] = value
  return pairs


def _first_value(text: str) -> tuple[Any, str]:
  """The value at the start of `value,key=value`, and what comes after it."""
  try:
    value, end = json.JSONDecoder().raw_decode(text)
    if text[end : end + 1] in ("", ","):
      return value, text[end + 1 :]
  except json.JSONDecodeError:
    pass
  word, _, rest = text.partition(",")
  return _json(word), rest


def _json(text: str) -> Any:
  """Reads JSON or `True` or `False`, or else a string."""
  try:
    return json.loads(text)
  except json.JSONDecodeError:
    return {"True": True, "False": False}.get(text, text)


def _in_pairs(value: object) -> str:
  """JSON, or a string as it is where it reads as nothing else."""
  if isinstance(value, str) and _json(value) == value and "," not in value:
    return value
  return json.dumps(value)


def _asked(word: str) -> str:
  """The flag in a word, whose name may have underscores for hyphens."""
  return word[:2] + word[2:].partition("=")[0].replace("_", "-")


def _flags(setting: configs.Setting) -> list[str]:
  name = flag(setting.name)
  return [name, f"--no-{name[2:]}"] if setting.kind is bool else [name]


def _word(setting: configs.Setting) -> str:
  """What stands for a setting that is positional."""
  name = setting.name.upper()
  return f"{name} [{name} ...]" if configs.item(setting.kind) else name


def _metavar(setting: configs.Setting) -> str:
  """What stands for the value of a flag."""
  if configs.choices(setting.kind):
    return f"{{{','.join(configs.choices(setting.kind))}}}"
  # Of a long name, the last word says what is wanted.
  last = setting.name.rpartition("_")[2].upper()
  return {int: "N", float: "X"}.get(setting.kind, last)


def parts(config: object) -> dict[str, list[configs.Setting]]:
  """The settings of a config by the part that has them.

  Those of its own room come before those that it has from another.
  """
  settings = sorted(
    configs.settings(config).values(), key=lambda x: _place(config, x.path)
  )
  found: dict[str, list[configs.Setting]] = {}
  for setting in settings:
    part = setting.path[-2] if len(setting.path) > 1 else "options"
    found.setdefault(part, []).append(setting)
  return found


def _place(config: Any, path: Sequence[str]) -> list[tuple[bool, int]]:
  """Orders fields: at each step of a path, those from another room are last."""
  place = []
  for name in path:
    fields = [field.name for field in dataclasses.fields(config)]
    *_, first = (
      x
      for x in type(config).mro()
      if name in getattr(x, "__dataclass_fields__", ())
    )
    rooms = {x.__module__.rpartition(".")[0] for x in (first, type(config))}
    place.append((len(rooms) > 1, fields.index(name)))
    config = getattr(config, name)
  return place


def _help(
  config: object,
  description: str | None,
  positional: Sequence[str],
  often: Collection[str],
  unmeasured: Collection[str],
) -> str:
  """What `--help` says below its first line; see `parse` for the arguments."""
  known, values = configs.settings(config), configs.values(config)

  def row(setting: configs.Setting) -> str:
    name, sentence = setting.name, setting.help.removesuffix(".")
    sentence += _defaults(values[name], setting.default, name in unmeasured)
    return _row(_invocation(setting), sentence.strip())

  groups = {
    "arguments": [_row(x.upper(), known[x].help) for x in positional],
    "often changed": [],
    "options": [_row("-h, --help", "show this message and exit")],
  }
  for part, settings in parts(config).items():
    for setting in settings:
      heading = "often changed" if setting.name in often else part
      if setting.name not in positional:
        groups.setdefault(heading, []).append(row(setting))
  texts = [f"{x}:\n" + "\n".join(rows) for x, rows in groups.items() if rows]
  return "\n\n".join([*filter(None, [(description or "").strip()]), *texts])


def _invocation(setting: configs.Setting) -> str:
  """How an option is given, with what stands for its value."""
  flags = ", ".join(_flags(setting))
  return flags if setting.kind is bool else f"{flags} {_metavar(setting)}"


def _defaults(value: object, before: object, is_unmeasured: bool) -> str:
  """What `--help` says of a value and of the one before presets."""
  said = {"default": shown(value)}
  if before is not dataclasses.MISSING and before != value:
    preset = "preset, not measured" if is_unmeasured else "preset"
    said = {preset: shown(value) or "empty", "default": shown(before)}
  texts = [f"{key}: {text}" for key, text in said.items() if text]
  return f" ({'; '.join(texts)})" if texts else ""


def _row(name: str, sentence: str) -> str:
  """Lines of `--help`: a name and, in a column beside it, its sentence."""
  beside = len(name) + 4 <= _COLUMN
  lines = textwrap.wrap(
    sentence,
    max(2 * _COLUMN, shutil.get_terminal_size().columns),
    initial_indent=f"  {name}".ljust(_COLUMN) if beside else " " * _COLUMN,
    subsequent_indent=" " * _COLUMN,
    break_long_words=False,
    break_on_hyphens=False,
  )
  return "\n".join(lines if beside and lines else [f"  {name}", *lines])
