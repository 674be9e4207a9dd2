r"""Compares seedx with other libraries, in one session.

  python -m benchmarks.peers --python torch=PATH --python jax=PATH \
    --python replay=PATH --source purejaxrl=PATH --source cleanrl=PATH

benchmarks/README.md has the commands that install the other libraries. The
options give their interpreters and checkouts; a library without them is left
out. In each of `--rounds` rounds, the programs run one after another. A program
is watched for `--seconds` after it has begun to learn, so that imports and
compilation do not count. CPU time is that of all processes of a program, read
from /proc. The first table has the lowest and the highest value of the rounds.
"""

import argparse
import collections
import datetime
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks import watched
from benchmarks.peers import replays
from seedx import types
from seedx.metrics import cpu_time

_ROOT = pathlib.Path(__file__).parents[2]
_HERE = pathlib.Path(__file__).parent
# PPO's settings in the other libraries.
_PPO = "--unroll-length 32 --epochs 4 --minibatches 4 --learning-rate 0.0025"
_PPO += " --towers apart --clip-values"
_SAME_CONTROL = "Pendulum, batch 256, an update for each env step"
_SAME_PPO = "512 environments x 32 steps, 4 epochs of 4 minibatches"
SAMPLE_FACTORY = r"Total num frames: (?P<steps>\d+)"
SAMPLE_FACTORY += r"|episode reward: .*'(?P<returned>[\d.]+)'"
CLEANRL = (
  r"global_step=(?P<steps>\d+), episodic_return=\[?(?P<returned>-?[\d.]+)"
)
CLEANRL += r"|(?P<updated>SPS: )"
STEP = r"env_steps=(?P<steps>\d+) episode_return=(?P<returned>-?[\d.]+)"


class Peer(NamedTuple):
  """A program that trains.

  Attributes:
    name: text of the column "library".
    settings: text of the column "settings".
    python: name of the interpreter.
    command: words after the interpreter, in which `{NAME}` is a checkout. For
      seedx, an experiment and its options.
    progress: pattern of the lines with the progress, see `Lines`; empty for
      seedx.
    file: file to which the program writes these lines.
  """

  name: str
  settings: str
  python: str
  command: str
  progress: str = ""
  file: str = "output"


PEERS = (
  Peer(
    "seedx `seed_vtrace`",
    "2 x 1,024 environments, each step learned once",
    "seedx",
    "seed_vtrace --envs-per-actor 1024 --batch-size 1024",
  ),
  Peer("seedx `seed_vtrace`", "presets (2 x 128)", "seedx", "seed_vtrace"),
  Peer(
    "Sample Factory APPO",
    "2 x 1,024 environments, EnvPool, each step learned once",
    "torch",
    f"{_HERE}/sample_factory_appo.py 1 sf",
    SAMPLE_FACTORY,
    "errors",
  ),
  Peer(
    "Sample Factory APPO",
    "2 x 1,024 environments, EnvPool, 4 epochs",
    "torch",
    f"{_HERE}/sample_factory_appo.py 4 sf",
    SAMPLE_FACTORY,
    "errors",
  ),
  Peer(
    "seedx `anakin_ppo`",
    _SAME_PPO,
    "seedx",
    f"anakin_ppo --num-envs 512 {_PPO}",
  ),
  Peer(
    "PureJaxRL PPO",
    _SAME_PPO,
    "jax",
    f"{_HERE}/purejaxrl_ppo.py {{purejaxrl}}",
    STEP,
  ),
  Peer(
    "seedx `ppo`",
    f"{_SAME_PPO}, EnvPool",
    "seedx",
    f"ppo --env CartPole-v1 --num-envs 512 {_PPO}",
  ),
  Peer(
    "Stable-Baselines3 PPO",
    _SAME_PPO,
    "torch",
    f"{_HERE}/sb3_ppo.py",
    STEP,
  ),
  Peer(
    "CleanRL PPO",
    _SAME_PPO,
    "torch",
    "{cleanrl}/cleanrl/ppo.py --num-envs 512 --num-steps 32"
    " --learning-rate 0.0025 --total-timesteps 1000000000",
    CLEANRL,
  ),
  Peer("seedx `sac`", _SAME_CONTROL, "seedx", "sac --env Pendulum-v1"),
  Peer(
    "Stable-Baselines3 SAC",
    _SAME_CONTROL,
    "torch",
    f"{_HERE}/sb3_sac.py",
    STEP,
  ),
  Peer("seedx `td3`", _SAME_CONTROL, "seedx", "td3 --env Pendulum-v1"),
  Peer(
    "CleanRL TD3 in JAX",
    _SAME_CONTROL,
    "cleanrl",
    "{cleanrl}/cleanrl/td3_continuous_action_jax.py --env-id Pendulum-v1"
    " --learning-starts 1000 --total-timesteps 1000000000",
    CLEANRL,
  ),
)
_REPLAYS = (("seedx", "seedx"), ("Flashbax", "replay"), ("cpprb", "replay"))
_CAPACITIES = (2**16, 2**20)
_PAGE_WIDTH = 100
_VERSIONS = {
  "seedx": ("jax", "envpool"),
  "torch": (
    "sample-factory",
    "stable-baselines3",
    "torch",
    "gymnasium",
    "envpool",
  ),
  "jax": ("jax", "gymnax", "flax"),
  "cleanrl": ("jax", "flax", "gymnasium", "torch"),
  "replay": ("flashbax", "cpprb", "jax"),
}
_HEADER = (
  "library",
  "settings",
  "CPU us/env step",
  "env steps/s",
  "return",
  "after env steps",
)
_REPLAY_HEADER = (
  "replay, CPU us to add + sample (+ update) 512",
  "kind",
  *(f"{steps:,} steps" for steps in _CAPACITIES),
)


