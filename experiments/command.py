"""The command line of an experiment, from its words to its exit status."""

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import options, runs, settings, signals
from seedx import types


def main(
  kind: type[Any],
  presets: settings.Presets,
  description: str | None,
  learn: Callable[[Any], int],
  argv: Sequence[str] | None,
  thin_actors: bool = False,
) -> int:
  """Runs an experiment.

  Args:
    kind: its options, a dataclass of `options.option`.
    presets: see `settings.preset`.
    description: opens `--help`.
    learn: does what the options say, and returns the exit status; it is not
      called for a thin actor, so that what it imports may need JAX.
    argv: without the program's name; this program's own if None.
    thin_actors: whether actors ask a learner what to do, and need no JAX.

  Returns:
    The exit status; it exits with 2 and one line where something is wrong.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  try:
    # Which presets apply depends on the environment, and so does the help.
    first = [word for word in argv if word not in ("-h", "--help")]
    given = options.parse(kind, first, description)
    resumed = _resumed(given) if given.resume else None
    if resumed is not None:
      given = options.parse(kind, first, description, resumed)
      _check_resumed(given, resumed)
    role = getattr(given, "role", "all")
    thin = thin_actors and role == "actor"
    if thin:
      sys.modules["jax"] = None  # type: ignore[assignment]
    elif role not in ("all", "learner"):
      os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if role != "all" and not given.address:
      raise types.ConfigError(
        f"expected --address with --role {role}, found none"
      )
    from seedx import envs  # With JAX, where it was not blocked above.

    spec = envs.spec(settings.environment(given))
    defaults = resumed or settings.preset(presets, given, spec)
    given = options.parse(kind, argv, description, defaults)
    return _act(given) if thin else learn(given)
  except types.ConfigError as error:
    options.fail(error)


def _resumed(given: Any) -> dict[str, Any]:
  """The options of the run that is gone on with.

  Raises:
    types.ConfigError: there is none, or it is not of this program.
  """
  config, own = runs.config(given.resume), options.module(type(given))
  if config.experiment != own:
    raise types.ConfigError(
      f"expected a run of {own} to --resume, found one of {config.experiment}"
      f" in {given.resume!r}"
    )
  return runs.options_of(type(given), config)


def _check_resumed(given: Any, resumed: Mapping[str, Any]) -> None:
  """Raises types.ConfigError for an option that its state contradicts."""
  changed = [
    options.flag(name)
    for name, value in resumed.items()
    if name not in settings.RESUMED and getattr(given, name) != value
  ]
  if changed:
    may = [name for name in resumed if name in settings.RESUMED]
    raise types.ConfigError(
      "expected --resume with the options that the run began with, of which"
      f" only {', '.join(map(options.flag, may))} may be others; found another"
      f" {', '.join(changed)}"
    )
  if given.run_dir:
    raise types.ConfigError(
      "expected --resume without --run-dir: a run goes on in its own directory"
    )


def _act(given: Any) -> int:
  """Steps environments for a learner that runs elsewhere."""
  from seedx import wire
  from seedx.runtime import actor

  config = actor.Config(
    address=given.address,
    env=settings.environment(given),
    num_envs=given.envs_per_actor,
    batch_size=given.actor_batch_size or given.envs_per_actor,
  )
  stop = threading.Event()
  interrupted = signals.stop_on_signals(stop)
  try:
    actor.run(config, stop)
  except wire.WireError as error:
    raise types.ConfigError(
      f"the learner at {given.address} refuses this actor: {error}"
    ) from error
  return signals.INTERRUPTED_STATUS if interrupted.is_set() else 0
