"""Run directories with planted files: nothing outside of them changes.

Each command that takes a directory meets a link, a pipe, a huge file and so on
at each name that a run reads or writes. The command succeeds, or ends with an
error in one line; files outside stay as they were.
"""

import os
import shutil
import stat
import time

import pytest

from experiments import a2c
from seedx.app import evaluate, plot
from seedx.app.studies import compare, sweep
from tests import planted_files, programs

compiled_once = programs.compiled_once
own_signals = programs.own_signals

_SMALL = ("--hidden-sizes", "8", "--num-envs", "4", "--unroll-length", "5")
_KINDS = planted_files.PLANTED | planted_files.FILES
# Names of planted files. OWN stands for the env steps of the run's checkpoint.
_NAMES = (
  "config.json",
  "metrics.jsonl",
  "evaluations.jsonl",
  "learning_curve.png",
  "profile",
  "checkpoints",
  "checkpoints/OWN",
  *(f"checkpoints/OWN/{x}" for x in ("score", "run", "acting")),
  "checkpoints/evaluation-OWN.json",
  *(f"checkpoints/{x}" for x in ("7", "7.unfinished", "7.removed", "900")),
)
_COMMANDS = {
  "evaluate": (evaluate, "{} --episodes 1 --num-envs 1"),
  "plot": (plot, "{} --output plot.png"),
  "resume": (
    a2c,
    "--resume {} --total-steps 1100 --evaluate-every-steps 20"
    " --evaluate-episodes 1",
  ),
  "train": (a2c, f"--run-dir {{}} --total-steps 40 {' '.join(_SMALL)}"),
  "compare": (compare, "--run-dir {} --experiments a2c --total-steps 40"),
  "sweep": (
    sweep,
    "a2c --run-dir {} --search entropy_cost=0|0.1 --trials 1 --total-steps 40",
  ),
}
# Commands that begin a run or study, and the names that must be free.
_BEGIN = {
  "train": "config.json metrics.jsonl learning_curve.png checkpoints",
  "compare": "config.json comparison.md comparison.png ended.jsonl a2c",
  "sweep": (
    "config.json sweep.md sweep.png trials default best draws.jsonl ended.jsonl"
  ),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  run_dir = tmp_path_factory.mktemp("trained") / "run"
  words = (*_SMALL, "--total-steps", "1000", "--run-dir", str(run_dir))
  assert programs.main(a2c, words) == 0
  return run_dir


def _state(folder):
  """Returns modes of files in a folder, and the contents of regular files."""
  state = {}
  for path in [folder, *sorted(folder.rglob("*"))]:
    status = path.lstat()
    is_file = stat.S_ISREG(status.st_mode)
    state[path.relative_to(folder)] = (
      status.st_mode,
      path.read_bytes() if is_file else b"",
    )
  return state


def _run_on_planted(command, name, kind, trained, folder, capfd):
  """Returns a command's status, and whether a planted file survives it."""
  outside, run_dir = folder / "outside", folder / "run"
  outside.mkdir(parents=True)
  (outside / "own").write_text("the user's own")
  if command in _BEGIN:
    run_dir.mkdir()
  else:
    shutil.copytree(trained, run_dir)
  (own,) = os.listdir(trained / "checkpoints")
  planted = run_dir / name.replace("OWN", own)
  planted.parent.mkdir(parents=True, exist_ok=True)
  if planted.is_dir():
    shutil.rmtree(planted)
  planted.unlink(missing_ok=True)
  _KINDS[kind](planted, outside)
  original, inside = _state(outside), planted.lstat().st_mode
  program, words = _COMMANDS[command]
  began = time.process_time()
  try:
    status = programs.main(program, words.format(run_dir).split())
  except SystemExit as ended:
    status = ended.code
  cpu_seconds = time.process_time() - began
  output = "".join(capfd.readouterr())
  case = f"{command}, {kind} at {name}: {output}"
  assert status in (0, 2), case
  assert "Traceback" not in output, case
  assert status == 0 or "error: " in output, case
  assert cpu_seconds < 30, case
  assert _state(outside) == original, case
  return status, planted.is_symlink() or (
    planted.exists() and inside == planted.lstat().st_mode
  )


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("command", ["evaluate", "plot", "resume"])
def test_planted_files_in_a_run_are_not_followed(
  command, kind, trained, tmp_path, monkeypatch, capfd
):
  monkeypatch.chdir(tmp_path)
  ended = [
    _run_on_planted(command, name, kind, trained, tmp_path / str(k), capfd)[0]
    for k, name in enumerate(_NAMES)
  ]
  # The command succeeds with each name that it does not use.
  assert ended.count(0) >= len(_NAMES) // 3


@pytest.mark.parametrize("kind", ["a link to nothing", "a directory"])
@pytest.mark.parametrize(
  "command",
  # A sweep needs Optuna, although it does not start here.
  ["train", "compare", pytest.param("sweep", marks=pytest.mark.slow)],
)
def test_nothing_begins_in_a_directory_with_a_taken_name(
  command, kind, trained, tmp_path, monkeypatch, capfd
):
  if command == "sweep":
    pytest.importorskip("optuna")
  monkeypatch.chdir(tmp_path)
  for name in _BEGIN[command].split():
    status, is_kept = _run_on_planted(
      command, name, kind, trained, tmp_path / name, capfd
    )
    assert status == 2 and is_kept
    left = [x.name for x in (tmp_path / name / "run").iterdir()]
    assert left == [name]


@pytest.mark.slow
def test_a_sweep_keeps_files_that_it_does_not_write(tmp_path):
  """The test above covers the names that a sweep writes."""
  outside, run_dir = tmp_path / "outside", tmp_path / "run"
  run_dir.mkdir()
  outside.mkdir()
  (outside / "own").write_text("the user's own")
  # `_state` would read a sparse file as a whole.
  for k, kind in enumerate(_KINDS.keys() - {"a sparse file"}):
    _KINDS[kind](run_dir / str(k), outside)
  original, planted = _state(outside), _state(run_dir)
  words = "--search entropy_cost=0|0.1 --trials 1 --final-seeds 1"
  words += f" --scheduler none --total-steps 40 --run-dir {run_dir}"
  assert sweep.main([f"a2c {' '.join(_SMALL)}", *words.split()]) == 0
  assert _state(outside) == original
  assert planted.items() <= _state(run_dir).items()
  assert {*_BEGIN["sweep"].split()} <= {*os.listdir(run_dir)}


def test_an_evaluation_does_not_write_through_a_link(
  trained, tmp_path, monkeypatch, capfd
):
  """The shortest case of `test_planted_files_in_a_run_are_not_followed`."""
  monkeypatch.chdir(tmp_path)
  name = "checkpoints/evaluation-OWN.json"
  status, is_link = _run_on_planted(
    "evaluate", name, "a link to a file", trained, tmp_path / "x", capfd
  )
  assert status == 0 and not is_link


def test_a_result_is_printed_even_if_it_cannot_be_written(
  trained, tmp_path, monkeypatch, capfd
):
  monkeypatch.chdir(tmp_path)
  shutil.copytree(trained, tmp_path / "run")
  (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
  checkpoint.with_name(f"evaluation-{checkpoint.name}.json").mkdir()
  with pytest.raises(SystemExit, match="2"):
    programs.main(evaluate, ["run", "--episodes", "1"])
  output, error = capfd.readouterr()
  assert "env steps: mean " in output
  assert "error: these statistics could not be written to" in error
