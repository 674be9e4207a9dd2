"""The table in SECURITY.md, compared with the effects of its commands."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests import programs

# For each command, its words, a pattern of the files that it may change below
# the working directory, and the programs that it may start.
_RUN = "run/.*"
_COMMANDS = [
  ("train a2c --run-dir run --total-steps 4000 --quiet", _RUN, ()),
  ("train a2c --resume run --total-steps 5000", _RUN, ()),
  ("evaluate run --episodes 2", "run/checkpoints/[^/]+", ()),
  ("export run --output policy", "policy.*", ()),
  ("record run --episodes 2 --output data", "data/.*", ()),
  (
    "train ppo --env seedx:TicTacToe --env-options opponent=random"
    " --run-dir game --total-steps 4000 --quiet",
    "game/.*",
    (),
  ),
  (
    "arena game --against random,perfect --games 4 --output arena.json --trust",
    r"arena\.json",
    (),
  ),
  ("plot run --output curve.png", r"curve\.png", ()),
  ("certificates keys", "keys/.*", ("openssl",)),
  ("join 127.0.0.1:9 --give-up-seconds 0.1 --insecure", "nothing", ()),
]
# Commands that run other commands, or need minutes; see `planted_test` and
# `ray_test`.
_NOT_HERE = {"compare", "population", "sweep"}


@pytest.mark.slow
def test_commands_have_only_the_effects_of_the_table(tmp_path):
  home = tmp_path / "home"
  home.mkdir()
  (tmp_path / "temporary").mkdir()
  work = tmp_path / "work"
  work.mkdir()
  commands = [command.split() for command, *_ in _COMMANDS]
  ended = subprocess.run(
    [sys.executable, "-m", "tests.audited", json.dumps(commands)],
    cwd=work,
    env={
      **os.environ,
      "HOME": str(home),
      "TMPDIR": str(tmp_path / "temporary"),
      "MPLCONFIGDIR": str(home / "matplotlib"),
      "PYTHONPATH": str(programs.ROOT),
    },
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "/dev/")
  allowed = (str(tmp_path), "/dev/", "/proc/self/fd/", cache)
  effects = json.loads(ended.stdout.splitlines()[-1])
  for (command, changes, starts), effect in zip(
    _COMMANDS, effects, strict=True
  ):
    name = command.split()[0]
    assert effect["status"] == (3 if name == "join" else 0), (command, effect)
    assert effect["changed"] or name == "join"
    wrong = [x for x in effect["changed"] if not re.fullmatch(changes, x)]
    assert not wrong, (command, wrong)
    # Matplotlib runs fc-list once.
    assert {*effect["started"]} <= {"fc-list", *starts}, (
      command,
      effect["started"],
    )
    reached = [x for x in effect["reached"] if x != "('127.0.0.1', 9)"]
    assert not reached, (command, reached)
    outside = [x for x in effect["wrote"] if not x.startswith(allowed)]
    assert not outside, (command, outside)


def test_the_table_has_every_command():
  text = (programs.ROOT / "SECURITY.md").read_text()
  rows = re.findall(r"(?m)^\| (`[^|]+) \|", text)
  table = {
    word.split()[0] for row in rows for word in re.findall("`(.+?)`", row)
  }
  assert table == {command.split()[0] for command, *_ in _COMMANDS} | _NOT_HERE
  main = __import__("seedx.__main__", fromlist=["main"])
  assert table == {"train", *main._PROGRAMS}
