"""Learner hosts: what they exchange and learn, and how they end."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from seedx import metrics, replay, signals, types
from seedx.app import training
from seedx.learning import experience, learner
from seedx.runtime import clocks as wall_clock
from seedx.runtime import host_links, hosts, process, seeding
from tests import host_updates, programs, running
from tests.learning import cases

ROOT = pathlib.Path(__file__).parents[2]
# The options of a small run, which lasts as long as a test needs.
_SMALL = {
  "seed_vtrace": ["--num-actors", "1", "--envs-per-actor", "32"],
  "pool_vtrace": ["--num-actors", "2", "--envs-per-actor", "16"],
  # PPO's updates make many exchanges, which are slow on busy cores.
  "ppo": ["--num-envs", "32", "--epochs", "1", "--minibatches", "2"],
}


def two(total_steps=100):
  """Makes two hosts that exchange their counts without devices."""
  all_hosts = [hosts.Hosts(index, 2) for index in range(2)]
  acted = [host.acted(4, total_steps) for host in all_hosts]
  return all_hosts, acted


def test_all_hosts_have_the_time_of_the_first_host(monkeypatch):
  state = []
  monkeypatch.setattr(
    host_links, "broadcast", lambda sent: (state.append(sent), state[0])[1]
  )
  clocks = []
  for index, age in enumerate((1000, 500)):
    clock = wall_clock.WallClock(time.monotonic() - age)
    context = process.Context(hosts=hosts.Hosts(index, 2), wall_clock=clock)
    acted = context.hosts.acted(1, 100, context.wall_clock)
    made = process.Process(acted, {"acted": acted}, lambda saved: saved, [])
    training._share_state(made, context.hosts)
    clocks.append(acted.wall_clock)
  assert 0 < clocks[0].wall_seconds - clocks[1].wall_seconds < 100


def exchange(all_hosts, batches=(True, True)):
  """Sums the reports of hosts, as an update does."""
  reports = [x.report(has) for x, has in zip(all_hosts, batches, strict=True)]
  sums = hosts.Report(*(sum(parts) for parts in zip(*reports, strict=True)))
  for host in all_hosts:
    host.add_reports(sums)
  return [host.has_batch for host in all_hosts]


def test_counts_and_entries_of_info_are_summed_over_all_hosts():
  all_hosts = [hosts.Hosts(index, 2) for index in range(2)]
  acted = [host.acted(4, 100, log_info=("won", "gold")) for host in all_hosts]
  nan = np.nan
  info = np.array([[1.0, 4.0], [nan, nan], [0.0, nan]])
  acted[0].add(30, np.array([1.0, nan, 3.0]), np.array([5, 0, 7]), info)
  acted[1].add(20, np.array([8.0]), np.array([12]), np.array([[1.0, nan]]))
  acted[1].add_discarded(2)
  # Nothing is counted before the exchange.
  assert [x.env_steps for x in acted] == [0, 0]
  assert exchange(all_hosts) == [True, True]
  # A second exchange does not count the same experience again.
  exchange(all_hosts)
  for each in acted:
    line = each.measure()
    assert (line["env_steps"], line["env_frames"]) == (50, 200)
    assert (line["episodes"], line["episode_return"]) == (3, 4.0)
    assert (line["episode_length"], line["unrolls_discarded"]) == (8.0, 2)
    assert each.info["won"].mean() == pytest.approx(2 / 3)
    assert (each.info["gold"].mean(), each.info["gold"].count) == (4.0, 1)


def test_a_mean_return_waits_for_the_environments_of_all_hosts():
  all_hosts, acted = two()
  environments = [each.join(np.array([True])) for each in acted]
  score, length = np.array([3.0]), np.array([1])
  environments[0].add(1, slice(None), score, length)
  exchange(all_hosts)
  # The environment of the other host has ended no episode.
  assert [x.measure()["episode_return"] for x in acted] == [None, None]
  environments[1].add(1, slice(None), score + 2, length)
  exchange(all_hosts)
  assert [x.measure()["episode_return"] for x in acted] == [4.0, 4.0]


def test_all_hosts_end_after_the_update_that_reaches_the_total():
  all_hosts, acted = two(total_steps=100)
  acted[1].add(99, np.zeros(0), np.zeros(0))
  exchange(all_hosts)
  assert not any(host.over.is_set() for host in all_hosts)
  acted[0].add(1, np.zeros(0), np.zeros(0))
  exchange(all_hosts)
  assert all(host.over.is_set() for host in all_hosts)
  assert [host.status for host in all_hosts] == [0, 0]


@pytest.mark.parametrize(
  ("ending", "failed", "status"),
  [(143, False, 143), (0, True, 1), (130, True, 130)],
)
def test_a_host_that_stops_stops_all_hosts(ending, failed, status):
  all_hosts = hosts.Hosts(0, 2), hosts.Hosts(1, 2, ending=lambda: ending)
  for host in all_hosts:
    host.acted(1, 100)
  all_hosts[1].failed = failed
  exchange(all_hosts)
  assert not all_hosts[0].over.is_set()
  all_hosts[1]._stop.set()
  exchange(all_hosts)
  for host in all_hosts:
    assert host.over.is_set() and host.status == status


@pytest.mark.parametrize("batches", [(True, False), (False, False)])
def test_hosts_without_a_batch_are_counted(batches):
  all_hosts, _ = two()
  assert exchange(all_hosts, batches) == [any(batches)] * 2
  assert all_hosts[0].measure() == {"hosts_starved": batches.count(False)}


def test_hosts_never_share_seeds_even_after_a_resume():
  all_hosts, _ = two()
  seeds = [host.counted(seeding.Seeds(3, host.index)) for host in all_hosts]
  used = [*range(seeds[0].take(10), seeds[0].take(5) + 5)]
  first = seeds[1].take(400)
  used += range(first, first + 400)
  exchange(all_hosts)
  saved = seeds[0].saved()
  for index in range(2):
    again = seeding.Seeds(3, index)
    again.restore(saved)
    first = again.take(100)
    used += range(first, first + 100)
  assert len(used) == len(set(used)) == 615


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"hosts": 0}, "hosts of at least 1|from 1 to"),
    ({"hosts": 2, "host_index": 2, "coordinator": "a:1"}, "from -1 to 1"),
    ({"hosts": 2, "coordinator": "a:1"}, "both a host_index and a coord"),
  ],
)
def test_invalid_options_of_hosts_are_refused(options, message):
  with pytest.raises(types.ConfigError, match=message):
    learner.Config(**options)


def test_a_batch_is_divided_among_all_hosts():
  config = learner.InboxConfig(
    hosts=4, learner_devices=(0, 1), batch_size=64, micro_batches=2
  )
  assert (config.parts, config.share_size) == (16, 8)
  with pytest.raises(types.ConfigError, match="multiple of 16"):
    config.check_divides("batch_size", 40, config.parts)


def test_a_replay_is_divided_evenly():
  whole = replay.PrioritizedConfig(
    replay_capacity=1000, replay_min_steps=100, replay_batch_size=32
  )
  part = whole.divided(4)
  assert isinstance(part, replay.PrioritizedConfig)
  assert part.replay_capacity == 250
  assert part.replay_min_steps == 25
  assert part.replay_batch_size == 8
  assert part.replay_ratio == whole.replay_ratio


def test_hosts_without_a_cluster_need_a_coordinator(monkeypatch):
  def initialize(**options):
    assert "coordinator_address" not in options
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(jax.distributed, "initialize", initialize)
  config, stop = hosts.Config(hosts=2), threading.Event()
  joined = host_links.joined(config, stop, signals.Ending())
  with pytest.raises(
    types.ConfigError, match=r"no cluster.*--coordinator HOST"
  ):
    joined.__enter__()


class Host:
  def __init__(self, folder, index, words, module="tests.host"):
    self.index = index
    self._log = folder / f"host-{index}.txt"
    with self._log.open("w") as log:
      self.process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env={
          **os.environ,
          "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
          "JAX_DISABLE_MOST_OPTIMIZATIONS": "True",
          # Hosts must not connect through this proxy, which does not exist.
          "http_proxy": "http://127.0.0.1:9",
        },
        stdout=log,
        stderr=subprocess.STDOUT,
      )

  def send(self, number):
    self.process.send_signal(number)

  def wait(self):
    try:
      return self.process.wait(600)
    except subprocess.TimeoutExpired:
      raise AssertionError(self.text) from None

  @property
  def text(self):
    return self._log.read_text()

  @property
  def result(self):
    """The JSON that the program prints at its end."""
    lines = [line for line in self.text.splitlines() if line.startswith("{")]
    assert lines, self.text
    return json.loads(lines[-1])


@contextlib.contextmanager
def started(folder, experiment, *words, of_host=lambda index: []):
  """Starts a run's learner hosts, with logs in `folder`; later kills them."""
  coordinator = f"127.0.0.1:{programs.free_port()}"
  words = [experiment, "--hosts", "2", "--coordinator", coordinator, *words]
  words += ["--learner-devices", "0,1", "--host-index"]
  all_hosts = [
    Host(folder, index, [*words, str(index), *of_host(index)])
    for index in range(2)
  ]
  try:
    yield all_hosts
  finally:
    for host in all_hosts:
      host.send(signal.SIGKILL)
      host.wait()


