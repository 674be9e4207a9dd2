"""Programs whose reader has closed their output, such as `... | head -1`."""

import json
import os
import subprocess
import sys

import pytest

from tests import programs

# An environment that prints.
_PRINTING = """
import gymnasium

def make():
  print("made an environment", flush=True)
  return gymnasium.make("CartPole-v1")
"""


def run(words, cwd, only_stdout=False):
  """Runs a program without a reader; returns its exit status and stderr."""
  reader, writer = os.pipe()
  os.close(reader)
  try:
    ended = subprocess.run(
      [sys.executable, *words],
      cwd=cwd,
      env={**os.environ, "PYTHONPATH": str(programs.ROOT)},
      stdout=writer,
      stderr=subprocess.PIPE if only_stdout else writer,
      text=True,
      timeout=600,
    )
  finally:
    os.close(writer)
  return ended.returncode, ended.stderr or ""


@pytest.mark.parametrize(
  ("words", "status"),
  [
    (("-m", "seedx", "compare", "--help"), 0),
    (("-u", "-m", "seedx", "--help"), 0),
    (("-m", "seedx", "plot", "nowhere"), 2),
  ],
)
def test_a_program_without_a_reader_has_the_same_exit_status(
  words, status, tmp_path
):
  assert run(words, tmp_path)[0] == status
  actual, printed = run(words, tmp_path, only_stdout=True)
  assert actual == status
  assert "Traceback" not in printed and printed.count("\n") == (status > 0)


def test_a_full_disk_below_the_output_is_one_line():
  with open("/dev/full", "w") as full:
    ended = subprocess.run(
      [sys.executable, "-m", "seedx", "--help"],
      cwd=programs.ROOT,
      stdout=full,
      stderr=subprocess.PIPE,
      text=True,
    )
  assert ended.returncode == 1
  assert ended.stderr.endswith("the disk is full\n")
  assert ended.stderr.count("\n") == 1


_FULL = """
import errno, sys
from seedx import __main__

def fails():
  raise OSError(errno.ENOSPC, "no space left", "a file")

__main__.main = fails
sys.exit(__main__.program())
"""


def test_another_full_disk_is_not_mistaken_for_that_below_the_output():
  ended = subprocess.run(
    [sys.executable, "-c", _FULL],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
  )
  assert ended.returncode == 1
  assert ended.stderr.endswith("no space left: 'a file'\n")


_CLOSED = """
import os
from seedx import output

output.outlive_readers()
print("nowhere")
opened = os.open("/dev/null", os.O_RDONLY)
os._exit(10 * opened + sys.stderr.isatty())
"""


def test_a_closed_stream_is_replaced_before_a_file_takes_its_number():
  ended = subprocess.run(
    [sys.executable, "-c", f"import sys{_CLOSED}"],
    cwd=programs.ROOT,
    preexec_fn=lambda: [os.close(number) for number in range(3)],
    close_fds=False,
  )
  assert ended.returncode >= 30


def test_a_file_name_that_is_not_valid_text_is_printed():
  program = (
    "from seedx import output; output.outlive_readers(); print('\\udcff')"
  )
  printed = subprocess.check_output(
    [sys.executable, "-c", program],
    cwd=programs.ROOT,
    env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
  )
  assert printed == b"\\udcff\n"


@pytest.mark.slow
def test_runs_and_evaluations_work_without_a_reader(tmp_path):
  (tmp_path / "printing.py").write_text(_PRINTING)
  run_dir = tmp_path / "run"
  words = "-m seedx train seed_vtrace --env printing:make --num-actors 1"
  words += " --envs-per-actor 8 --total-steps 2000 --log-seconds 0.1"
  words += f" --log-every 0 --run-dir {run_dir}"
  assert run(words.split(), tmp_path) == (0, "")
  last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
  assert last["env_steps"] >= 2000 and last.get("env_restarts", 0) == 0
  words = f"-m seedx evaluate {run_dir} --episodes 2 --trust"
  assert run(words.split(), tmp_path) == (0, "")
  assert list((run_dir / "checkpoints").glob("evaluation-*"))
