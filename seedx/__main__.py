"""The program `seedx`, which is also `python -m seedx`.

  seedx train EXPERIMENT [options]   trains, such as `seedx train ppo`
  seedx evaluate RUN_DIR [options]   plays whole episodes with a trained agent
  seedx plot RUN_DIR ... [options]   draws learning curves of runs
  seedx export RUN_DIR [options]     writes a policy for use without seedx
  seedx record RUN_DIR [options]     records episodes to learn from later
  seedx arena RUN_DIR ... [options]  lets runs play a game against each other
  seedx compare [options]            runs experiments one after the other
  seedx sweep EXPERIMENT [options]   searches for settings of an experiment
  seedx population EXPERIMENT ...    trains runs that copy the best of them
  seedx join HOST:PORT [options]     works for a learner on another machine
  seedx certificates DIR [options]   makes certificates for several machines

`seedx train` lists the experiments. Each program and each experiment has a
`--help` of its own.
"""

import importlib
import sys

import seedx
from seedx import output, signals

# The modules of the programs by name.
_PROGRAMS = {
  "evaluate": "seedx.app.evaluate",
  "plot": "seedx.app.plot",
  "export": "seedx.app.export",
  "record": "seedx.app.record",
  "arena": "seedx.app.arena.main",
  "compare": "seedx.app.studies.compare",
  "sweep": "seedx.app.studies.sweep",
  "population": "seedx.app.studies.population",
  "join": "seedx.join",
  "certificates": "seedx.app.certificates",
}
# The programs that do not import RLax.
_WITHOUT_RLAX = ("plot", "join", "certificates")


def program() -> int:
  """Runs `main` as a process; returns its exit status."""
  signals.exit_on_signals()
  output.outlive_readers()
  try:
    status = main()
    sys.stdout.flush()
    return status
  except output.FullError:
    output.discard()
    print(
      "error: the output could not be written: the disk is full",
      file=sys.stderr,
    )
    return 1


def main() -> int:
  """Runs the program that the first word names; returns its exit status."""
  name, *words = sys.argv[1:] or ["--help"]
  if name in ("-h", "--help"):
    print((__doc__ or "").strip())
    return 0
  if name == "--version":
    print(f"seedx {seedx.__version__}")
    return 0
  if name == "train" and words in ([], ["-h"], ["--help"]):
    return _list()
  if sys.flags.optimize > 1 and name not in _WITHOUT_RLAX:
    return _fail(
      "expected Python without -OO: TensorFlow Probability, which RLax needs,"
      " reads docstrings when it is imported; use -O"
    )
  if name == "train":
    return _train(words)
  if name in _PROGRAMS:
    return importlib.import_module(_PROGRAMS[name]).main(words)
  programs = ", ".join(("train", *_PROGRAMS))
  return _fail(f"expected one of {programs}, found {name!r}")


def _list() -> int:
  experiments = importlib.import_module("seedx.app.settings.experiments")
  print("usage: seedx train EXPERIMENT [options]\n")
  for name, line in experiments.summaries().items():
    print(f"  {name:12} {line}")
  print("\n`seedx train EXPERIMENT --help` shows its options.")
  return 0


def _train(words: list[str]) -> int:
  experiments = importlib.import_module("seedx.app.settings.experiments")
  types = importlib.import_module("seedx.types")
  name = words[0]
  try:
    experiments.check_name(name)
    importlib.import_module("seedx.app.cli.first_checks").check(name, words[1:])
    module = experiments.load_module(name)
  except types.ConfigError as error:
    return _fail(f"seedx train: {error}")
  programs = importlib.import_module("seedx.app.cli.programs")
  return programs.main(
    module.EXPERIMENT, words[1:], module.__name__, f"seedx train {name}"
  )


def _fail(message: str) -> int:
  types = importlib.import_module("seedx.types")
  command_line = importlib.import_module("seedx.app.cli.command_line")
  return command_line.fail(types.ConfigError(message))


if __name__ == "__main__":
  sys.exit(program())
