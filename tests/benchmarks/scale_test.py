"""Measurements of scale: canned actors, and the limits computed from them."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from benchmarks import actors, limits
from seedx.acting import episodes
from tests import running

RATES = limits.Rates(
  cores=10,
  host_network=1e9,
  learner_network=2e9,
  bus_bytes=1e9,
  exchange_seconds=1e-3,
  act=1e6,
  learn=1e6,
  on_device=1e6,
  max_streams=100,
)


def limits_of(pipeline, hosts=4, **work):
  return pipeline(limits.Work(environment=1e-3, **work), RATES, hosts)


def test_seed_is_limited_by_the_part_with_the_lowest_rate():
  limited = limits_of(
    limits.seed, message=1e-3, message_steps=50, step_bytes=10_000
  )
  assert limited == pytest.approx(
    {
      limits.ENVIRONMENTS: 40_000,  # 4 hosts, 10 cores, 1 ms a step.
      limits.CPU: 50_000,  # 1,000 messages/s of 50 steps.
      limits.NETWORK: 200_000,
      limits.DEVICE: 500_000,  # 1 us to act, and 1 us to learn.
      limits.STREAMS: 100_000,  # 100 actors, 1,000 steps/s each.
    }
  )
  assert limits.first(limited) == (limits.ENVIRONMENTS, pytest.approx(40_000))
  more = limits_of(
    limits.seed, 8, message=1e-3, message_steps=50, step_bytes=10_000
  )
  assert limits.first(more) == (limits.CPU, pytest.approx(50_000))


def test_learner_hosts_carry_the_actors_but_exchange_gradients():
  work = {"message": 1e-3, "message_steps": 50, "step_bytes": 1.0}
  work |= {"parameters": 500_000, "batch_steps": 1000}
  # 16 hosts send 160k steps/s, and a learner carries 50k: 4 learners.
  limited = limits_of(limits.seed_together, 16, **work)
  # Six exchanges of 1 ms through two levels, and 1.5 x 2 MB at 1 GB/s.
  exchange_seconds = 12e-3 + 3e-3
  assert limited[limits.EXCHANGES] == pytest.approx(
    4 * 1000 / (2e-3 + exchange_seconds)
  )
  assert limited[limits.CPU] == pytest.approx(4 * 50_000)
  assert limits.DEVICE not in limited


def test_an_all_reduce_of_one_host_takes_no_time():
  assert limits.all_reduce_seconds(RATES, 1, 1e9, exchanges=9) == 0
  # With n hosts, 2 (n - 1) / n of the bytes pass each network card.
  assert limits.all_reduce_seconds(RATES, 2, 1e9) == pytest.approx(1 + 1e-3)


def test_parameters_of_unroll_actors_use_cpu_and_network():
  unrolls = {"message": 1e-3, "message_steps": 100, "step_bytes": 10.0}
  limited = limits_of(limits.impala, act=1e-3, **unrolls)
  assert limited[limits.ENVIRONMENTS] == pytest.approx(20_000)
  assert limited[limits.CPU] == pytest.approx(100_000)
  assert limited[limits.NETWORK] == pytest.approx(2e8)
  limited = limits_of(
    limits.impala, parameters=10**6, fetch=1e-3, fetch_steps=100, **unrolls
  )
  assert limited[limits.CPU] == pytest.approx(50_000)
  # Each actor fetches 4 MB every 100 steps, through 2 GB/s.
  assert limited[limits.NETWORK] == pytest.approx(50_000)


def test_more_shards_carry_more_gradients():
  work = {"parameters": 10**6, "gradient_steps": 4, "push": 5e-3}
  work["push_alone"] = 1e-3
  one, four = (
    limits.gorila(limits.Work(environment=1e-3, **work), RATES, 4, shards)
    for shards in (1, 4)
  )
  assert one[limits.SHARDS] == pytest.approx(4 / 5e-3)
  assert four[limits.SHARDS] == pytest.approx(4 / 2e-3)
  assert one[limits.SHARDS_NETWORK] == pytest.approx(1000)
  assert four[limits.SHARDS_NETWORK] == pytest.approx(4000)


def test_hosts_that_learn_together_lose_the_time_of_exchanges():
  work = {"batch_steps": 10_000, "optimizer_steps": 2, "parameters": 0}
  alone = limits_of(limits.anakin, 1, **work)
  assert limits.first(alone) == (limits.DEVICE, pytest.approx(1e6))
  # 10 ms of computation, and 20 ms of exchanges.
  four = limits_of(limits.anakin, 4, **work)
  assert limits.first(four) == (limits.EXCHANGES, pytest.approx(4e4 / 30e-3))
  # Environments take 1 s for 10,000 steps on 10 cores.
  steps = limits_of(limits.sync, 4, **work)
  assert limits.first(steps)[0] == limits.ENVIRONMENTS


def test_a_table_names_the_part_that_breaks_first():
  table = limits.table({"x": lambda n: {"a": 12_345 * n, "b": 3e4}}, (1, 4))
  assert table.splitlines()[0] == "| hosts | 1 | 4 |"
  assert table.splitlines()[-1] == "| x | 12.3k, a | 30k, b |"


@pytest.mark.parametrize("kind", [actors.NUMBERS, actors.FRAMES])
def test_canned_episodes_follow_the_rules(kind):
  canned = actors.messages(kind, rows=70)
  checked = episodes.Episodes(70, returns_are_sums=True)
  ended = 0
  for message in [*canned, *canned[1:], canned[1]]:
    leaves = (*message.timestep[:3], message.episode_return)
    steps = episodes.Steps(*(x[:, None] for x in leaves))
    returns = checked.add(steps, np.arange(70)).returns
    ended += np.count_nonzero(~np.isnan(returns))
  assert ended == 2 * 70  # Each environment, in both rounds.


_SERVER = """
import sys, threading
import numpy as np
from benchmarks import actors
from seedx.acting import protocol
from seedx.wire import serving as server_lib

address, number, rows = sys.argv[1], *map(int, sys.argv[2:])
server = server_lib.Server(address, number)
answer = lambda inputs: np.zeros(len(inputs.index), np.int32)
server.bind_stream(
  protocol.ACT,
  lambda hello: server_lib.FunctionSession(answer),
  *protocol.act_layouts(actors.spec(actors.NUMBERS), rows),
)
server.start()
threading.Event().wait()
"""


def test_all_actors_are_back_after_their_server_was_killed(tmp_path):
  number, rows, address = 64, 2, f"unix:{tmp_path}/s"
  many = actors.Actors(address, number, rows, actors.NUMBERS)
  thread = threading.Thread(target=many.run, daemon=True)
  thread.start()
  words = [sys.executable, "-c", _SERVER, address, str(number), str(rows)]
  try:
    for times in (1, 2):
      with subprocess.Popen(words) as server:
        try:
          running.wait_until(lambda times=times: len(many.times) == times)
        finally:
          server.kill()
  finally:
    many.stop()
    thread.join()
