"""Run directories with any content are read, or refused in one line."""

import json
import shutil

import hypothesis
import pytest
from hypothesis import strategies as st

from experiments import a2c as a2c_experiment
from seedx import metrics, types
from seedx.acting import evaluator
from seedx.app import evaluate, export, plot, training
from tests import programs

own_signals = programs.own_signals
compiled_once = programs.compiled_once

_EXAMPLES = hypothesis.settings(
  max_examples=40,
  deadline=None,
  derandomize=True,
  suppress_health_check=list(hypothesis.HealthCheck),
)
_VALUES = st.recursive(
  st.none()
  | st.booleans()
  | st.integers(-(10**400), 10**400)
  | st.integers(-5, 5)
  | st.floats()
  | st.text(max_size=5)
  | st.sampled_from(["\ud800", "\x1b[2J", "os:system", "seedx.x:Config", ":"]),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
  ),
  max_leaves=4,
)


class WorkedError(types.ConfigError):
  """Raised when a directory has been read, to skip the rest of a program."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Returns a folder with an experiment's run, and a copy as a script's run."""
  folder = tmp_path_factory.mktemp("trained")
  words = "--hidden-sizes 8 --num-envs 4 --unroll-length 5 --total-steps 200"
  words = [*words.split(), "--log-seconds", "0"]
  run_dir = ["--run-dir", str(folder / "program")]
  assert programs.main(a2c_experiment, words + run_dir) == 0
  shutil.copytree(folder / "program", folder / "script")
  content = json.loads((folder / "script" / "config.json").read_text())
  content["experiment"] = None
  (folder / "script" / "config.json").write_text(json.dumps(content))
  return folder


@pytest.fixture
def read(trained, tmp_path, monkeypatch, capsys):
  """Returns a function that makes all programs read a changed directory."""

  def stop(*_, **__):
    raise WorkedError("it worked")

  monkeypatch.setattr(evaluator, "Evaluator", stop)
  monkeypatch.setattr(export, "export", stop)
  monkeypatch.setattr(training, "run", stop)
  monkeypatch.setattr(plot, "draw", stop)
  monkeypatch.chdir(tmp_path)

  def read(run, name, content):
    if not (tmp_path / "run").exists():
      shutil.copytree(trained / run, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    capsys.readouterr()
    for program, words in (
      (evaluate, ["run"]),
      (export, ["run"]),
      (plot, ["run"]),
      (a2c_experiment, ["--resume", "run", "--total-steps", "300"]),
    ):
      with pytest.raises(SystemExit) as caught:
        programs.main(program, words)
      assert caught.value.code == 2
      out, err = capsys.readouterr()
      # A resume first prints the settings that it does not restore.
      *notes, error = err.splitlines()
      assert out == "" and error.startswith("error: ") and len(notes) <= 1
      assert all(x.startswith("not restored from config.json: ") for x in notes)
      assert all(line.isprintable() for line in (*notes, error))

  return read


def _mutated(data, content):
  """Returns content with some bytes replaced, removed, repeated or added."""
  for _ in range(data.draw(st.integers(1, 4))):
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, min(len(content), start + 40)))
    piece = data.draw(
      st.binary(max_size=6)
      | st.just(content[start:end] * 2)
      | st.sampled_from([b"[" * 100_000, b"1" * 5000, b"1e999", b"NaN", b"\n"])
    )
    content = content[:start] + piece + content[end:]
  return content


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
@hypothesis.given(data=st.data())
@_EXAMPLES
def test_any_bytes_are_read_or_refused_in_one_line(data, name, trained, read):
  content = (trained / "program" / name).read_bytes()
  read("program", name, _mutated(data, content))


@pytest.mark.slow
@pytest.mark.parametrize("run", ["program", "script"])
@hypothesis.given(data=st.data())
@_EXAMPLES
def test_any_settings_are_read_or_refused_in_one_line(data, run, trained, read):
  content = json.loads((trained / run / "config.json").read_text())
  for _ in range(data.draw(st.integers(1, 2))):
    where = data.draw(st.sampled_from([content, content["options"]]))
    name = data.draw(st.sampled_from(sorted(where)))
    where[name] = data.draw(_VALUES)
    if name == "options":
      break
  read(run, "config.json", json.dumps(content).encode())


@pytest.mark.slow
@hypothesis.given(data=st.data())
@_EXAMPLES
def test_any_metrics_are_read_or_refused_in_one_line(data, trained, read):
  lines = [
    json.loads(line)
    for line in (trained / "program" / "metrics.jsonl").read_text().splitlines()
  ]
  for _ in range(data.draw(st.integers(1, 3))):
    line = data.draw(st.sampled_from(lines))
    names = st.sampled_from(["env_steps", "wall_seconds", "episode_return"])
    line[data.draw(names)] = data.draw(_VALUES)
  text = "".join(json.dumps(line) + "\n" for line in lines)
  read("program", "metrics.jsonl", text.encode())


@hypothesis.given(cut=st.integers(0, 100))
@_EXAMPLES
def test_a_torn_last_line_is_no_error(cut, tmp_path):
  """A killed run leaves half a line; a resumed run writes behind it."""
  lines = [{"env_steps": i, "wall_seconds": i / 3, "x": "y"} for i in range(5)]
  whole = "".join(json.dumps(line) + "\n" for line in lines)
  last = json.dumps({**lines[-1], "env_steps": 7})
  path = tmp_path / "metrics.jsonl"
  path.write_text(whole + last[:cut])
  assert metrics.read_lines(path) == lines
  path.write_text(whole + last[:cut] + last + "\n")
  assert metrics.read_lines(path) == [*lines, json.loads(last)]
