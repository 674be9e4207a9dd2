"""The program of an experiment: from its command line to its exit status."""

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium
import jax

import seedx
from seedx import envs, metrics, output, types
from seedx.app import compiled, devices, requests, roles, training
from seedx.app.cli import command_line
from seedx.app.runs import foreign_code, records, resuming, run_folders
from seedx.app.settings import configs, experiments, presets, wording
from seedx.launch import config as launch_config
from seedx.launch import instances, joining, topology
from seedx.metrics import cpu_time
from seedx.on_cpu import allocator
from seedx.runtime import host_links, process

# Metrics that the result of a run states if they are not 0.
_COUNTED = {
  "updates_skipped": "updates were skipped, since their results are not finite",
  "faulty_steps": "env steps were faulty, and their environments were reset",
}

# Settings with the addresses at which the processes of a role listen.
_LISTENING = {"server": "server_addresses", "inference": "inference_addresses"}
# The number of settings that `--help` lists first.
_OFTEN = 10


def main(
  experiment: experiments.Experiment[Any],
  argv: Sequence[str] | None = None,
  module: str = "__main__",
  program: str = "",
) -> int:
  """Runs an experiment.

  Prints one line and exits with status 2 if the command line is wrong.

  Args:
    experiment: the experiment to train.
    argv: arguments without the program's name; this process's if None.
    module: name of the experiment's module; the program itself by default.
    program: name of the program; made from its module if empty.

  Returns:
    The exit status.
  """
  argv = sys.argv[1:] if argv is None else list(argv)
  name = experiments.name_of(module)
  try:
    asked, presets = read(experiment, argv, module, program)
    role = asked.process.role if asked.process else "all"
    if role in ("all", "learner"):
      return _train(asked, name, presets, others_join=role == "learner")
    return _join(experiment, asked, name, command_line.given(asked, argv))
  except (host_links.LostError, instances.DiedError) as error:
    print(error, file=sys.stderr, flush=True)
    return 1
  except types.ConfigError as error:
    command_line.fail(error)


def read(
  experiment: experiments.Experiment[Any],
  argv: Sequence[str],
  module: str,
  program: str = "",
) -> tuple[requests.Request, Sequence[str]]:
  """Reads an experiment's command line; see `main` for the arguments.

  Returns:
    The settings, and one line for each preset that changed some of them.

  Raises:
    types.ConfigError: the run to resume cannot be resumed, or the presets
      cannot be applied.
    SystemExit: the command line is wrong, as a line on stderr reports.
  """
  defaults, applied = _defaults(experiment, experiments.name_of(module), argv)
  is_help = command_line.asks_for_help(argv)
  asked = command_line.parse(
    defaults,
    argv,
    program or f"python -m {experiments.program_module(module)}",
    sys.modules[module].__doc__,
    often=_often(experiment, defaults) if is_help else (),
    unmeasured={x for one in applied if not one.measured for x in one.values},
  )
  asked = dataclasses.replace(asked, files=asked.files.resolved())
  if asked.files.resumed:
    resumed = records.read(asked.files.resumed)
    records.check_resumed(resumed, asked, asked.files.run_dir)
    if words := records.not_restored(asked, resumed):
      print(
        types.printable(
          f"not restored from config.json: {words}; add it to use it again"
        ),
        file=sys.stderr,
        flush=True,
      )
  return asked, [line for x in applied if (line := x.line(asked.run))]