class Result(NamedTuple):
  """A watched program.

  Attributes:
    cost: cost of its env steps.
    episode_return: its last return; None if unknown.
    env_steps: its last number of env steps.
    others: number of cores that other programs kept busy; None if unknown.
  """

  cost: watched.Cost
  episode_return: float | None
  env_steps: float
  others: float | None


def main(argv: Sequence[str] | None = None) -> int:
  """Measures seedx and the given libraries, and prints the tables."""
  options = _parser().parse_args(argv)
  pythons = {"seedx": sys.executable, **_pairs(options.python)}
  sources = _pairs(options.source)
  start_seconds = time.monotonic()
  trained = _trained(options, pythons, sources)
  rows = _replays(options, pythons)
  seconds = time.monotonic() - start_seconds
  print(f"\n{datetime.date.today()}, {seconds / 60:.0f} minutes", end="")
  results = itertools.chain.from_iterable(trained.values())
  busy = [x.others for x in results if x.others is not None]
  if busy:
    print(f", in which other programs kept {max(busy):.2f} cores busy", end="")
  print(f".\n{_versions(pythons, sources)}.\n")
  print(watched.table(_HEADER, (_row(*each) for each in trained.items())))
  print()
  print(watched.table(_REPLAY_HEADER, rows))
  return 0


def measure(
  peer: Peer,
  python: str,
  sources: Mapping[str, str],
  options: argparse.Namespace,
) -> Result:
  """Watches one program for some seconds after it has begun to learn.

  Raises:
    types.ConfigError: the program failed, or made too little progress.
  """
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    if peer.progress:
      words = peer.command.format(**sources).split()
      parse = Lines(peer.progress)
      started = watched.Program([python, *words], folder, parse, peer.file)
    else:
      words = peer.command.split()
      run = watched.Run("", str(_ROOT), tuple(words))
      started = run.start(python, folder)
    with started as program:
      watched.wait([program], _has_learned, options.limit)
      begin_seconds = time.monotonic() + options.settle
      others = cpu_time.Others()
      watched.wait(
        [program],
        lambda x: watched.has_lasted(x, begin_seconds, options.seconds),
        options.limit,
      )
      cores = others.cores
    start = watched.first_after(program, begin_seconds)
    last = program.samples[-1]
    assert start is not None
    return Result(
      watched.cost(start, last),
      last.progress.episode_return,
      last.progress.env_steps,
      cores,
    )


class Lines:
  """A parser of lines that have env steps, or a return, or both.

  It reports the mean of the last 100 returns. If the pattern has a group
  `updated`, only lines that match it are progress: whole updates are measured.
  """

  def __init__(self, pattern: str) -> None:
    self._pattern = re.compile(pattern)
    is_marked = "updated" in self._pattern.groupindex
    self._mark = "updated" if is_marked else "steps"
    self._steps = 0.0
    self._returns: collections.deque[float] = collections.deque(maxlen=100)

  def __call__(self, line: str) -> watched.Progress | None:
    """Returns the progress of a line; None for a line without progress."""
    match = self._pattern.search(line)
    if match is None:
      return None
    if returned := match["returned"]:
      self._returns.append(float(returned))
    if steps := match["steps"]:
      self._steps = float(steps)
    if not match[self._mark]:
      return None
    mean = None
    if self._returns:
      mean = sum(self._returns) / len(self._returns)
    return watched.Progress(self._steps, 1, mean)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  for name, of in (
    ("--python", "interpreter: torch, jax, cleanrl, replay"),
    ("--source", "checkout: purejaxrl, cleanrl"),
  ):
    parser.add_argument(
      name, action="append", default=[], metavar="NAME=PATH", help=of
    )
  parser.add_argument("--only", default="", help="pattern of the names to run")
  parser.add_argument("--rounds", type=int, default=2)
  parser.add_argument("--seconds", type=float, default=8.0)
  parser.add_argument(
    "--settle",
    type=float,
    default=3.0,
    help="seconds to wait after the first progress",
  )
  parser.add_argument("--limit", type=float, default=120.0, help="of a start")
  parser.add_argument("--replay-seconds", type=float, default=2.0)
  return parser


