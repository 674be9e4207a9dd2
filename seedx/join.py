"""Joins a run on another machine: `python -m seedx.join HOST:PORT`.

The learner sends this process its role and options. The process works until the
learner is done, and reconnects when the learner restarts.
"""

import argparse
import importlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from seedx import types, wire
from seedx.launch import joining
from seedx.runtime import signals


def main(argv: Sequence[str] | None = None) -> int:
  """Joins a run.

  Args:
    argv: without the program's name; this program's own if None.

  Returns:
    The exit status, see `run`; it exits with 2 where a word is wrong.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  parser = _parser()
  asked = parser.parse_args(argv)
  if not re.fullmatch(r"unix:.+|.+:\d+", asked.address):
    parser.error(f"expected HOST:PORT or unix:PATH, found {asked.address}")

  def play(told: joining.Told, ended: threading.Event) -> None:
    # Before anything imports JAX, as EnvPool does.
    if told.needs_jax:
      if sys.modules.get("jax", told) is None:
        os.execv(sys.executable, [sys.executable, "-m", "seedx.join", *argv])
      os.environ.setdefault("JAX_PLATFORMS", "cpu")
      programs = importlib.import_module("seedx.app.programs")
      programs.play(told, asked.address, asked.listen, ended)
    else:
      sys.modules["jax"] = None  # type: ignore[assignment]
      thin_actor = importlib.import_module("seedx.acting.thin_actor")
      work = thin_actor.Work.of(asked.address, told.options)
      thin_actor.run(work, ended)

  return run(asked.address, _hello(asked), play)


def run(
  address: str,
  hello: joining.Hello,
  play: Callable[[joining.Told, threading.Event], None],
) -> int:
  """Joins a run until it is over or Ctrl-C, and says why it cannot.

  Args:
    address: of the learner.
    hello: what to say to it.
    play: does the work of a role; see `joining.join`.

  Returns:
    The exit status: 0 where the learner is done, 2 where one of the two refuses
    the other, or that of a signal, see `signals`.
  """
  stop = threading.Event()
  try:
    with signals.stopping(stop) as ending:
      joining.join(address, hello, play, stop)
  except (types.ConfigError, wire.WireError) as error:
    words = joining.printable(getattr(error, "message", str(error)))
    print(f"error: cannot join {address}: {words}", file=sys.stderr)
    return 2
  return ending.status


class _Parser(argparse.ArgumentParser):
  """Says in one line what is wrong."""

  def error(self, message: str) -> NoReturn:
    """Exits with status 2."""
    self.exit(2, f"error: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser("seedx join", description=__doc__, allow_abbrev=False)
  add = parser.add_argument
  add("address", metavar="HOST:PORT", help="of the learner, or unix:PATH")
  add("--role", default="", help="role to take, if the run has several")
  add(
    "--listen", default="", help="HOST:PORT at which others reach this server"
  )
  add("--env", help="the learner's, to be repeated if it is MODULE:FACTORY")
  add(
    "--observation-transform",
    help="the learner's, to be repeated if it is MODULE:FUNCTION",
  )
  add("--experiment", default="", help="join only if the learner runs this one")
  add(
    "--options",
    type=json.loads,
    default={},
    help="join only if the learner has these, as JSON",
  )
  return parser


def _hello(asked: argparse.Namespace) -> joining.Hello:
  code = {
    "env": asked.env,
    "observation_transform": asked.observation_transform,
  }
  said = {name: value for name, value in code.items() if value is not None}
  return joining.Hello(
    asked.role, asked.listen, asked.experiment, {**asked.options, **said}
  )


if __name__ == "__main__":
  signals.leave_at_once()
  # Threads of gRPC's or EnvPool's must not keep it alive.
  status = main()
  sys.stderr.flush()
  os._exit(status)