def _defaults(
  experiment: experiments.Experiment[Any], name: str, argv: Sequence[str]
) -> tuple[requests.Request, list[presets.Changes]]:
  """Returns the defaults of a command line, and the presets that changed them.

  Defaults and presets depend on the environment, the agent and the run to
  resume. A resumed run keeps the presets that it began with.
  """
  argv = [word for word in argv if word not in ("-h", "--help")]
  asked = requests.of(experiment)
  names = ["resume", "run_dir", "trust"]
  names += ["agent"] if experiment.agents else []
  names += ["dataset"] if "dataset" in configs.settings(asked) else []
  values = command_line.read_some(asked, names, argv)
  run_dir = resuming.directory(values["resume"], values["run_dir"])
  resumed = records.read(run_dir) if run_dir else None
  agent = values.get("agent", "")
  if resumed is not None:
    records.check_experiment(resumed, name, run_dir)
    agent = resumed.options.get("agent", agent)
  asked = requests.of(experiment, agent)
  settings = configs.settings(asked)
  names = [x for x, s in settings.items() if s.path[:2] == ("run", "env")]
  if resumed is not None:
    if not values["trust"]:
      own = [*names, "evaluate_env_options"]
      values = command_line.read_some(asked, own, argv)
      foreign_code.check_code(resumed, run_dir, own=values)
    return records.restored(asked, resumed), []
  given = command_line.given(asked, argv)
  if values.get("dataset") and "env" not in given:
    env = foreign_code.recorded_env(values["dataset"], values["trust"])
    run = dataclasses.replace(asked.run, env=env)
    asked = dataclasses.replace(asked, run=run)
  # Presets depend on these settings.
  names += ["presets", *(["recurrent"] if "recurrent" in settings else [])]
  values = command_line.read_some(asked, names, argv)
  if values["env"] != asked.run.env.env and "env_options" not in given:
    # The default options are those of the default environment.
    values["env_options"] = {}
  config = configs.replaced(asked, values).run
  config, applied = experiment.with_presets(config, agent, values["presets"])
  return dataclasses.replace(asked, run=config), applied


def _often(
  experiment: experiments.Experiment[Any], asked: requests.Request
) -> list[str]:
  """Returns the settings to list first in `--help`.

  The list has the first setting of each part, then the settings that presets
  change, most frequent first. Settings of one process are skipped, and so are
  parts that a resume never restores.
  """
  often = [next(iter(configs.settings(asked.run)))]
  for settings in command_line.parts(asked).values():
    if any(setting.restored for setting in settings):
      shared = [x.name for x in settings if x.about.changes != "process"]
      often.append(shared[0])
  changed = experiment.changed(getattr(asked.chosen, "agent", ""))
  return list(dict.fromkeys([*often, *changed]))[:_OFTEN]


def _train(
  asked: requests.Request, name: str, presets: Sequence[str], others_join: bool
) -> int:
  if others_join:
    _check_address(asked.run, "learner")
  if isinstance(asked.run, process.ServerConfig):
    devices.compute_on_own_threads()
  allocator.keep_freed_memory()
  compiled.keep(asked.files.compilation_cache)
  others = cpu_time.Others()
  run = training.run(
    asked.run,
    asked.files,
    asked=asked,
    experiment=name,
    presets=presets,
    others_join=others_join,
    started_seconds=seedx.STARTED_SECONDS,
  )
  try:
    *lines, place = _result(asked, run)
    launching = getattr(asked.run, "launching", launch_config.Config())
    # Then all processes of the run are descendants of this one.
    if not others_join and launching.launcher == "processes":
      lines += _used_by_others(others)
    print(*lines, place, sep="\n", flush=True)
  except OSError:
    # stdout may be a file on a full disk, which does not change the status.
    output.discard()
  return run.status or (0 if run.is_saved else run_folders.UNSAVED)


def _used_by_others(others: cpu_time.Others) -> list[str]:
  seconds, cores = others.seconds, others.cores
  if seconds is None or cores is None:
    return []
  return [
    f"other processes used {seconds:.0f} s of CPU time during the run"
    f" ({cores:.2f} cores)"
  ]


def _result(asked: requests.Request, run: training.Run) -> list[str]:
  lines: list[str] = []
  last: Mapping[str, Any] = run.metrics
  if run.restarts:
    lines.append(f"processes that died and were restarted: {run.restarts}")
  lines.append(_verdict(asked.run.env, run))
  if run.host:
    return [*lines, "host 0 has the run's directory"]
  if run.status:
    saved = resuming.saved(run.run_dir)
    remedy = f"--resume {run.run_dir} continues the run"
    lines.append(
      f"interrupted; {remedy if saved else 'no checkpoint is saved'}"
    )
  elif last[metrics.clock(last)] < asked.run.total_steps:
    lines.append(f"ended early: --stop-at {asked.files.stop_at:g} is reached")
  if not last["learner_steps"]:
    lines.append("nothing was learned: the run ended before the first update")
  for name, event in _COUNTED.items():
    if last.get(name):
      lines.append(f"{last[name]:,} {event}")
  if run.evaluation:
    lines.append(f"evaluation: {run.evaluation}")
  return [*lines, run.place]


