"""Figures of runs: their statistics, their groups, and `seedx plot`."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import figure, text

from experiments.figures import dark
from seedx.app import drawing, evaluate, plot
from seedx.app.runs import records, run_groups, statistics
from tests.app import cases

ROOT = pathlib.Path(__file__).parents[2]


def make_run(
  path,
  returns=(1.0, 2.0),
  *,
  experiment="ppo",
  env="CartPole-v1",
  seed=0,
  steps=None,
  unlabelled=(),
  **more,
):
  """Writes the files of a run; returns its directory as a string."""
  path.mkdir(parents=True, exist_ok=True)
  content = {
    "experiment": experiment,
    "pipeline": "seedx.pipelines.sync:Config",
    "agent": "seedx.agents.ppo:Config",
    "seedx": "0.2.0",
    "format": records.FORMAT,
    "options": {"env": env, "seed": seed, **more},
    "unlabelled": unlabelled,
  }
  (path / "config.json").write_text(json.dumps(content))
  steps = range(100, 100 * len(returns) + 1, 100) if steps is None else steps
  lines = cases.lines_of(steps, returns)
  (path / "metrics.jsonl").write_text(
    "".join(json.dumps(line) + "\n" for line in lines)
  )
  return str(path)


def constant_curve(value, first=0.0, last=10.0):
  return np.array([[first, value], [last, value]])


# Statistics


def test_the_mean_is_over_the_middle_half():
  for values, expected in (
    ((3.0, 1.0, 1000.0, 5.0), 4.0),
    ((1, 2, 3, 4, 6, 7, 8, 1e6), 5.0),
    # A quarter of three curves is less than one, so none is left out.
    ((1.0, 2.0, 9.0), 4.0),
  ):
    curves = [constant_curve(value) for value in values]
    mean, _, _ = statistics.iqm(curves, np.array([5.0]))
    assert mean.tolist() == [expected]


def test_the_mean_begins_with_the_first_curve_and_keeps_last_values():
  curves = [
    np.array([[0, 0.0], [10, 10.0], [20, 20.0]]),
    np.array([[10, 4.0], [20, 4.0]]),
    np.array([[0, 0.0], [10, 30.0]]),
  ]
  mean, low, high = statistics.iqm(curves, np.array([-1.0, 0, 5, 10, 15, 20]))
  np.testing.assert_allclose(
    mean, [np.nan, 4 / 3, (5 + 4 + 15) / 3, 44 / 3, (15 + 4 + 30) / 3, 18]
  )
  # 1 in 27 resamples (more than 2.5%) draws the lowest curve three times, and
  # as many draw the highest one three times.
  np.testing.assert_allclose(low, [np.nan, 0, 4, 4, 4, 4])
  np.testing.assert_allclose(high, [np.nan, 4, 15, 30, 30, 30])


def test_a_curve_leaves_out_lines_before_the_first_episode():
  lines = cases.lines_of([10, 20, 30], [None, 2.0, 3.0])
  assert plot.curve(lines, "env_steps").tolist() == [[20, 2], [30, 3]]
  assert plot.curve(lines, "wall_seconds").tolist() == [[2, 2], [3, 3]]
  assert plot.curve(lines[:1], "env_steps").shape == (0, 2)


# Runs


def test_a_run_is_read(tmp_path):
  make_run(tmp_path, (None, 2.0), seed=3, num_envs=4, unlabelled=["role"])
  run = run_groups.read(tmp_path)
  assert (run.experiment, run.env, run.seed) == ("ppo", "CartPole-v1", 3)
  assert run.options["num_envs"] == 4
  assert run.lines == cases.lines_of([100, 200], [None, 2.0])
  assert records.read(tmp_path) == records.Record(
    experiment="ppo",
    pipeline="seedx.pipelines.sync:Config",
    agent="seedx.agents.ppo:Config",
    seedx="0.2.0",
    format=records.FORMAT,
    options=run.options,
    unlabelled=["role"],
  )


def test_values_without_a_json_form_are_converted(tmp_path):
  options = {"rate": np.float32(0.5), "sizes": np.arange(2), "path": tmp_path}
  made = records.Record(
    "ppo", "a:Config", "b:Config", "0.2.0", records.FORMAT, options
  )
  records.write(tmp_path, made)
  assert records.read(tmp_path).options == {
    **{"rate": 0.5, "sizes": [0, 1], "path": str(tmp_path)}
  }


@pytest.mark.parametrize(
  ("experiment", "name"),
  [("experiments.mine:EXPERIMENT", "mine"), (None, "sync_ppo")],
)
def test_a_run_is_named_after_its_experiment_or_its_classes(
  experiment, name, tmp_path
):
  make_run(tmp_path, experiment=experiment)
  saved = records.read(tmp_path)
  assert (saved.experiment, saved.name) == (experiment, name)


def labels_of(tmp_path, *asked):
  paths = [make_run(tmp_path / str(i), **x) for i, x in enumerate(asked)]
  return run_groups.labels([run_groups.read(path) for path in paths])


def test_a_label_has_the_options_that_differ_in_an_experiment(tmp_path):
  impala = {"experiment": "impala", "learning_rate": 1e-3}
  assert labels_of(
    tmp_path,
    impala | {"agent": "a2c"},
    impala | {"agent": "vtrace"},
    impala | {"agent": "a2c", "seed": 1},
    {"experiment": "dqn", "learning_rate": 5e-4, "agent": ""},
  ) == [
    "impala --agent a2c",
    "impala --agent vtrace",
    "impala --agent a2c",
    "dqn",
  ]


def test_options_in_a_label_are_written_as_on_a_command_line(tmp_path):
  first = {
    "learning_rate": 2e-3,
    "hidden_sizes": [64, 64],
    "env_options": {"a": 1, "b": "x y"},
    "info_keys": ["a", "b"],
    "dueling": True,
  }
  second = {
    "dueling": False,
    "env_options": {},
    "hidden_sizes": [8],
    "info_keys": [],
  }
  assert labels_of(tmp_path, first, second) == [
    "ppo --dueling --env-options 'a=1,b=x y' --hidden-sizes 64,64"
    " --info-keys a,b --learning-rate 0.002",
    "ppo --no-dueling --env-options '' --hidden-sizes 8 --info-keys ''",
  ]


def test_seed_role_and_address_do_not_separate_groups(tmp_path):
  asked = [
    {"seed": 0, "role": "all"},
    {"seed": 1, "role": "learner"},
    {"seed": 2, "address": "a:1"},
  ]
  own = {"unlabelled": ["role", "address"]}
  assert labels_of(tmp_path, *(x | own for x in asked)) == ["ppo"] * 3


def test_presets_of_environments_do_not_separate_groups(tmp_path):
  cart, pong = {"env": "CartPole-v1", "epochs": 8}, {"env": "Pong-v5"}
  assert labels_of(tmp_path, cart, pong | {"epochs": 4}) == ["ppo", "ppo"]
  # An option that differs in one environment is in the labels of all runs.
  labels = labels_of(tmp_path, cart, pong | {"epochs": 4}, pong | {"epochs": 8})
  assert labels == ["ppo --epochs 8", "ppo --epochs 4", "ppo --epochs 8"]


def test_modules_with_the_same_name_have_different_labels(tmp_path):
  names = ("ppo", "mine.ppo:EXPERIMENT", "mine.dqn:EXPERIMENT")
  asked = [{"experiment": name} for name in names]
  assert labels_of(tmp_path, *asked) == ["ppo", "mine.ppo", "dqn"]


# Pictures


@pytest.fixture
def drawn(monkeypatch):
  """Collects the figures that are made in a test."""
  figures = []

  class Figure(figure.Figure):
    def __init__(self, *args, **kwargs):
      super().__init__(*args, **kwargs)
      figures.append(self)

  monkeypatch.setattr(figure, "Figure", Figure)
  return figures


def plotted(tmp_path, words, name="plot.png"):
  path = tmp_path / name
  assert plot.main([*words, "--output", str(path)]) == 0
  return path


def check_texts(picture, monkeypatch):
  """Checks that no text is clipped or overlaps another."""
  boxes = {}
  draw = text.Text.draw

  def record(self, renderer, *args, **kwargs):
    if self.get_visible() and self.get_text().strip():
      boxes[self] = self.get_window_extent(renderer)
    draw(self, renderer, *args, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(text.Text, "draw", record)
    picture.draw_without_rendering()
  assert len(boxes) > 8
  for (one, box), (other, other_box) in itertools.combinations(
    boxes.items(), 2
  ):
    assert not box.overlaps(other_box), (one, other)
  for one, box in boxes.items():
    assert box.x0 >= 0 and box.x1 <= picture.bbox.width, one
    assert box.y0 >= 0 and box.y1 <= picture.bbox.height, one
    # Text must be legible at half size: at least 7 points there.
    assert one.get_fontsize() >= 14


def test_both_panels_have_the_mean_and_the_interval(tmp_path, drawn):
  words = [
    make_run(tmp_path / str(seed), (1.0 * end, end), seed=seed)
    for seed, end in enumerate((2.0, 4.0, 6.0, 600.0))
  ]
  plotted(tmp_path, words)
  against_steps, against_time = drawn[0].axes
  for axes, end in ((against_steps, 200.0), (against_time, 20.0)):
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_xydata()[-1], [end, 5.0])
    # The first return comes halfway, and the line begins there.
    assert end / 2 <= line.get_xdata()[0] < end / 2 * 1.02
    band, seeds = axes.collections
    assert len(seeds.get_segments()) == 4
    low, high = band.get_datalim(axes.transData).intervaly
    assert 2.0 <= low < 5.0 < high <= 600.0
  assert against_steps.get_xlabel() == "env steps"
  assert against_time.get_xlabel() == "wall time (seconds)"
  assert against_steps.get_title(loc="left") == "CartPole-v1"


def test_a_run_without_env_steps_is_drawn_against_updates(tmp_path, drawn):
  lines = [
    {"learner_steps": k, "wall_seconds": k, "evaluation_return": 2.0 * k}
    for k in (1, 2)
  ]
  panels = {"CartPole-v1": {"offline": [lines]}}
  plot.draw(panels, tmp_path / "a.png", "evaluation_return")
  against_updates, _ = drawn[0].axes
  assert against_updates.get_xlabel() == "updates"
  (line,) = against_updates.lines
  np.testing.assert_allclose(line.get_xydata()[-1], [2.0, 4.0])


def test_a_single_run_has_no_band_and_may_have_a_single_point(tmp_path, drawn):
  plotted(tmp_path, [make_run(tmp_path / "a", (None, 7.0))])
  for axes in drawn[0].axes:
    (line,) = axes.lines
    assert not axes.collections
    assert line.get_ydata().tolist() == [7.0]
    assert axes.get_xlim()[0] < line.get_xdata()[0] < axes.get_xlim()[1]


def test_a_mean_over_steps_ends_with_the_shortest_run_but_not_over_time(
  tmp_path, drawn, capsys
):
  words = [
    make_run(tmp_path / "a", (2.0, 4.0), steps=(600, 1200)),
    make_run(tmp_path / "b", (6.0, 8.0), steps=(600, 2400), seed=1),
  ]
  plotted(tmp_path, words)
  against_steps, against_time = drawn[0].axes
  assert against_time.get_xlabel() == "wall time (minutes)"
  # Over time, the shorter run keeps its last value.
  ends = (
    (against_steps, 1200.0, (4 + 6 + 2 / 3) / 2, 2400.0),
    (against_time, 4.0, 6.0, 4.0),
  )
  for axes, end, value, longest in ends:
    last = axes.lines[0].get_xydata()[-1]
    np.testing.assert_allclose(last, [end, value])
    # The longer run is visible to its end.
    assert longest < axes.get_xlim()[1] < 1.1 * longest
    (seeds,) = (x for x in axes.collections if hasattr(x, "get_segments"))
    assert max(x[-1, 0] for x in seeds.get_segments()) == longest
  output = capsys.readouterr().out
  assert (
    "seed 0 of ppo ended after 1,200 of 2,400 env steps; the mean" in output
  )
  assert "seed 1" not in output


def test_each_environment_has_a_row_and_each_group_a_colour(tmp_path, drawn):
  words = [
    make_run(
      tmp_path / f"{env}-{name}", env=env, experiment=f"x.{name}:EXPERIMENT"
    )
    for env, name in (("A-v1", "ppo"), ("A-v1", "dqn"), ("B-v1", "dqn"))
  ]
  plotted(tmp_path, words)
  (picture,) = drawn
  titles = [axes.get_title(loc="left") for axes in picture.axes]
  assert titles == ["A-v1", "", "B-v1", ""]
  above, _, below, _ = picture.axes
  ppo, dqn = above.lines
  (dqn_below,) = below.lines
  assert ppo.get_color() != dqn.get_color() == dqn_below.get_color()
  # The panels of a row share their scale of returns.
  shared = above.get_shared_y_axes()
  assert shared.joined(*picture.axes[:2]) and not shared.joined(above, below)
  (legend,) = picture.legends
  assert [x.get_text() for x in legend.get_texts()] == ["ppo", "dqn"]


def test_runs_of_very_different_length_have_a_logarithmic_axis(tmp_path, drawn):
  steps = np.linspace(100, 30_000, 50).astype(int).tolist()
  words = [
    make_run(tmp_path / "a", (1.0, 5.0), experiment="x.a", steps=(100, 1000)),
    make_run(tmp_path / "b", [2.0] * 50, experiment="x.b", steps=steps),
  ]
  plotted(tmp_path, words)
  for axes in drawn[0].axes:
    assert axes.get_xscale() == "log"
    short = axes.lines[0].get_xydata()
    # Each line may have 200 points; the short run's line has most of them.
    assert len(short) > 150
    assert axes.get_xlim()[0] < short[0, 0]


def test_long_labels_and_names_are_not_clipped_and_do_not_overlap(
  tmp_path, drawn, monkeypatch
):
  words = [
    make_run(
      tmp_path / str(i),
      (0.0, 2_500_000.0 * i),
      env=f"Environment-v{i % 2} " + r"with a $\long$_name " * 5,
      observation_transform=f"of_mine.{'transforms.' * i}:hide_$velocities_$x",
      env_options={f"option_{j}": i for j in range(5)},
    )
    for i in range(9)
  ]
  plotted(tmp_path, words)
  check_texts(drawn[0], monkeypatch)


def test_a_label_by_a_stranger_is_cut_and_cannot_control_the_terminal(
  tmp_path, drawn, monkeypatch, capsys
):
  options = {"env": "a" * 4096, "steps": [10, 90]}
  words = [
    make_run(
      tmp_path / str(i),
      seed=seed,
      env_options={"a": f"{env_option}\x1b[2J\n" + "b" * 9000},
      **options | more,
    )
    for i, (seed, env_option, more) in enumerate(
      [(0, "x", {}), (0, "y", {}), (1, "x", {"steps": [10, 20]})]
    )
  ]
  plotted(tmp_path, words)
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 2 and "ended after 20 of 90 env steps" in lines[0]
  assert all(x.isprintable() and len(x) < 1000 for x in lines)
  check_texts(drawn[0], monkeypatch)
  (legend,) = drawn[0].legends
  for shown in legend.get_texts():
    assert all(x.isprintable() for x in shown.get_text().splitlines())


def test_runs_without_episodes_are_marked_in_the_legend(tmp_path, drawn):
  words = [
    make_run(tmp_path / "a", (1.0, 2.0)),
    make_run(tmp_path / "b", (None, None), experiment="x.dqn"),
    make_run(tmp_path / "c", (None, None), env="B-v1"),
  ]
  plotted(tmp_path, words)
  (legend,) = drawn[0].legends
  assert [x.get_text() for x in legend.get_texts()] == [
    "ppo",
    "dqn (no episode has ended)",
  ]
  assert [len(axes.lines) for axes in drawn[0].axes] == [1, 1, 0, 0]


def test_another_metric_can_be_drawn_against_env_steps_alone(tmp_path, drawn):
  """Runs that lack the metric are marked in the legend."""
  words = [
    make_run(tmp_path / "a"),
    make_run(tmp_path / "b", experiment="x.dqn"),
  ]
  path = tmp_path / "a" / "metrics.jsonl"
  path.write_text(path.read_text().replace("}", ', "entropy": 3.0}'))
  plotted(tmp_path, [*words, "--metric", "entropy", "--x", "env_steps"])
  (axes,) = drawn[0].axes
  assert axes.get_ylabel() == "entropy"
  assert axes.lines[0].get_ydata()[-1] == 3.0
  (legend,) = drawn[0].legends
  labels = [x.get_text() for x in legend.get_texts()]
  assert labels == ["ppo", "dqn (no entropy)"]


def test_the_legend_has_the_number_of_seeds_and_a_title(tmp_path, drawn):
  words = [make_run(tmp_path / str(seed), seed=seed) for seed in range(3)]
  words.append(make_run(tmp_path / "other", experiment="x.dqn"))
  plotted(tmp_path, words)
  (legend,) = drawn[0].legends
  labels = [x.get_text() for x in legend.get_texts()]
  assert labels == ["ppo (3 seeds)", "dqn"]
  assert "interquartile mean" in legend.get_title().get_text()
  plotted(tmp_path, words[-1:])
  assert not drawn[1].legends[0].get_title().get_text()


def test_scores_are_over_all_environments(tmp_path, drawn):
  ends = {
    ("A-v1", "ppo"): (10.0, 12.0),
    ("A-v1", "dqn"): (5.0, 7.0),
    ("B-v1", "ppo"): (-100.0, -100.0),
    ("B-v1", "dqn"): (-300.0, -300.0),
  }
  words = [
    make_run(
      tmp_path / f"{env}-{name}-{seed}",
      (1.0 if env == "A-v1" else -500.0, end),
      env=env,
      experiment=f"x.{name}",
      seed=seed,
    )
    for (env, name), of_seeds in ends.items()
    for seed, end in enumerate(of_seeds)
  ]
  plotted(tmp_path, [*words, "--scores"])
  (axes,) = drawn[0].axes
  ppo, dqn = (bar.get_width() for bar in axes.patches)
  # A score is (return - first) / (best - first). best - first is 11 - 1 in A
  # and 400 in B. The mean is over the middle two of four scores.
  assert ppo == pytest.approx(1.0)
  assert dqn == pytest.approx((0.5 + 0.5) / 2)


def test_an_interval_over_environments_resamples_within_each_environment():
  runs = np.array([0.0, 0.5, 1.0])
  _, *alike = statistics.pooled([runs] * 6)
  _, *permuted = statistics.pooled([np.roll(runs, k) for k in range(6)])
  assert alike == pytest.approx(permuted, abs=0.05)
  assert 0.1 < alike[0] < 0.5 < alike[1] < 0.9


# The program


@pytest.mark.slow
def test_plotting_needs_neither_jax_nor_a_display(tmp_path):
  words = [make_run(tmp_path / str(seed), seed=seed) for seed in range(2)]
  path = tmp_path / "figure.svg"
  # Options may come between the directories.
  words = [words[0], "--output", str(path), words[1]]
  removed = ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
  blocked = "import sys; sys.modules['jax'] = None; from seedx.app import plot"
  done = subprocess.run(
    [sys.executable, "-c", f"{blocked}; plot.main({words!r})"],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={k: v for k, v in os.environ.items() if k not in removed},
  )
  assert (done.returncode, done.stderr) == (0, "")
  assert str(path) in done.stdout and "2 run" in done.stdout
  assert "<svg" in path.read_text()


def test_the_suffix_sets_the_format(tmp_path):
  path = plotted(tmp_path, [make_run(tmp_path / "run")], "a.PDF")
  assert path.read_bytes().startswith(b"%PDF")


def errors(tmp_path):
  """Yields command lines, each with a part of its error."""
  good = make_run(tmp_path / "good")
  none = make_run(tmp_path / "none", (None, None))
  unfinished = make_run(tmp_path / "unfinished")
  (tmp_path / "unfinished" / "metrics.jsonl").unlink()
  newer = '{"format": 99, "seedx": "9.1", "experiment": "x"}'
  bare = {"experiment": "x", "seedx": "9", "format": records.FORMAT}
  bare = json.dumps({**bare, "options": {}})
  files = [
    ("config.json", newer, "format 99, which seedx 9.1 wrote"),
    ("config.json", '{"seed": 0}', "'experiment', which another program"),
    ("config.json", bare, "without 'pipeline', 'agent', which seedx 9"),
    ("config.json", "{", "cannot read config.json in"),
    ("config.json", "[" * 10**5, "cannot read config.json in"),
    ("config.json", bare.replace("x", "\\ud800"), "cannot read config.json in"),
    (
      "metrics.jsonl",
      '{"env_steps": true, "wall_seconds": 1}\n',
      "metrics without 'env_steps'",
    ),
    ("metrics.jsonl", "1\n[]\n", "found none yet"),
    (
      "metrics.jsonl",
      '{"env_steps": 1, "wall_seconds": 1}\n',
      "without 'episode_return'",
    ),
  ]
  for number, (name, content, reason) in enumerate(files):
    word = make_run(tmp_path / str(number))
    (tmp_path / str(number) / name).write_text(content)
    yield [word], reason
  values = {
    "env of at most 4,096 elements or printable characters": {
      "env": "A" * 5000
    },
    "hidden_sizes of at most 4,096 elements or": {"hidden_sizes": [8] * 5000},
    "characters, found 5: 'a\\x1b[2J'": {"env": "a\x1b[2J"},
    "more than 1,048,576": {"env_options": {"a": "A" * 2**20}},
  }
  for number, (reason, options) in enumerate(values.items()):
    yield [make_run(tmp_path / f"value{number}", **options)], reason
  yield [], "expected RUN_DIR"
  yield [good, str(tmp_path / "x")], f"no config.json in '{tmp_path}/x'"
  yield [f"{good}/config.json"], "expected the directory of a run"
  yield [unfinished], "found none yet"
  yield [none, none], "found none (no episode has ended)"
  yield [good, "--output", "a.gif"], ".png, .svg, .pdf, found 'a.gif'"
  yield [good, "--output", f"{good}/x/a.png"], "cannot write"
  yield [good, "--metric", "entropie"], "a metric among env_steps"
  yield [good, "--x", "seconds"], "env_steps,wall_seconds, found 'seconds'"
  yield [good, "--scores", "--metric", "x"], "found --metric x"


def test_wrong_options_of_plot_exit_with_2_and_one_line(
  tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  for words, reason in errors(tmp_path):
    with pytest.raises(SystemExit) as caught:
      plot.main(words)
    assert caught.value.code == 2, words
    out, err = capsys.readouterr()
    assert out == "", words
    assert err.startswith("error: ") and err.count("\n") == 1, words
    assert reason in err, words
  assert not list(tmp_path.glob("*.gif"))


def test_a_run_without_lines_is_drawn(tmp_path):
  picture = tmp_path / "curve.png"
  plot.draw({"title": {"ppo": [[]]}}, picture)
  assert picture.read_bytes().startswith(b"\x89PNG")


def test_no_two_groups_look_the_same():
  looks = [
    tuple(
      str(drawing._style(i)[key]) for key in ("color", "linestyle", "marker")
    )
    for i in range(210)
  ]
  assert len(set(looks)) == 210
  # The first 30 looks also differ in grey.
  assert len({look[1:] for look in looks[:30]}) == 30


def test_long_times_have_a_larger_unit():
  for seconds, size, unit in (
    (119.0, 1, "seconds"),
    (120.0, 60, "minutes"),
    (7199.0, 60, "minutes"),
    (7200.0, 3600, "hours"),
    (172800.0, 86400, "days"),
  ):
    assert drawing._time_unit(seconds) == (size, unit)


def test_a_dark_picture_inverts_the_page_and_keeps_hues():
  page, ink, blue, band = dark.turned(
    np.array([[1.0] * 3, [0.0] * 3, [0.0, 0.45, 0.7], [0.8, 0.89, 0.94]])
  )
  np.testing.assert_allclose(page, 0.07)
  np.testing.assert_allclose(ink, 0.93)
  assert blue[2] > blue[1] > blue[0] and blue.mean() > 0.5
  assert band[2] > band[0] and band.mean() < 0.3


def test_the_runs_of_a_sweep_are_plotted_by_its_directory(tmp_path, capfd):
  """A sweep and a comparison have a config.json of their own."""
  study = tmp_path / "study"
  for name in ("default/0", "trials/000", "trials/001"):
    run = make_run(study / name)
  (study / "config.json").write_text('{"total_steps": 100}')
  (study / "sweep.md").touch()
  (study / "linked").symlink_to(study / "trials")
  output = ["--output", str(tmp_path / "plot.svg")]
  # The last run is given twice.
  assert plot.main([str(study), f"{run}/../001", *output]) == 0
  assert "plotted 3 run(s)" in capfd.readouterr().out
  with pytest.raises(SystemExit):
    plot.main([str(tmp_path), "nowhere", *output])
  assert "nowhere'; an experiment prints" in capfd.readouterr().err


@pytest.mark.parametrize("has_config", [False, True])
def test_a_directory_of_runs_is_not_one_run(has_config, tmp_path, capfd):
  make_run(tmp_path / "b" / "0")
  first = make_run(tmp_path / "a" / "0")
  if has_config:
    (tmp_path / "config.json").write_text('{"total_steps": 100}')
  with pytest.raises(SystemExit):
    evaluate.main([str(tmp_path)])
  err = capfd.readouterr().err
  assert "with 2 runs in it; choose one, such as" in err and first in err
