"""Tests of seedx.metrics."""

import collections
import io
import itertools
import json
import os
import pty
import sys
import threading
import time

import numpy as np
import pytest

from seedx import metrics
from seedx.metrics import events
from tests import programs


class FakeClock:
  """A clock that `sleep` advances."""

  def __init__(self):
    self.now = 100.0

  def __call__(self):
    return self.now

  def sleep(self, seconds):
    self.now += seconds


# Waits


def test_the_share_of_a_wait_is_of_the_time_since_the_last_measure():
  clock = FakeClock()
  waits = metrics.Waits(clock=clock)
  for _ in range(3):
    with waits.timed("a"):
      clock.sleep(1.0)
    with waits.timed("b"):
      clock.sleep(0.5)
    clock.sleep(0.5)
  assert waits.measure() == pytest.approx({"a": 0.5, "b": 0.25})
  clock.sleep(4.0)
  assert waits.measure() == {"a": 0.0, "b": 0.0}


def test_a_wait_in_progress_counts_and_is_split_over_the_intervals():
  clock = FakeClock()
  waits = metrics.Waits(clock=clock)
  clock.sleep(1.0)
  with waits.timed("a"):
    clock.sleep(3.0)
    assert waits.measure() == {"a": 0.75}
    clock.sleep(10.0)
    assert waits.measure() == {"a": 1.0}
    clock.sleep(1.0)
  clock.sleep(3.0)
  assert waits.measure() == {"a": 0.25}


def test_declared_threads_count_even_if_they_never_wait():
  clock = FakeClock()
  waits = metrics.Waits({"a": 4, "never": 1}, clock)
  with waits.timed("a"):
    clock.sleep(2.0)
  assert waits.measure() == {"a": 0.25, "never": 0.0}


def test_a_wait_within_the_same_wait_is_refused_and_the_outer_one_counts():
  clock = FakeClock()
  waits = metrics.Waits(clock=clock)
  with waits.timed("a"):
    clock.sleep(1.0)
    with pytest.raises(RuntimeError, match="'a'"), waits.timed("a"):
      pass
    clock.sleep(1.0)
  clock.sleep(2.0)
  assert waits.measure() == {"a": 0.5}


def test_no_time_is_lost_or_counted_twice_while_threads_wait():
  calls, ticks = collections.defaultdict(list), itertools.count()

  def clock():
    """Advances by a second with each call, from any thread."""
    calls[threading.get_ident()].append(next(ticks))
    return float(calls[threading.get_ident()][-1])

  def run():
    for _ in range(300):
      with waits.timed("a"):
        time.sleep(0)

  waits, shares = metrics.Waits({"a": 2}, clock), []
  threads = [threading.Thread(target=run) for _ in range(2)]
  for thread in threads:
    thread.start()
  while any(thread.is_alive() for thread in threads):
    shares.append(waits.measure()["a"])
  shares.append(waits.measure()["a"])
  assert min(shares) >= 0.0 and max(shares) <= 1.0
  elapsed = np.diff(calls.pop(threading.get_ident()))
  waited = [np.diff(x)[::2].sum() for x in calls.values()]
  assert 2 * np.dot(shares, elapsed) == pytest.approx(sum(waited))


@pytest.mark.alone
def test_timing_a_wait_costs_less_than_50_calls_of_the_clock():
  waits, ratios = metrics.Waits(), []
  for _ in range(5):
    began = time.perf_counter()
    for _ in range(2000):
      with waits.timed("a"):
        pass
    timed = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(2000):
      for _ in range(50):
        time.perf_counter()
    ratios.append(timed / (time.perf_counter() - began))
  assert min(ratios) < 1


# The bottleneck


@pytest.mark.parametrize(
  ("requests", "queue", "unrolls", "expected"),
  [
    (0.9, 0.0, 0.0, "environments"),  # With a replay, the learner never waits.
    (0.1, 0.3, 0.0, "learner"),  # Inference waits for the learner.
    (0.3, 0.1, 0.7, "acting"),
    (0.5, 0.2, 0.6, "environments"),
  ],
)
def test_the_bottleneck_is_the_side_for_which_the_others_wait(
  requests, queue, unrolls, expected
):
  waits = {
    "acting_wait_environments": requests,
    "acting_wait_learner": queue,
    "acting_wait_device": 1.0 - requests - queue,
    "learning_wait_experience": unrolls,
  }
  assert metrics.bottleneck(waits) == expected