def _join(
  experiment: experiments.Experiment[Any],
  asked: requests.Request,
  name: str,
  given: Collection[str],
) -> int:
  """Joins the run of a learner; returns the exit status.

  For a thin role or an experiment of seedx's, this function does not return,
  because the program `seedx.join` replaces this one. The settings that are
  `given` on the command line must have the same values at the learner.
  """
  config: Any = asked.run  # A `process.ServerConfig`.
  role = asked.process.role
  _check_address(config, role)
  settings = configs.settings(asked)
  options = {
    option: value
    for option, value in configs.in_json(asked).items()
    if option in given and option != "presets" and settings[option].restored
  }
  addresses = getattr(config, _LISTENING.get(role, ""), ())
  listen = addresses[getattr(config, "server", 0)] if addresses else ""
  hello = joining.Hello(role, listen, name, options)
  thin = not all(
    node.needs_jax
    for node in config.nodes()
    if topology.kind(node.role) == role
  )
  if thin or name in experiments.shipped():
    words = [config.address, "--role", role, "--listen", listen]
    words += ["--experiment", name, "--options", json.dumps(options)]
    words += ["--give-up-seconds", str(asked.process.give_up_seconds)]
    for option, value in configs.values(config.security).items():
      flag = wording.flag(option)
      words += [flag] if value is True else [flag, value] if value else []
    program = [sys.executable, "-m", "seedx.join", *words]
    os.execv(sys.executable, program)
  if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")

  def play(welcome: joining.Welcome, ended: threading.Event) -> None:
    roles.play(
      experiment, welcome, config.address, listen, ended, config.security
    )

  return joining.run(
    config.address, hello, play, asked.process, config.security
  )


def _check_address(config: Any, role: str) -> None:
  for name in ("address", _LISTENING.get(role, "address")):
    if not getattr(config, name):
      flag = wording.flag(name)
      raise types.ConfigError(f"expected {flag} with --role {role}, found none")


def _verdict(env: envs.Config, run: training.Run) -> str:
  last: Mapping[str, Any] = run.metrics
  mean = last["episode_return"]
  if mean is None and last["episodes"]:
    return (
      f"no mean return: {last['episodes']:,} episodes have ended, but none in"
      " some environments"
    )
  if mean is None and metrics.clock(last) != "env_steps":
    return f"{env.env}: {_amount(run)}"
  if mean is None:
    return "no episode has ended"
  latest = min(100, last["episodes"])
  over = f"the last {latest} episodes" if latest > 1 else "the first episode"
  reached = f"{env.env}: mean return of {over} {mean:.1f} after {_amount(run)}"
  spec = gymnasium.registry.get(env.env)
  # Options, such as another limit of steps, change what can be reached.
  if spec is None or spec.reward_threshold is None or env.env_options:
    return reached
  threshold = spec.reward_threshold
  word = "solved" if mean >= threshold else "not solved"
  return f"{reached}: {word} (Gymnasium's threshold is {threshold:g})"


def _amount(run: training.Run) -> str:
  """Returns a run's steps and seconds, in words."""
  last: Mapping[str, Any] = run.metrics
  # The metrics of a resumed run count all starts, except the time to compile.
  seconds = last["wall_seconds"] - run.seconds_before
  clock = metrics.clock(last)
  rate = (last[clock] - run.steps_before) / max(seconds, 1e-9)
  since = " since the resume" if run.steps_before else ""
  return (
    f"{last[clock]:,} {metrics.unit(last)} ({rate:,.0f} a second) in"
    f" {seconds:.0f} s{since}, of which JAX compiled for"
    f" {last['compile_seconds']:.0f} s"
  )
