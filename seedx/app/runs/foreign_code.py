"""Code that a run's record names, which another person may have written."""

import dataclasses
import os
import shlex
from collections.abc import Mapping
from typing import Any

from seedx import envs, types
from seedx.app.runs import records
from seedx.app.settings import configs, experiments, opponents, wording


def trusted(
  run_dir: str | os.PathLike[str], trust: bool, opponent: str = ""
) -> records.Record:
  """Reads `config.json`; unless `trust`, refuses code that is not seedx's.

  Args:
    run_dir: directory of the run.
    trust: whether the code that the run names may run.
    opponent: opponent in place of that of the run's game; empty for the same.

  Raises:
    types.ConfigError: see `records.read` and `check_code`.
  """
  run = records.read(run_dir)
  if not trust:
    # Only training evaluates, and asks for the code of evaluations. The user
    # names the other opponent.
    used = _against(run, "random" if opponent else "")
    options = {**used.options, "evaluate_env_options": {}}
    check_code(dataclasses.replace(used, options=options), run_dir)
  return _against(run, opponent)


def check_code(
  saved: records.Record,
  run_dir: str | os.PathLike[str],
  own: Mapping[str, Any] | None = None,
) -> None:
  """Checks that a run names no code other than seedx's.

  Args:
    saved: content of the run's `config.json`, which anyone may have written.
    run_dir: directory of the run.
    own: settings given by the user's program or command line, by name; the code
      that they name may run. If None, a custom experiment is refused, too.

  Raises:
    types.ConfigError: the run names other code.
  """
  code = [
    shlex.join(wording.option(name, value))
    for name, value in envs.code_in(saved.options).items()
    if own is None or own.get(name) != value
  ]
  remedy = "--trust (in Python, trust=True)"
  if own is not None:
    remedy = f"{' '.join(code)} or --trust"
  elif saved.experiment not in (None, *experiments.shipped()):
    code.append(f"the experiment {saved.experiment}")
  if code:
    raise types.ConfigError(
      f"config.json in {str(run_dir)!r} names code that would run here, but is"
      f" not part of seedx: {', '.join(code)}; if you trust its author, add"
      f" {remedy}{types.see('a-run-names-other-code')}"
    )


def recorded_env(dataset: str, trust: bool) -> envs.Config:
  """Returns the environment that a recording names.

  Args:
    dataset: see `recordings.opened`.
    trust: whether code that is not seedx's may run.

  Raises:
    types.ConfigError: the recording cannot be read, or names other code.
  """
  from seedx import recordings  # It imports JAX.

  named = recordings.opened(dataset).description.env
  settings = configs.settings(envs.Config())
  if "env" not in named:
    raise types.ConfigError(
      f"expected an environment in {dataset!r}, found none; add --env"
    )
  for name, value in named.items():
    if name not in settings or not configs.fits(settings[name].kind, value):
      raise types.ConfigError(
        f"expected settings of an environment in {dataset!r}, found {name!r}"
        f" {value!r:.80}; add --env"
      )
  code = envs.code_in(named)
  if code and not trust:
    words = ", ".join(shlex.join(wording.option(*x)) for x in code.items())
    raise types.ConfigError(
      f"the recording {dataset!r} names code that would run here, but is not"
      f" part of seedx: {words}; if you trust its author, add --trust, or"
      " choose the environment with --env"
    )
  return configs.replaced(envs.Config(), named)


def _against(saved: records.Record, opponent: str) -> records.Record:
  """Returns a run's config with another opponent; see `opponents.against`."""
  options = dict(saved.options)
  if "env_options" in options:
    options["env_options"] = opponents.options_against(
      options["env_options"], opponent
    )
  return dataclasses.replace(saved, options=options)