# Episode returns


def test_mean_is_over_the_latest_100_and_count_over_all():
  returns = metrics.Latest()
  returns.add(np.full([50], 1e6, np.float32))
  returns.add(np.arange(60, dtype=np.float32))
  returns.add(np.arange(60, 100, dtype=np.float32))
  assert returns.mean() == pytest.approx(49.5)
  assert returns.count == 150


def test_a_nan_instead_of_a_return_is_refused():
  returns = metrics.Latest()
  with pytest.raises(ValueError, match="NaN"):
    returns.add(np.array([1.0, np.nan]))
  assert returns.count == 0


# Sinks


def test_a_sink_without_lines_leaves_no_file(tmp_path):
  for sink in (
    metrics.JsonLines(tmp_path / "metrics.jsonl"),
    events.TensorBoard(tmp_path),
  ):
    sink.close()
  assert not list(tmp_path.iterdir())


def test_json_has_null_for_nan_and_infinity_and_accepts_numpy(tmp_path):
  path = tmp_path / "metrics.jsonl"
  sink = metrics.JsonLines(path)
  sink.write(
    {
      "nan": float("nan"),
      "inf": -float("inf"),
      "nan32": np.float32("nan"),
      "half": np.float32(0.5),
      "five": np.int64(5),
      "none": None,
      "note": "x",
    }
  )

  def refuse(name):
    raise AssertionError(f"bare {name}")

  # The file can be read before it is closed.
  line = json.loads(path.read_text(), parse_constant=refuse)
  none = dict.fromkeys(("nan", "inf", "nan32", "none"))
  assert line == {**none, "half": 0.5, "five": 5, "note": "x"}
  sink.close()
  sink.close()
  resumed = metrics.JsonLines(path)
  resumed.write({"env_steps": 2})
  assert json.loads(path.read_text().splitlines()[1]) == {"env_steps": 2}


def read_scalars(run_dir):
  return [
    (x.tag, step, x.simple_value) for step, x in programs.read_events(run_dir)
  ]


def test_tensorboard_has_scalars_against_env_steps(tmp_path):
  sink = events.TensorBoard(tmp_path)
  sink.write({"env_steps": 640, "loss": 0.5, "episode_return": None, "s": "x"})
  sink.write({"env_steps": np.int64(1280), "loss": np.nan, "lag": 3})
  others = "info_a/b", "evaluation_info_a/b", "temperature", "loss_temperature"
  sink.write({"env_steps": 1300, **dict.fromkeys(others, 2)})
  sink.close()
  sink.close()
  assert read_scalars(tmp_path) == [
    ("loss/loss", 640, 0.5),
    ("run/lag", 1280, 3.0),
    ("episode/info_a/b", 1300, 2.0),
    ("episode/evaluation_info_a/b", 1300, 2.0),
    ("policy/temperature", 1300, 2.0),
    ("loss/loss_temperature", 1300, 2.0),
  ]


def test_tensorboard_compares_runs_by_their_settings(tmp_path):
  from tensorboardX.proto import plugin_hparams_pb2

  values = {
    "learning_rate": 0.5,
    "epochs": 3,
    "recurrent": False,
    "env": "Pong-v5",
    "hidden_sizes": [64, 64],
    "limit": float("inf"),
  }
  sink = events.TensorBoard(tmp_path, values)
  sink.write({"env_steps": 1})
  sink.write({"env_steps": 2, "lag": 3})
  sink.close()
  (_, summary), (_, scalar) = programs.read_events(tmp_path)
  assert scalar.tag == "run/lag"
  assert summary.tag == "_hparams_/session_start_info"
  assert summary.metadata.plugin_data.plugin_name == "hparams"
  content = summary.metadata.plugin_data.content
  start = plugin_hparams_pb2.HParamsPluginData.FromString(content)
  hparams = start.session_start_info.hparams
  numbers = {k: hparams[k].number_value for k in ("learning_rate", "epochs")}
  assert numbers == {"learning_rate": 0.5, "epochs": 3.0}
  assert hparams["recurrent"].WhichOneof("kind") == "bool_value"
  texts = [hparams[k].string_value for k in ("env", "hidden_sizes", "limit")]
  assert texts == ["Pong-v5", "[64, 64]", "Infinity"]
  assert len(hparams) == len(values)