def _pairs(texts: Sequence[str]) -> dict[str, str]:
  pairs = dict(text.split("=", 1) for text in texts)
  return {name: os.path.abspath(path) for name, path in pairs.items()}


def _trained(
  options: argparse.Namespace,
  pythons: Mapping[str, str],
  sources: Mapping[str, str],
) -> dict[Peer, list[Result]]:
  """Measures each program once in each round; reports those that fail."""
  results: dict[Peer, list[Result]] = {}
  for _ in range(options.rounds):
    for peer in PEERS:
      needed = set(re.findall(r"{(\w+)}", peer.command))
      if peer.python not in pythons or not needed <= sources.keys():
        continue
      if not re.search(options.only, peer.name):
        continue
      try:
        result = measure(peer, pythons[peer.python], sources, options)
      except types.ConfigError as error:
        print(f"{peer.name}, {peer.settings}: {error}", file=sys.stderr)
        continue
      print(f"{peer.name}, {peer.settings}: {result}", file=sys.stderr)
      results.setdefault(peer, []).append(result)
  return {peer: results[peer] for peer in PEERS if peer in results}


def _replays(
  options: argparse.Namespace, pythons: Mapping[str, str]
) -> list[list[str]]:
  """Measures replays; returns the rows of their table."""
  rows = []
  for kind in replays.KINDS:
    for name, python in _REPLAYS:
      if python in pythons and re.search(options.only, name):
        command = [pythons[python], "-m", "benchmarks.peers.replays"]
        command += [name.lower(), "--kind", kind]
        command += ["--seconds", str(options.replay_seconds), "--steps"]
        costs = (_replay([*command, str(steps)]) for steps in _CAPACITIES)
        rows.append([name, kind, *costs])
  return rows


def _replay(command: Sequence[str]) -> str:
  """Returns a replay's costs and their sum, as text, in CPU microseconds."""
  process = subprocess.run(
    command, cwd=_ROOT, stdout=subprocess.PIPE, text=True
  )
  if process.returncode:
    print(f"{' '.join(command)} failed", file=sys.stderr)
    return "-"
  micros = json.loads(process.stdout.splitlines()[-1])
  *parts, total = (f"{x:,.0f}" for x in micros.values())
  return f"{' + '.join(parts)} = {total}"


def _versions(pythons: Mapping[str, str], sources: Mapping[str, str]) -> str:
  """Returns a paragraph with versions of packages and commits of checkouts."""
  parts = []
  program = "import sys, importlib.metadata as m;"
  program += "print(*(f'{x} {m.version(x)}' for x in sys.argv[1:]), sep=', ')"
  for name, python in pythons.items():
    command = [python, "-c", program, *_VERSIONS.get(name, ())]
    parts.append(f"{name}: {_output(command)}")
  for name, path in {"seedx": str(_ROOT), **sources}.items():
    command = ["git", "-C", path, "log", "-1", "--format=%h of %cs"]
    parts.append(f"{name}: commit {_output(command)}")
  return textwrap.fill("; ".join(parts), _PAGE_WIDTH)


def _output(command: Sequence[str]) -> str:
  process = subprocess.run(command, capture_output=True, text=True)
  return process.stdout.strip() or "unknown"


def _row(peer: Peer, results: Sequence[Result]) -> list[str]:
  returns = [x.episode_return for x in results if x.episode_return is not None]
  return [
    peer.name,
    peer.settings,
    _span([x.cost.total for x in results], "{:.1f}"),
    _span([x.cost.rate for x in results], "{:,.0f}"),
    _span(returns, "{:.0f}"),
    _span([x.env_steps / 1e6 for x in results], "{:.1f}M"),
  ]


def _span(values: Sequence[float], text: str) -> str:
  """Returns the lowest and the highest value as text; "-" without values."""
  ends = dict.fromkeys(text.format(f(values)) for f in (min, max) if values)
  return "-".join(ends) or "-"


def _has_learned(program: watched.Program) -> bool:
  return any(
    x.progress.updates > 0 and x.progress.env_steps > 0 for x in program.samples
  )


if __name__ == "__main__":
  watched.end_on_signals()
  sys.exit(main())