def wait_until(done, all_hosts):
  def failed():
    texts = "\n".join(host.text for host in all_hosts)
    assert all(host.process.poll() is None for host in all_hosts), texts

  running.wait_until(done, failed)


def new(folder, experiment="seed_vtrace", total_steps=10**9):
  words = ["--run-dir", str(folder / "run"), "--log-seconds", "0.1"]
  return [*words, *_SMALL[experiment], "--total-steps", str(total_steps)]


@pytest.mark.slow
def test_a_host_that_stays_alone_ends_with_a_message(tmp_path):
  """JAX itself would crash without a message."""
  coordinator = f"127.0.0.1:{programs.free_port()}"
  words = ["ppo", "--hosts", "2", "--coordinator", coordinator]
  words += ["--host-index", "1", "--meet-seconds", "2"]
  host = Host(tmp_path, 1, [*words, *new(tmp_path, "ppo")])
  try:
    assert host.wait() == 2
  finally:
    host.send(signal.SIGKILL)
  *_, last = host.text.splitlines()
  assert last.startswith("error: 2 learner hosts at 127.0.0.1:")
  assert "--meet-seconds" in last and "Traceback" not in host.text


@pytest.mark.parametrize(
  ("experiment", "resumes"),
  [
    pytest.param("seed_vtrace", False, marks=pytest.mark.slow),
    pytest.param("seed_vtrace", True, marks=pytest.mark.long),
    pytest.param("pool_vtrace", True, marks=pytest.mark.long),
    pytest.param("ppo", True, marks=pytest.mark.long),
  ],
)
def test_hosts_end_and_resume_with_the_same_state(
  tmp_path, experiment, resumes
):
  words = new(tmp_path, experiment)
  with started(tmp_path, experiment, *words) as all_hosts:
    wait_until(lambda: programs.env_steps(tmp_path / "run") > 5_000, all_hosts)
    all_hosts[1].send(signal.SIGTERM)
    assert [host.wait() for host in all_hosts] == [143, 143]
  first = [host.result for host in all_hosts]
  assert first[0] == first[1]
  assert first[0]["updates"] > 5
  if not resumes:
    return
  total = first[0]["env_steps"] + 5_000
  words = ["--resume", str(tmp_path / "run"), "--total-steps", str(total)]
  with started(tmp_path, experiment, *words) as all_hosts:
    assert [host.wait() for host in all_hosts] == [0, 0]
  then = [host.result for host in all_hosts]
  assert then[0] == then[1]
  assert then[0]["updates"] > first[0]["updates"]
  assert total <= then[0]["env_steps"] < total + 20_000
  lines = metrics.read_lines(tmp_path / "run" / "metrics.jsonl")
  steps = [line["env_steps"] for line in lines]
  assert steps == sorted(steps)