def test_tensorboard_has_videos_as_images(tmp_path):
  videos = collections.deque()
  sink = events.TensorBoard(tmp_path, videos=videos)
  sink.write({"env_steps": 5})
  videos.append(metrics.Video(3, (20, 30), b"GIF89a-first"))
  sink.write({"env_steps": 9})
  videos.append(metrics.Video(9, (20, 30), b"GIF89a-second"))
  sink.close()  # The last evaluation ends after the last line.
  assert not videos
  images = [
    (step, x.tag, x.image) for step, x in programs.read_events(tmp_path)
  ]
  assert [step for step, *_ in images] == [3, 9]
  assert {tag for _, tag, _ in images} == {"episode/evaluation_video"}
  (_, _, first), _ = images
  assert (first.height, first.width) == (20, 30)
  assert first.encoded_image_string == b"GIF89a-first"


# The console

LINE = {
  "env_steps": 2_500_000,
  "steps_per_second": 490_000.0,
  "episode_return": 187.34,
  "policy_lag": 2.13,
  "acting_wait_environments": 0.1,
  "acting_wait_learner": 0.7,
  "learning_wait_experience": 0.0,
  "wall_seconds": 20.0,
  "compile_seconds": 4.0,
}


def line_before(rate, **changes):
  """Returns the line a second before `LINE`, with a rate between them."""
  steps, seconds = LINE["env_steps"] - rate, LINE["wall_seconds"] - 1
  return {**LINE, "env_steps": steps, "wall_seconds": seconds, **changes}


def console(total_steps=10_000_000):
  stream, clock = io.StringIO(), FakeClock()
  sink = metrics.Console(total_steps, stream, clock=clock)
  return sink, stream, clock


def rows(stream):
  return [line.split() for line in stream.getvalue().splitlines()]


def test_row_shows_everything_in_80_columns():
  sink, stream, clock = console()
  sink.write(line_before(490_000))
  clock.sleep(10.0)
  sink.write(LINE)
  sink.close()  # The last line is not shown again.
  header, _, row = stream.getvalue().splitlines()
  expected = "2.5M/10M 25% 490k 187.3 2.1 15s learner"
  assert " ".join(row.split()) == expected
  assert len(header) <= 80
  assert len(row) <= 80


BEHIND = {"acting_wait_learner": 0.0, "learning_wait_experience": 0.5}


@pytest.mark.parametrize(
  ("changes", "end"),
  [
    (
      {"info_is_success": 0.8333, "info_gold": None},
      "2.1 - learner is_success 0.833 gold -",
    ),
    (
      {"steps_without_episode": 1_230_000},
      "2.1 - no episode has ended for 1.23M env steps",
    ),
    ({"stalled_seconds": 187.2}, "2.1 - no step for 3m07s"),
    (
      {"policy_lag": None, "replay_size": 400},
      "490k 187.3 - - filling the replay 0s",
    ),
    # Inference waits for updates.
    (
      {**BEHIND, "acting_wait_update": 0.5, "micro_batches_advised": 8},
      "- updates: try --micro-batches 8",
    ),
    ({**BEHIND, "acting_wait_update": 0.5}, "- updates"),
    ({**BEHIND, "acting_wait_update": 0.4}, "- acting"),
  ],
)
def test_a_row_ends_with_what_the_line_shows(changes, end):
  sink, stream, _ = console()
  sink.write(LINE | changes)
  sink.close()
  header, row = stream.getvalue().splitlines()
  assert " ".join(row.split()).endswith(f" {end}")
  assert len(header) <= 80


def test_a_row_without_env_steps_has_updates_and_the_evaluation():
  sink, stream, clock = console(2_000)
  line = {"learner_steps": 400, "wall_seconds": 1.0, "policy_lag": 0.0}
  sink.write(line | {"replay_size": 70, "policy_lag": None})
  clock.sleep(10.0)
  changes = {"learner_steps": 1_000, "wall_seconds": 3.0}
  sink.write(line | changes | {"evaluation_return": 21.5, "env_steps": 0})
  sink.close()
  header, first, row = rows(stream)
  assert header[:3] == ["updates", "done", "updates/s"]
  assert " ".join(first).endswith("compiling 0s")
  assert row[:5] == ["1k/2k", "50%", "300", "21.5", "0.0"]


