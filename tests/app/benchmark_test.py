"""The benchmark: its arithmetic, its table, and one run of all of it."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import accelerator
from seedx import types
from seedx.app.benchmark import (
  alone,
  components,
  figures,
  main,
  matrix_products,
  own_work,
  runs,
  work_sizes,
)
from seedx.app.studies import compare

SIZES = work_sizes.Sizes(
  pools=2,
  pool_envs=100,
  pool_threads=1,
  slots=200,
  rows=100,
  period=20,
  unrolls=100,
  message_steps=100,
  elsewhere=("environments",),
)
# 10 us of CPU per env step, 2 of them elsewhere; products are 1 of learning.
WORK = own_work.OwnWork(SIZES, 400e3, 2e-6, 3e-6, 5e-6, 1e-6)
SMALL = "--hidden-sizes 8 --unroll-length 4"
SEED = f"seed_vtrace --num-actors 2 --envs-per-actor 8 {SMALL}"


def by_name(figures):
  assert len({(x.figure, x.unit) for x in figures}) == len(figures)
  return {(x.figure, x.unit): x.value for x in figures}


def test_the_bound_is_what_all_cores_can_do():
  assert WORK.total == pytest.approx(10e-6)
  assert WORK.bound(2) == pytest.approx(200e3)
  found = by_name(runs.of_work("seed", WORK, cores=2))
  assert found["bound", "env steps/s"] == pytest.approx(200e3)
  assert found["learning", "CPU us/env step"] == pytest.approx(5)
  share = found["learning at the speed of a matrix product", ""]
  assert share == pytest.approx(0.2)


def test_a_run_is_divided_into_work_and_what_is_beside_it():
  replies = {"reply_seconds_p50": 0.002, "reply_seconds_p99": 0.005}
  usage = runs.Usage(50e3, learner=1.0, others=0.5, metrics=replies)
  found = by_name(runs.of_run("seed", WORK, usage, cores=2))
  assert found == {
    ("run", "env steps/s"): 50e3,
    ("run over bound", ""): pytest.approx(0.25),
    ("run over environments alone", ""): pytest.approx(0.125),
    ("idle share of the cores", ""): pytest.approx(0.25),
    # Of 20 us, 8 are acting and learning.
    ("learner beside work", "CPU us/env step"): pytest.approx(12),
    ("other processes beside work", "CPU us/env step"): pytest.approx(8),
    ("learner beside work", "CPU ms/message"): pytest.approx(1.2),
    ("other processes beside work", "CPU ms/message"): pytest.approx(0.8),
    ("all processes beside work", "CPU ms/message"): pytest.approx(2.0),
    ("reply, median", "s"): 0.002,
    ("reply, 99th percentile", "s"): 0.005,
    ("reply, p99 over median", ""): pytest.approx(2.5),
  }


def test_medians_are_over_repetitions_and_lines_have_all_values():
  found = [
    figures.Figure(of, "run", "env steps/s", value)
    for of, value in [("b", 1), ("a", 1500), ("b", 9), ("b", 2), ("a", 500)]
  ]
  lines = [json.loads(x) for x in figures.json_lines(found).splitlines()]
  common = {"figure": "run", "unit": "env steps/s"}
  assert lines == [
    {"of": "b", **common, "value": 2, "values": [1, 9, 2]},
    {"of": "a", **common, "value": 1000, "values": [1500, 500]},
  ]
  rows = [x for x in figures.table(found).splitlines() if "run" in x]
  assert rows == ["| run | 1,000 | env steps/s |", "| run | 2 | env steps/s |"]


def test_made_up_experience_has_something_to_learn_from():
  config = work_sizes.config_of(f"impala {SMALL}", "CartPole-v1")
  sizes = work_sizes.Sizes.of(config)
  assert sizes.message_steps == config.actors.envs_per_actor * 4
  assert sizes.elsewhere == ("environments", "acting")
  cost, updates = alone.learning(config, sizes, 0.01)
  assert cost > 0
  # Unlike a replay, each update learns from new env steps.
  assert updates == pytest.approx(1 / (sizes.unrolls * sizes.period))


@pytest.mark.parametrize(
  ("words", "message_steps", "elsewhere"),
  [
    ("ppo", 0, ()),
    ("a3c --envs-per-worker 3 --unroll-length 5", 0, ()),
    (
      "gorila_dqn --envs-per-worker 3 --unroll-length 5",
      15,
      ("environments", "acting", "learning"),
    ),
    (
      "seed_vtrace --envs-per-actor 8 --actor-batch-size 4",
      4,
      ("environments",),
    ),
  ],
)
def test_who_does_what(words, message_steps, elsewhere):
  sizes = work_sizes.Sizes.of(work_sizes.config_of(words, "CartPole-v1"))
  assert sizes.message_steps == message_steps
  assert sizes.elsewhere == elsewhere


def test_seed_acts_for_half_of_what_its_actors_send():
  sizes = work_sizes.Sizes.of(work_sizes.config_of(SEED, "CartPole-v1"))
  found = sizes.slots, sizes.rows, sizes.pools, sizes.pool_envs
  assert found == (16, 8, 2, 8)


def test_operations_of_products_and_convolutions_are_counted_by_hand():
  def program(x, y, image, kernel):
    def body(carry, _):
      return carry @ y, ()

    carry, _ = jax.lax.scan(body, x, length=7)
    convolved = jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID")
    either = jax.lax.cond(x[0, 0] > 0, lambda: x @ y @ y, lambda: x)
    return carry, convolved, jax.jit(lambda: jax.vmap(jnp.dot)(x, x))(), either

  shapes = (3, 4), (4, 4), (2, 5, 8, 8), (6, 5, 3, 3)
  jaxpr = jax.make_jaxpr(program)(*map(jnp.ones, shapes)).jaxpr
  product, own = 2 * 3 * 4 * 4, 2 * 3 * 4
  convolution = 2 * (2 * 6 * 6 * 6) * (5 * 3 * 3)
  assert matrix_products.operations(jaxpr) == 9 * product + convolution + own


def test_an_environment_of_an_experiments_own_options_holds():
  words = "impala --env Acrobot-v1"
  assert work_sizes.config_of(words, "CartPole-v1").env.env == "Acrobot-v1"


@pytest.mark.parametrize(
  "words", [words for words, _ in (*accelerator.RUNS, *accelerator.MORE_RUNS)]
)
def test_what_is_measured_on_an_accelerator_can_be_run(words):
  work_sizes.config_of(words, "")


def test_usage_is_of_the_later_half_of_a_run(monkeypatch):
  lines = [
    {
      **{"wall_seconds": x, "learner_steps": x > 2, "steps_per_second": x},
      **{"episode_return": 10 * x, "inference_rows": None},
    }
    for x in range(9)
  ]
  # Of the learner, of one process from the start, and of one that comes late.
  cpu = iter([{7: 1.0, 8: 1.0}, {7: 2.0, 8: 1.0}, {7: 5.0, 8: 2.0, 9: 1.0}])
  clock = iter([100.0, 101.0, 102.0])
  monkeypatch.setattr(runs, "cpu_seconds", lambda pid: next(cpu))
  monkeypatch.setattr(runs.time, "monotonic", lambda: next(clock))
  watch = runs._Watch(after_seconds=3)
  for end in (2, 6, 7, 7, 8, 9):  # A line may be seen twice.
    watch(7, lines[:end])
  assert watch.usage(lines) == runs.Usage(
    7, learner=2.0, others=1.0, metrics={"episode_return": 70}
  )
  with pytest.raises(types.ConfigError, match="more --seconds help"):
    runs._Watch(after_seconds=3).usage([])


def test_a_list_of_numbers_stays_with_its_experiment():
  asked = "impala", "ppo --learner-devices 0", "1", "3 --num-envs 6", "a2c"
  assert compare.experiments_of(asked) == (
    "impala",
    "ppo --learner-devices 0,1,3 --num-envs 6",
    "a2c",
  )


@pytest.mark.parametrize("words", ["", "0,impala", "ppo,a2c --epochs 3"])
def test_what_is_no_experiment_is_one_line(words, capsys):
  with pytest.raises(SystemExit) as caught:
    main.main(["--experiments", words])
  assert caught.value.code == 2
  assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.long
def test_all_figures_are_there_and_fit_together(tmp_path, capsys):
  output = tmp_path / "found.jsonl"
  wrong = "impala --learner-devices 99"  # Its failure does not end the others.
  words = ["--experiments", f"{wrong},{SEED}", "--output", str(output)]
  words = ["--quick", *words, "--seconds", "4", "--streams", "3,5"]
  assert main.main(words) == 1
  first, *lines = [json.loads(x) for x in output.read_text().splitlines()]
  assert first["machine"]["devices"].endswith("CPU")
  assert all(np.isfinite(x["value"]) for x in lines)
  found = {x["figure"]: x["value"] for x in lines if x["of"] == SEED}
  may_be_negative = ("beside work", "idle share")
  for name, value in found.items():
    assert value > 0 or any(x in name for x in may_be_negative), name
  parts = sum(found[x] for x in ("environments", "acting", "learning"))
  cores = len(os.sched_getaffinity(0))
  assert found["bound"] == pytest.approx(1e6 * cores / parts)
  assert found["run over bound"] == pytest.approx(found["run"] / found["bound"])
  assert found["run over bound"] < 1.2
  for number in (3, 5):
    of = f"wire, {number} streams"
    streams = {x["figure"] for x in lines if x["of"] == of}
    assert streams == {"to connect all", "replies"}
  said = capsys.readouterr()
  assert f"**{SEED}**" in said.out and "99" in said.err


@pytest.mark.parametrize(
  "words",
  [
    pytest.param(f"a2c {SMALL}", marks=pytest.mark.slow),
    *(
      pytest.param(f"{name} {SMALL}", marks=pytest.mark.long)
      for name in ("a3c", "apex_dqn", "gorila_dqn")
    ),
  ],
)
def test_own_work_of_other_pipelines(words):
  work = own_work.measure(words, "CartPole-v1", 0.5, lambda said: None)
  costs = work.environments, work.acting, work.learning
  assert 0 < work.products < 2 * work.learning
  assert all(0 < x < 1e-2 for x in costs)
  assert work.alone_per_second > 1000


@pytest.mark.slow
def test_components_have_a_cost():
  wire = components.wire_alone(0.5)
  assert len({of for of, _ in wire}) == 2
  replay = components.replay_alone(0.5)
  for (of, figure), seconds in {**wire, **replay}.items():
    assert 0 < seconds < 1, (of, figure)