@pytest.mark.long
@pytest.mark.parametrize("dies", [0, 1])
def test_a_dead_host_ends_the_others(tmp_path, dies):
  with started(tmp_path, "seed_vtrace", *new(tmp_path)) as all_hosts:
    wait_until(lambda: programs.env_steps(tmp_path / "run") > 10_000, all_hosts)
    all_hosts[dies].send(signal.SIGKILL)
    other = all_hosts[1 - dies]
    assert other.wait() != 0
    # If host 0 dies, JAX ends the other host, whose child process reports why.
    running.wait_until(lambda: "--resume on all hosts continues" in other.text)


@pytest.mark.long
def test_a_host_may_be_silent_for_a_while_but_not_for_good(tmp_path):
  with started(tmp_path, "seed_vtrace", *new(tmp_path)) as all_hosts:
    wait_until(lambda: programs.env_steps(tmp_path / "run") > 10_000, all_hosts)
    all_hosts[1].send(signal.SIGSTOP)
    time.sleep(8)
    all_hosts[1].send(signal.SIGCONT)
    before = programs.env_steps(tmp_path / "run")
    wait_until(
      lambda: programs.env_steps(tmp_path / "run") > before + 10_000, all_hosts
    )
    all_hosts[1].send(signal.SIGSTOP)
    assert all_hosts[0].wait() == 1
  assert "learner host 1 has given no sign" in all_hosts[0].text
  assert "--resume on all hosts continues" in all_hosts[0].text


