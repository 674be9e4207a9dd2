"""Joins a run on another machine: `python -m seedx.join HOST:PORT`.

The learner sends this process its role and options. The process works until the
learner is done, and reconnects when the learner restarts.

Exit status: 0 where the run is over; 2 where this process or the learner
refuses the other; 3 where there was no learner for --give-up-seconds; 129, 130
or 143 after SIGHUP, Ctrl-C or SIGTERM; 1 after any other failure.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from seedx import output, signals

if __name__ == "__main__":
  signals.leave_at_once()
  output.outlive_readers()

from seedx import types, wire
from seedx.acting import thin_actor
from seedx.launch import joining

_GAVE_UP = 3


def main(argv: Sequence[str] | None = None) -> int:
  """Joins a run.

  Args:
    argv: words without the program's name; this program's own if None.

  Returns:
    The exit status, see `run`; exits with 2 where a word is wrong.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  parser = _parser()
  asked = parser.parse_args(argv)

  def play(told: joining.Welcome, ended: threading.Event) -> None:
    # Before anything imports JAX, as EnvPool does.
    if not told.needs_jax:
      sys.modules["jax"] = None  # type: ignore[assignment]
      work = thin_actor.Work.of(asked.address, told.options, security)
      thin_actor.run(work, ended)
      return
    if sys.modules.get("jax", told) is None:
      os.execv(sys.executable, [sys.executable, "-m", "seedx.join", *argv])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from seedx.app import roles  # It imports JAX.

    experiment = roles.experiment_of(told, asked.address)
    roles.play(experiment, told, asked.address, asked.listen, ended, security)

  try:
    wire.check_address(asked.address)
    config = joining.Config(asked.give_up_seconds)
    security = _security(asked)
  except types.ConfigError as error:
    parser.error(str(error))
  return run(asked.address, _hello(asked), play, config, security)


def run(
  address: str,
  hello: joining.Hello,
  play: Callable[[joining.Welcome, threading.Event], None],
  config: joining.Config,
  security: wire.Security,
) -> int:
  """Joins a run until it is over or a signal comes; prints why it cannot.

  Args:
    address: address of the learner.
    hello: what this process sends first.
    play: does the work of a role; see `joining.join`.
    config: how long this process waits for a learner.
    security: how the processes of the run know each other.

  Returns:
    The exit status, as this module's `--help` says.
  """
  stop = threading.Event()
  try:
    if warning := security.of_client(address).warning:
      print(warning, file=sys.stderr, flush=True)
    with signals.stopping(stop) as ending:
      joining.join(address, hello, play, stop, config, security)
  except (types.ConfigError, wire.WireError) as error:
    words = types.printable(getattr(error, "message", str(error)))
    print(f"error: cannot join {address}: {words}", file=sys.stderr)
    return _GAVE_UP if isinstance(error, wire.GaveUpError) else 2
  return ending.status


class _Parser(argparse.ArgumentParser):
  """Parser that prints in one line what is wrong."""

  def error(self, message: str) -> NoReturn:
    """Exits with status 2."""
    self.exit(2, f"error: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    "seedx join",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
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
  add(
    "--env-options",
    type=_json_object,
    help="the learner's as JSON, to be repeated if --env is MODULE:FACTORY, or"
    " if they name files",
  )
  add("--experiment", default="", help="join only if the learner runs this one")
  add(
    "--options",
    type=_json_object,
    default={},
    help="join only if the learner has these, as JSON",
  )
  add(
    "--give-up-seconds",
    type=lambda text: types.number(float, text),
    metavar="SECONDS",
    default=joining.Config.give_up_seconds,
    help="of no learner before it gives up; default: %(default)g, in which a"
    " learner can be started again. A learner that has no place for this"
    " process is waited for until its run is over.",
  )
  add(
    "--tls-ca", default="", help="file of who signs the learner's certificate"
  )
  add(
    "--tls-certificate", default="", help="file of this process's certificate"
  )
  add("--tls-key", default="", help="file of its private key")
  add("--token-file", default="", help="the run's token; or SEEDX_TOKEN has it")
  add(
    "--insecure",
    action="store_true",
    help="join another machine without TLS and a token",
  )
  return parser


def _json_object(text: str) -> dict[str, Any]:
  found = None
  with contextlib.suppress(ValueError, RecursionError):
    found = json.loads(text)
  if not isinstance(found, dict):
    raise argparse.ArgumentTypeError(
      f"expected a JSON object, found {text!r:.80}"
    )
  return found


def _security(asked: argparse.Namespace) -> wire.Security:
  names = [field.name for field in dataclasses.fields(wire.Security)]
  return wire.Security(**{name: getattr(asked, name) for name in names})


def _hello(asked: argparse.Namespace) -> joining.Hello:
  code = {
    "env": asked.env,
    "env_options": asked.env_options,
    "observation_transform": asked.observation_transform,
  }
  said = {name: value for name, value in code.items() if value is not None}
  return joining.Hello(
    asked.role, asked.listen, asked.experiment, {**asked.options, **said}
  )


if __name__ == "__main__":
  # Threads of gRPC's or EnvPool's must not keep it alive.
  status = main()
  sys.stderr.flush()
  os._exit(status)
