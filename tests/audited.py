"""A program that runs commands of seedx one by one, and audits each.

  python -m tests.audited '[["plot", "RUN", "--output", "a.png"], ...]'

The last line is JSON: for each command, the exit status, the events that
  `Audit` recorded, and the changed files below the working directory.
"""

import json
import os
import pathlib
import sys

from seedx import __main__ as program

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Audit:
  """A hook that records the events of a command.

  Attributes:
    wrote: absolute paths opened to write; paths relative to a directory's
      descriptor are missing.
    started: names of programs that were started.
    reached: addresses that sockets were bound or connected to.
  """

  def __init__(self):
    self.wrote, self.started, self.reached = set(), set(), set()

  def __call__(self, event, arguments):
    if event == "open":
      path, _, flags = arguments
      if isinstance(path, str | bytes) and flags & _WRITES:
        path = os.fsdecode(path)
        if os.path.isabs(path):
          self.wrote.add(path)
    elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
      self.started.add(os.path.basename(os.fsdecode(arguments[0])))
    elif event in ("socket.bind", "socket.connect"):
      self.reached.add(str(arguments[1]))


def main():
  done, audit = [], Audit()
  sys.addaudithook(lambda event, arguments: audit(event, arguments))
  for words in json.loads(sys.argv[1]):
    files, audit = _files(), Audit()
    sys.argv = ["seedx", *words]
    try:
      status = program.main()
    except SystemExit as error:
      status = error.code
    events = {k: sorted(v) for k, v in vars(audit).items()}
    after = _files()
    changed = {x for x in {*files, *after} if files.get(x) != after.get(x)}
    done.append({"status": status, "changed": sorted(changed), **events})
  print(json.dumps(done))


def _files():
  """Returns the size and time of each file below the working directory."""
  return {
    str(path): (path.stat().st_size, path.stat().st_mtime_ns)
    for path in pathlib.Path().rglob("*")
    if path.is_file()
  }


if __name__ == "__main__":
  main()
