"""Tables that other programs print, kept as data."""

import json
import subprocess
from collections.abc import Sequence

from benchmarks.results import data


def measure(names: Sequence[str], command: Sequence[str]) -> int:
  """Runs a program, and writes the Markdown tables that it prints.

  The tables get the names in their order. The text of the command, and the
  values that pages mention, stay those of the file that is replaced.

  Returns:
    The exit status of the program; 2 if it printed too few tables.
  """
  about = data.provenance()
  process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  print(process.stdout, end="")
  if process.returncode:
    return process.returncode
  printed = read(process.stdout)
  if len(printed) < len(names):
    print(f"expected {len(names)} tables, found {len(printed)}")
    return 2
  for name, (columns, *rows) in zip(names, printed, strict=False):
    path = data.TABLES / f"{name}.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    kept = {"command": old.get("command", " ".join(command)), **about}
    kept |= {"columns": columns, "rows": rows, "values": old.get("values", {})}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    for value, text in kept["values"].items():
      print(f"{name}.{value} is still {text}; edit {path} if it has changed")
  return 0


def read(text: str) -> list[list[list[str]]]:
  """Returns the cells of all Markdown tables of a text, without rules."""
  tables: list[list[list[str]]] = []
  is_inside = False
  for line in text.splitlines():
    if line.startswith("|"):
      if not is_inside:
        tables.append([])
      if not set(line) <= set("|-: "):
        cells = line.strip().removeprefix("|").removesuffix("|").split("|")
        tables[-1].append([cell.strip() for cell in cells])
    is_inside = line.startswith("|")
  return tables