def test_row_of_an_empty_line_has_dashes():
  sink, stream, _ = console()
  sink.write({"env_steps": 0, "episode_return": None})
  assert " ".join(rows(stream)[-1]) == "0/10M 0% - - - - compiling 0s"


def test_before_the_first_update_a_row_has_the_time_and_no_rate():
  sink, stream, clock = console()
  for steps, wait in ((0, 0.5), (0, 1.0), (640, 1.0), (1280, 0.1)):
    waits = {"policy_lag": None, "acting_wait_environments": wait}
    sink.write({**LINE, **waits, "env_steps": steps})
    clock.sleep(10.0)
  sink.write(LINE)
  *starting, learning = rows(stream)[1:]
  assert {row[2] for row in starting} == {"-"}
  assert [" ".join(row[6:]) for row in starting] == [
    "compiling 0s",
    "waiting for the first observation 10s",
    "compiling 20s",
    "compiling 30s",
  ]
  assert learning[2] == "490k" and learning[-1] == "learner"


def test_updates_without_a_policy_lag_end_the_start():
  sink, stream, clock = console()
  for updates in (7, 7, 8):  # The run was resumed after 7 updates.
    sink.write({**LINE, "policy_lag": None, "learner_steps": updates})
    clock.sleep(10.0)
  assert [row[2] for row in rows(stream)[1:]] == ["-", "-", "490k"]


def test_a_learner_without_actors_shows_that_it_waits_for_them():
  stream = io.StringIO()
  sink = metrics.Console(10**7, stream, 0.0, others_join=True)
  for steps in (500, 500, 900):
    sink.write({**LINE, "env_steps": steps, "policy_lag": None})
  first, second, third = stream.getvalue().splitlines()[1:]
  assert "waiting for others to join" in first and first[-3:] == second[-3:]
  assert "compiling" in third


def test_rows_come_at_most_every_10_seconds_and_the_last_at_close():
  sink, stream, clock = console()
  for second in range(26):
    sink.write({**LINE, "env_steps": second})
    clock.sleep(1.0)
  sink.close()
  sink.close()
  steps = [row[0].partition("/")[0] for row in rows(stream)[1:]]
  assert steps == ["0", "10", "20", "25"]


@pytest.mark.parametrize(
  ("rate", "before", "left"),
  [
    (100_000.0, {}, "1m15s"),
    (1_000.0, {}, "2h05m"),
    (50.0, {}, "1d17h"),
    (1e-6, {}, "years"),
    (0.0, {}, "-"),
    (100_000.0, {"compile_seconds": 3.75}, "56s"),
    (100_000.0, {"compile_seconds": 3.2}, "-"),
  ],
)
def test_the_time_left_has_at_most_two_units_and_counts_no_compilation(
  rate, before, left
):
  sink, stream, clock = console()
  sink.write(line_before(rate, **before))
  clock.sleep(10.0)
  sink.write(LINE)
  assert rows(stream)[-1][5] == left


def test_100_percent_is_shown_only_once_all_steps_are_done():
  sink, stream, clock = console()
  for steps in (9_999_999, 10_000_000, 10_000_100):
    sink.write({**LINE, "env_steps": steps})
    clock.sleep(10.0)
  assert [row[1] for row in rows(stream)[1:]] == ["99%", "100%", "100%"]
  assert rows(stream)[-1][5] == "0s"


def read_terminal(master):
  text = b""
  while True:
    try:
      piece = os.read(master, 65536)
    except OSError:  # Linux returns EIO at the end of a pseudo-terminal.
      return text.decode()
    if not piece:
      return text.decode()
    text += piece


