"""The command line of an experiment, from its words to its exit status."""

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import jax

from seedx import checkpoint, join, types
from seedx.app import compiled, devices, roles, training
from seedx.app.cli import command_line, configs, experiments
from seedx.app.cli import presets as presets_lib
from seedx.app.runs import checkpointer, run_dirs
from seedx.launch import hosts, joining
from seedx.launch import nodes as nodes_lib
from seedx.on_cpu import allocator
from seedx.runtime import process

# The number of settings that `--help` begins with.
_OFTEN = 10


@dataclasses.dataclass(frozen=True)
class Asked:
  """All that a command line says.

  Attributes:
    chosen: the presets, and the agent where there is a choice.
    run: what the pipeline's process does.
    files: where the run goes.
    process: which process this is, where there are several.
  """

  chosen: Any
  run: process.Config
  files: training.Config = training.Config()
  process: Any = None


def main(
  experiment: experiments.Experiment[Any],
  argv: Sequence[str] | None = None,
  module: str = "__main__",
  program: str = "",
) -> int:
  """Runs an experiment.

  Args:
    experiment: what the program trains.
    argv: without the program's name; this program's own if None.
    module: that has the experiment; the program itself if not given.
    program: how it is called; by its module if empty.

  Returns:
    The exit status; it exits with 2 and one line where something is wrong.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  name = experiments.name_of(module)
  try:
    asked, presets = read(experiment, argv, module, program)
    role = asked.process.role if asked.process else "all"
    if role in ("all", "learner"):
      return _train(asked, name, presets, alone=role == "learner")
    return _join(experiment, asked, name, command_line.said(asked, argv))
  except hosts.LostError as error:
    print(error, file=sys.stderr, flush=True)
    return 1
  except types.ConfigError as error:
    command_line.fail(error)


def read(
  experiment: experiments.Experiment[Any],
  argv: Sequence[str],
  module: str,
  program: str = "",
) -> tuple[Asked, Sequence[str]]:
  """Reads a command line; exits with status 2 and one line where it is wrong.

  Args:
    experiment: what the program trains.
    argv: without the program's name.
    module: that has the experiment.
    program: how it is called; by its module if empty.

  Returns:
    What it says, and a line for each preset in that.

  Raises:
    types.ConfigError: what is to be resumed cannot be.
  """
  defaults, applied = _defaults(experiment, experiments.name_of(module), argv)
  helps = command_line.asks_for_help(argv)
  asked = command_line.parse(
    defaults,
    argv,
    program or f"python -m {experiments.program_module(module)}",
    sys.modules[module].__doc__,
    often=_often(experiment, defaults) if helps else (),
    unmeasured={x for one in applied if not one.measured for x in one.values},
  )
  if asked.files.resume:
    before = run_dirs.config(asked.files.resume)
    run_dirs.check_resumed(before, asked, asked.files.run_dir)
    if words := run_dirs.not_restored(asked, before):
      print(
        types.printable(
          f"not taken from config.json: {words}; name it again to use it"
        ),
        file=sys.stderr,
        flush=True,
      )
  return asked, [line for x in applied if (line := x.line(asked.run))]


def asked_of(experiment: experiments.Experiment[Any], agent: str = "") -> Asked:
  """All that a command line may say of an experiment, before presets.

  Args:
    experiment: what the program trains.
    agent: that `--agent` names; empty for the default's.

  Raises:
    types.ConfigError: there is no such agent.
  """
  config, process = experiment.with_agent(agent), None
  sentence = "the presets that apply; auto takes those of the environment."
  auto = types.setting("auto", labels=False)
  chosen = _choice("presets", sentence, auto, experiment.kinds)
  if experiment.agents:
    names = tuple(experiment.agents)
    name = agent or experiment.default_agent
    chosen = _choice("agent", "what learns.", name, names, type(chosen))
  if roles := _roles(config):
    sentence = "what this process does; 'all' also starts the others."
    names = ("all", "learner", *roles)
    default = types.setting("all", changes="process", labels=False)
    process = _choice("role", sentence, default, names, joining.Config)
  return Asked(chosen, config, process=process)


def _defaults(
  experiment: experiments.Experiment[Any], name: str, argv: Sequence[str]
) -> tuple[Asked, list[presets_lib.Applied]]:
  """What applies where the command line says nothing, and the presets in it.

  It depends on the environment, on the agent and on what is resumed: a run that
  resumes has the presets that it began with.
  """
  argv = [word for word in argv if word not in ("-h", "--help")]
  asked = asked_of(experiment)
  early = ["resume", "trust", *(["agent"] if experiment.agents else [])]
  first = command_line.first(asked, early, argv)
  resumed = run_dirs.config(first["resume"]) if first["resume"] else None
  agent = first.get("agent", "")
  if resumed is not None:
    run_dirs.check_experiment(resumed, name, first["resume"])
    agent = resumed.options.get("agent", agent)
  asked = asked_of(experiment, agent)
  known = configs.settings(asked)
  early = [x for x, s in known.items() if s.path[:2] == ("run", "env")]
  if resumed is not None:
    if not first["trust"]:
      own = command_line.first(asked, early, argv)
      run_dirs.check_code(resumed, first["resume"], own=own)
    return run_dirs.restored(asked, resumed), []
  # What presets depend on.
  early += ["presets", *(["recurrent"] if "recurrent" in known else [])]
  first = command_line.first(asked, early, argv)
  config = configs.replaced(asked, first).run
  config, applied = experiment.with_presets(config, agent, first["presets"])
  return dataclasses.replace(asked, run=config), applied


def _often(experiment: experiments.Experiment[Any], asked: Asked) -> list[str]:
  """The settings that people change most, for the top of `--help`.

  The first setting of each part, and those that most presets change. Settings
  of one process, and parts of nothing but these and what concerns one start
  alone, are left out.
  """
  often = [next(iter(configs.settings(asked.run)))]
  for settings in command_line.parts(asked).values():
    if any(setting.restored for setting in settings):
      of_all = [x.name for x in settings if x.about.changes != "process"]
      often.append(of_all[0])
  changed = experiment.changed(getattr(asked.chosen, "agent", ""))
  return list(dict.fromkeys([*often, *changed]))[:_OFTEN]


def _choice(
  name: str, sentence: str, default: str, names: Sequence[str], *bases: type
) -> Any:
  """A config of a setting that is one of some names, and of those of bases."""
  kind = dataclasses.make_dataclass(
    name.capitalize(),
    [(name, Literal[names], default)],
    bases=bases,
    frozen=True,
  )
  kind.__doc__ = f"A choice.\n\nAttributes:\n  {name}: {sentence}\n"
  return kind()


def _roles(config: process.Config) -> list[str]:
  """What `--role` may name; of several servers, `--server` says which."""
  nodes = config.with_sockets("nowhere").nodes()
  return list(dict.fromkeys(nodes_lib.kind(node.role) for node in nodes))


def _train(asked: Asked, name: str, presets: Sequence[str], alone: bool) -> int:
  """Trains, says what came of it, and returns the exit status."""
  if alone:
    _check_address(asked.run, "learner")
  if isinstance(asked.run, process.ServerConfig):
    devices.compute_on_own_threads()
  allocator.keep_freed_memory()
  compiled.keep(asked.files.compilation_cache)
  run = training.run(
    asked.run,
    asked.files,
    asked=asked,
    experiment=name,
    presets=presets,
    alone=alone,
  )
  try:
    print(*_result(asked, run), sep="\n", flush=True)
  except OSError:
    # It is a file on a disk that is full; the run has ended well.
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
  return run.status


def _result(asked: Asked, run: training.Run) -> list[str]:
  """What came of a run, in lines."""
  lines: list[str] = []
  last: Mapping[str, Any] = run.metrics
  if run.restarts:
    died = "processes that died and were started again"
    lines.append(f"{died}: {run.restarts}")
  lines.append(_verdict(asked.run.env.env, last))
  if run.host:
    return [*lines, "host 0 has the run's directory"]
  if run.status:
    saved = checkpoint.Checkpoints(checkpointer.directory(run.run_dir)).steps()
    way = (
      f"--resume {run.run_dir} goes on" if saved else "no checkpoint is saved"
    )
    lines.append(f"interrupted; {way}")
  elif last["env_steps"] < asked.run.total_steps:
    lines.append(f"ended early: --stop-at {asked.files.stop_at:g} is reached")
  if not last["learner_steps"]:
    lines.append("nothing was learned: it ended before the first update")
  if run.evaluation:
    lines.append(f"evaluation: {run.evaluation}")
  lines.append(
    f"checkpoints, metrics and learning_curve.png are in {run.run_dir}"
  )
  return lines


def _join(
  experiment: experiments.Experiment[Any],
  asked: Asked,
  name: str,
  said: Collection[str],
) -> int:
  """Joins the run of a learner elsewhere.

  Args:
    experiment: what the program trains.
    asked: all that the command line says.
    name: of the experiment.
    said: which settings the command line says; the learner must have the same.

  Returns:
    The exit status; see `join.run`.

  Raises:
    types.ConfigError: there is no address.
  """
  config: Any = asked.run  # It has a server, see `process.ServerConfig`.
  role = asked.process.role
  _check_address(config, role)
  known = configs.settings(asked)
  options = {
    option: value
    for option, value in configs.in_json(asked).items()
    if option in said and option != "presets" and known[option].restored
  }
  addresses = getattr(config, "server_addresses", ())
  listen = addresses[config.server] if role == "server" and addresses else ""
  hello = joining.Hello(role, listen, name, options)
  thin = not all(
    node.needs_jax
    for node in config.nodes()
    if nodes_lib.kind(node.role) == role
  )
  if thin or name in experiments.shipped():
    words = [config.address, "--role", role, "--listen", listen]
    words += ["--experiment", name, "--options", json.dumps(options)]
    words += ["--give-up-seconds", str(asked.process.give_up_seconds)]
    for option, value in configs.values(config.security).items():
      flag = command_line.flag(option)
      words += [flag] if value is True else [flag, value] if value else []
    program = [sys.executable, "-m", "seedx.join", *words]
    os.execv(sys.executable, program)
  if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")

  def play(told: joining.Welcome, ended: threading.Event) -> None:
    roles.play(experiment, told, config.address, listen, ended, config.security)

  return join.run(config.address, hello, play, asked.process, config.security)


def _check_address(config: Any, role: str) -> None:
  """Checks that a process that does not run alone knows where the others are.

  Raises:
    types.ConfigError: it does not.
  """
  for name in ("address", *(["server_addresses"] * (role == "server"))):
    if not getattr(config, name):
      flag = command_line.flag(name)
      raise types.ConfigError(f"expected {flag} with --role {role}, found none")


def _verdict(env_id: str, last: Mapping[str, Any]) -> str:
  """What the run reached, and whether that solves the environment."""
  found = last["episode_return"]
  if found is None and last["episodes"]:
    return (
      f"no mean return: {last['episodes']:,} episodes have ended, but none yet"
      " of some environments"
    )
  if found is None:
    return "no episode has ended"
  latest = min(100, last["episodes"])
  over = f"the last {latest} episodes" if latest > 1 else "the first episode"
  reached = (
    f"{env_id}: mean return of {over} {found:.1f} after"
    f" {last['env_steps']:,} env steps and {last['wall_seconds']:.0f} s"
    f" ({last['env_steps'] / max(last['wall_seconds'], 1e-9):,.0f} a second)"
  )
  known = gymnasium.registry.get(env_id)
  if known is None or known.reward_threshold is None:
    return reached
  threshold = known.reward_threshold
  word = "solved" if found >= threshold else "not solved"
  return f"{reached}: {word} (Gymnasium's threshold is {threshold:g})"