@pytest.mark.slow
def test_hosts_with_different_options_are_refused(tmp_path):
  def of_host(index):
    return ["--learning-rate", f"0.00{index + 1}"]

  words = new(tmp_path, "ppo")
  with started(tmp_path, "ppo", *words, of_host=of_host) as all_hosts:
    assert all([host.wait() for host in all_hosts])
  text = "".join(host.text for host in all_hosts)
  assert "expected the same learning_rate on all learner hosts" in text


@pytest.fixture(scope="module")
def updated(tmp_path_factory):
  """Returns a folder with the results of two hosts' updates."""
  folder = tmp_path_factory.mktemp("updates")
  coordinator = f"127.0.0.1:{programs.free_port()}"
  all_hosts = [
    Host(folder, i, [str(i), coordinator, str(folder)], "tests.host_updates")
    for i in range(host_updates.HOSTS)
  ]
  statuses = [host.wait() for host in all_hosts]
  assert statuses == [0, 0], all_hosts[0].text + all_hosts[1].text
  return folder


def saved(folder, name, host):
  with np.load(folder / f"{name}-{host}.npz") as arrays:
    return dict(arrays)


def of_one_host(name):
  """Returns the results of one process that learns from all hosts' batches."""
  make, micro_batches, seeds, have = host_updates.CASES[name]
  # PPO's minibatches depend on the number of cores.
  num_cores = 4 if name == "ppo" else 1
  config = learner.InboxConfig(
    unroll_length=cases.LENGTH - 1,
    learner_devices=tuple(range(num_cores)),
    micro_batches=micro_batches,
    batch_size=cases.BATCH,
  )
  source = experience.Once()
  learning = learner.Learner(make(), config, source, cases.KEY)
  for seed in seeds:
    parts = [host_updates.part(seed, host) for host in sorted(have)]
    for batch in source(learning.shares(running.joined(parts))):
      learning.learn(batch)
  learning.finish()
  return host_updates.leaves(learning), learning.measure()


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in host_updates.CASES if x != "idle"])
def test_two_hosts_learn_the_same_as_one(updated, name):
  first, second = (saved(updated, name, host) for host in range(2))
  expected, line = of_one_host(name)
  assert first.keys() == second.keys()
  for key in first:
    np.testing.assert_array_equal(first[key], second[key])
  changed = 0
  for i, leaf in enumerate(expected):
    size = max(float(np.abs(leaf).max()), 1e-3)
    np.testing.assert_allclose(
      first[f"after-{i}"], leaf, rtol=1e-5, atol=1e-5 * size
    )
    changed += np.any(first[f"before-{i}"] != leaf)
  assert changed > 2
  for key in ("learned_steps", "learner_steps"):
    assert first[key] == line[key] > 0


@pytest.mark.slow
def test_an_update_without_any_batch_changes_nothing(updated):
  arrays = saved(updated, "idle", 0)
  assert arrays["learned_steps"] == arrays["learner_steps"] == 0
  for key in arrays:
    if key.startswith("after"):
      before = arrays[key.replace("after", "before")]
      np.testing.assert_array_equal(arrays[key], before)
