"""Whether environments have frames, tried out where it can do no harm."""

import pickle
import subprocess
import sys

from seedx import types
from seedx.envs import config as env_config
from seedx.envs import environment

_REFUSED_STATUS = 2
_DIED_STATUS = 3
_TIMEOUT_SECONDS = 120.0

# EnvPool would import JAX; environments of a user's have it in their workers.
_PROGRAM = """\
import sys
sys.path[:] = {path}
sys.modules["jax"] = None
from seedx.envs import rendering
sys.exit(rendering.main())
"""


def check_render(config: env_config.Config) -> None:
  """Renders one frame in a process of its own, which some environments end.

  Args:
    config: which environment.

  Raises:
    types.ConfigError: it has no frames, and why, in one line.
  """
  program = _PROGRAM.format(path=[str(place) for place in sys.path])
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
  # MuJoCo complains to the standard output.
  last = _last_line(done.stderr) or _last_line(done.stdout)
  if done.returncode == _REFUSED_STATUS:
    raise types.ConfigError(last)
  raise types.ConfigError(
    f"{config.env} cannot be rendered: its process ended with status"
    f" {done.returncode}: {last or 'it said nothing'} (a display or OpenGL may"
    " be missing)"
  )


def main() -> int:
  """Renders one frame of what standard input says; returns an exit status."""
  config = pickle.load(sys.stdin.buffer)
  try:
    environments = environment.make(config, 1, render=True)
    try:
      environments.reset()
      environments.recv()
      environments.render()
    finally:
      environments.close()
  except types.ConfigError as error:
    print(" ".join(str(error).split()), file=sys.stderr)
    return _REFUSED_STATUS
  except RuntimeError:
    return _DIED_STATUS  # What its process has said last says more.
  return 0


def _last_line(said: bytes) -> str:
  lines = [line.strip() for line in said.decode(errors="replace").split("\n")]
  return next((line for line in reversed(lines) if line), "")
