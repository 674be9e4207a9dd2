"""Joins a run on another machine: `python -m seedx.join HOST:PORT`.

The learner sends this process its role and options. The process works until the
run is over, and connects again if the learner restarts.

Exit status: 0 after the run's end; 2 if this process or the learner refuses the
other; 3 if there was no learner for --give-up-seconds; 129, 130 or 143 after
SIGHUP, Ctrl-C or SIGTERM; 1 after any other failure. SIGUSR1 and SIGUSR2, with
which a scheduler warns all processes of a job, have no effect: the learner then
saves the run, and ends it.
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
  signals.exit_on_signals()
  output.outlive_readers()

from seedx import types, wire
from seedx.acting import thin_actor
from seedx.launch import joining

_GAVE_UP = 3
# Help for options whose values are text, and for options in JSON.
_TEXTS = {
  "--role": "role of this process, if the run has several",
  "--listen": "address at which others reach this process, if it is a server",
  "--env": "environment of the learner; needed only if it is MODULE:FACTORY",
  "--observation-transform": (
    "transform of the learner; needed only if it is MODULE:FUNCTION"
  ),
  "--experiment": "name of an experiment; join only if the learner runs it",
  "--tls-ca": "file of the authority that signed the learner's certificate",
  "--tls-certificate": "file of this process's certificate",
  "--tls-key": "file of the certificate's private key",
  "--token-file": (
    "file of the run's token; without it, SEEDX_TOKEN has the token"
  ),
}
_OBJECTS = {
  "--env-options": (
    "environment options of the learner as JSON; needed only if --env is"
    " MODULE:FACTORY, or if they name files"
  ),
  "--options": "options as JSON; join only if the learner has them",
}


def main(argv: Sequence[str] | None = None) -> int:
  """Joins a run; returns the exit status, see this module's docstring.

  `argv` has the command line without the program's name; None for `sys.argv`.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  parser = _parser()
  asked = parser.parse_args(argv)

  def play(assignment: joining.Welcome, ended: threading.Event) -> None:
    # Blocks JAX before EnvPool or any other module imports it.
    if not assignment.needs_jax:
      sys.modules["jax"] = None  # type: ignore[assignment]
      work = thin_actor.Work.of(asked.address, assignment.options, security)
      thin_actor.run(work, ended)
      return
    if sys.modules.get("jax", assignment) is None:
      os.execv(sys.executable, [sys.executable, "-m", "seedx.join", *argv])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from seedx.app import roles  # It imports JAX.

    experiment = roles.experiment_of(assignment, asked.address)
    roles.play(
      experiment, assignment, asked.address, asked.listen, ended, security
    )

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
  """Joins a run until it is over or a signal comes; returns the exit status.

  `play` does the work of the role; see `joining.join`. Errors are printed.
  """
  stop = threading.Event()
  try:
    if warning := security.of_client(address).warning:
      print(warning, file=sys.stderr, flush=True)
    # The learner, which such a warning has reached too, may need this process
    # to save.
    with signals.stopping(stop, ignored=signals.WARNINGS) as ending:
      joining.join(address, hello, play, stop, config, security)
  except (types.ConfigError, wire.WireError) as error:
    reason = types.printable(getattr(error, "message", str(error)))
    print(f"error: cannot join {address}: {reason}", file=sys.stderr)
    return _GAVE_UP if isinstance(error, wire.GaveUpError) else 2
  return ending.status


class _Parser(argparse.ArgumentParser):
  def error(self, message: str) -> NoReturn:
    self.exit(2, f"error: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    "seedx join",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    "address",
    metavar="HOST:PORT",
    help="address of the learner, may be unix:PATH",
  )
  for flag, text in _TEXTS.items():
    parser.add_argument(flag, default="", help=text)
  for flag, text in _OBJECTS.items():
    parser.add_argument(flag, type=_json_object, help=text)
  parser.add_argument(
    "--give-up-seconds",
    type=lambda text: types.number(float, text),
    metavar="SECONDS",
    default=joining.Config.give_up_seconds,
    help="seconds without a learner until this process gives up; a learner that"
    " is running but full does not count as missing [%(default)g]",
  )
  parser.add_argument(
    "--insecure",
    action="store_true",
    help="permission to join another machine without TLS and a token",
  )
  return parser


def _json_object(text: str) -> dict[str, Any]:
  value = None
  with contextlib.suppress(ValueError, RecursionError):
    value = json.loads(text)
  if not isinstance(value, dict):
    raise argparse.ArgumentTypeError(
      f"expected a JSON object, found {text!r:.80}"
    )
  return value


def _security(asked: argparse.Namespace) -> wire.Security:
  names = [field.name for field in dataclasses.fields(wire.Security)]
  return wire.Security(**{name: getattr(asked, name) for name in names})


def _hello(asked: argparse.Namespace) -> joining.Hello:
  code = {
    "env": asked.env,
    "env_options": asked.env_options,
    "observation_transform": asked.observation_transform,
  }
  given = {
    name: value for name, value in code.items() if value not in ("", None)
  }
  options = {**(asked.options or {}), **given}
  return joining.Hello(asked.role, asked.listen, asked.experiment, options)


if __name__ == "__main__":
  # Threads of gRPC or EnvPool must not keep the process alive.
  status = main()
  sys.stderr.flush()
  os._exit(status)