def test_terminal_shows_one_status_in_place_and_the_cursor_comes_back(
  monkeypatch,
):
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.setenv("COLUMNS", "80")
  master, slave = pty.openpty()
  texts = []
  reader = threading.Thread(target=lambda: texts.append(read_terminal(master)))
  reader.start()
  with os.fdopen(slave, "w") as stream:
    sink = metrics.Console(10_000_000, stream)
    sink.write(line_before(490_000, env_steps=2_010_000))
    sink.write(LINE)
    sink.write({**LINE, "env_steps": 5_000_000})
    sink.close()
  reader.join()
  os.close(master)
  (text,) = texts
  first, second = text.split("25%")[1].split("50%")[:2]
  for part in ("2.5M of 10M", "15s left", "490k", "187.3", "learner", "70%"):
    assert part in first
  assert "5M of 10M" in second
  assert "\x1b[1A" in first  # The second status is drawn over the first.
  assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


# Files


def line_at(env_steps, wall_seconds):
  return {"env_steps": env_steps, "wall_seconds": wall_seconds}


def read(tmp_path, text):
  (tmp_path / "metrics.jsonl").write_text(text)
  return metrics.read_lines(tmp_path / "metrics.jsonl")


def test_half_a_line_of_a_killed_run_hides_no_other_line(tmp_path):
  lines = [line_at(step, float(step)) for step in (1, 2, 3)]
  first, second, third = jsonl(lines).splitlines()
  half = second[:20]
  assert read(tmp_path, f"{first}\n{half}{second}\n{third}\n") == lines
  assert read(tmp_path, f"{first}\n{half}\n{third}\n") == lines[::2]


def jsonl(lines):
  return "".join(json.dumps(line) + "\n" for line in lines)


def test_lines_after_the_resumed_checkpoint_are_dropped(tmp_path):
  first = [line_at(100 * i, 10.0 * i) for i in range(6)]
  second = [line_at(100 * i, 10.0 * i + 1) for i in (2, 3, 4)]
  third = [line_at(100 * i, 10.0 * i + 2) for i in (3, 4)]
  lines = read(tmp_path, jsonl([*first, *second, *third]))
  # A line at the same step as the first resumed line is dropped, too.
  assert lines == [*first[:2], second[0], *third]


def test_a_resumption_is_detected_by_steps_or_by_seconds(tmp_path):
  first = [line_at(100, 10.0), line_at(150, 20.0), line_at(155, 21.0)]
  # The checkpoint was at 140 steps and 18 s. The resumed run is
  # faster or slower.
  for resumed in (line_at(160, 19.0), line_at(145, 23.0)):
    assert read(tmp_path, jsonl([*first, resumed])) == [first[0], resumed]


def test_a_run_that_makes_no_steps_for_a_while_keeps_its_lines(tmp_path):
  lines = [line_at(0, 0.5), line_at(0, 1.0), line_at(7, 1.5), line_at(7, 2.0)]
  assert read(tmp_path, jsonl(lines)) == lines


def test_returns_from_many_threads_are_all_counted():
  returns = metrics.Latest()

  def add():
    for _ in range(500):
      returns.add(np.ones([3]))

  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  try:
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  finally:
    sys.setswitchinterval(interval)
  assert returns.count == 6000


def test_time_left_does_not_jump_with_one_slow_interval():
  sink, stream, clock = console()
  for line in (line_before(100_000.0), LINE):
    sink.write(line)
    clock.sleep(10.0)
  steps, seconds = LINE["env_steps"] + 10_000, LINE["wall_seconds"] + 1
  sink.write({**LINE, "env_steps": steps, "wall_seconds": seconds})
  # The last interval's rate alone would give 12m29s.
  assert [row[5] for row in rows(stream)[1:]] == ["-", "1m15s", "1m42s"]


def test_the_mean_of_seeds_weights_trainings_equally():
  seeds = [metrics.Latest(window=2) for _ in range(3)]
  mean = metrics.MeanOfSeeds(seeds)
  assert mean.mean() is None and mean.count == 0
  seeds[0].add(np.array([1.0]))
  seeds[1].add(np.array([2.0, 4.0, 6.0]))
  assert mean.mean() is None and not mean.is_full
  seeds[2].add(np.array([9.0, 9.0]))
  assert mean.mean() == (1.0 + 5.0 + 9.0) / 3
  assert not mean.is_full and mean.count == 6
  seeds[0].add(np.array([3.0]))
  mean.add(np.array([99.0]))
  assert mean.mean() == (2.0 + 5.0 + 9.0) / 3 and mean.is_full
