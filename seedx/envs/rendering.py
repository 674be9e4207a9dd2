"""Tries in another process whether an environment can be rendered."""

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

# EnvPool would import JAX; the workers of own environments may import it.
_PROGRAM = """\
import sys
sys.path[:] = {path}
sys.modules["jax"] = None
from seedx.envs import rendering
sys.exit(rendering.main())
"""


def check_render(config: env_config.Config) -> None:
  """Renders one frame in another process, since some environments end theirs.

  Args:
    config: which environment.

  Raises:
    types.ConfigError: it cannot be rendered; one line says why.
  """
  program = _PROGRAM.format(path=[str(path) for path in sys.path])
  try:
    done = subprocess.run(
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
  if done.returncode == 0:
    return
  # MuJoCo writes errors to the standard output.
  last = _last_line(done.stderr) or _last_line(done.stdout)
  if done.returncode == _REFUSED_STATUS:
    raise types.ConfigError(last)
  raise types.ConfigError(
    f"{config.env} cannot be rendered: its process ended with status"
    f" {done.returncode}: {last or 'no output'} (a display or OpenGL may"
    " be missing)"
  )


def main() -> int:
  """Renders one frame of the config on standard input; returns the status."""
  config = pickle.load(sys.stdin.buffer)
  try:
    with contextlib.closing(environment.make(config, 1, render=True)) as made:
      made.reset()
      made.recv()
      made.render()
  except types.ConfigError as error:
    print(" ".join(str(error).split()), file=sys.stderr)
    return _REFUSED_STATUS
  except RuntimeError:
    return _DIED_STATUS  # The last line that its process printed says why.
  return 0


def _last_line(output: bytes) -> str:
  lines = output.decode(errors="replace").strip().split("\n")
  return lines[-1].strip()
