"""A test, in another process, of whether an environment can be rendered."""

import contextlib
import pickle
import subprocess
import sys

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import environment

_REFUSED_STATUS = 2
_DIED_STATUS = 3
_TIMEOUT_SECONDS = 120.0

# Blocks JAX, which EnvPool would import. Worker processes that the program
# starts can still import JAX.
_PROGRAM = """\
import sys
sys.path[:] = {path}
sys.modules["jax"] = None
from seedx.envs import rendering
sys.exit(rendering.main())
"""


def check_render(config: env_config.Config) -> None:
  """Renders in another process, since some environments end their process.

  An environment of JAX functions is refused in this process, because the other
  process does not import JAX.

  Raises:
    types.ConfigError: rendering failed; the message has one line.
  """
  if env_config.is_functional(config):
    _render(config)
    return
  program = _PROGRAM.format(path=[str(path) for path in sys.path])
  try:
    completed = subprocess.run(
      [sys.executable, "-P", "-c", program],
      input=env_config.pickled(config),
      capture_output=True,
      timeout=_TIMEOUT_SECONDS,
    )
  except subprocess.TimeoutExpired:
    raise types.ConfigError(
      f"{config.env} cannot be rendered: it took more than"
      f" {_TIMEOUT_SECONDS:g} seconds"
    ) from None
  if completed.returncode == 0:
    return
  # MuJoCo writes errors to the standard output.
  message = _last_line(completed.stderr) or _last_line(completed.stdout)
  if completed.returncode == _REFUSED_STATUS:
    raise types.ConfigError(message)
  raise types.ConfigError(
    f"{config.env} cannot be rendered: its process ended with status"
    f" {completed.returncode}: {message or 'no output'} (a display or OpenGL"
    " may be missing)"
  )


def main() -> int:
  """Reads a config from stdin, and renders a frame; returns an exit status."""
  config = pickle.load(sys.stdin.buffer)
  try:
    _render(config)
  except types.ConfigError as error:
    print(" ".join(str(error).split()), file=sys.stderr)
    return _REFUSED_STATUS
  except RuntimeError:
    return _DIED_STATUS  # The environment's process has printed the reason.
  return 0


def _render(config: env_config.Config) -> None:
  with contextlib.closing(environment.make(config, 1, render=True)) as env:
    env.reset()
    env.recv()
    env.render()


def _last_line(output: bytes) -> str:
  lines = output.decode(errors="replace").strip().split("\n")
  return lines[-1].strip()
