"""The replays of Gorila's workers in checkpoints."""

import contextlib
import threading

import numpy as np
import pytest

from seedx import checkpoint, wire
from seedx.learning import replayed
from seedx.pipelines.gorila import replays
from tests import pipelines_test, running

# More than one piece.
_REPLAY = {"states": [np.arange(400_000.0)], "keys": [np.uint32([1, 2])]}


def flat(nest):
  content = np.frombuffer(checkpoint.to_bytes(nest), np.uint8)
  return checkpoint.from_bytes(content)


@contextlib.contextmanager
def serving(tmp_path, workers=2, replay_bytes=2**22):
  """The coordinator's side, of so many workers, and a client."""
  kept = replays.Replays(workers, replay_bytes, lambda: workers)
  # A place is free again some time after its stream is over.
  server = wire.Server(f"unix:{tmp_path}/learner", 64)
  kept.bind(server)
  with server, wire.Client(server.address) as client:
    client.wait_until_ready(300)
    yield kept, client


def test_workers_take_what_workers_gave(tmp_path):
  with serving(tmp_path) as (kept, client):
    assert kept.num_bytes == 2 * 2**22
    fetch = kept.saved()
    for k in range(2):
      replay = _REPLAY | {"due": np.float64(k)}
      replays.keep(client, kept.key, kept.wanted, replay)
    saved = flat(fetch())
    assert kept.wanted == 0
    kept.restore(saved)
    # Nobody has taken them yet: they are not lost.
    fetch, connected = kept.saved(), kept._connected
    kept._connected = lambda: 0
    running.assert_equal(flat(fetch()), saved)
    kept._connected = connected
    taken = [replays.take(client, kept.key) for _ in range(3)]
  for k in range(2):
    running.assert_equal(taken[k], flat(_REPLAY | {"due": np.float64(k)}))
  assert taken[2] == {}


def test_one_that_a_worker_did_not_take_whole_is_for_the_next(tmp_path):
  with serving(tmp_path) as (kept, client):
    kept.restore({f"0/{name}": leaf for name, leaf in flat(_REPLAY).items()})
    half = wire.Exchange(
      client, replays.TAKE, wire.NOTHING, replays.PIECE, {"key": kept.key}
    )
    assert len(half(())) == 2**20
    assert replays.take(client, kept.key) == {}
    half.close()
    found = []
    running.wait_until(
      lambda: found.append(replays.take(client, kept.key)) or found[-1]
    )
    running.assert_equal(found[-1], flat(_REPLAY))


def test_who_asks_for_more_than_there_is_is_refused(tmp_path):
  with serving(tmp_path) as (kept, client):
    asks = client.stream(
      *(replays.TAKE, [(), ()], wire.NOTHING, replays.PIECE), {"key": kept.key}
    )
    with pytest.raises(wire.WireError) as refused:
      list(asks)
  assert refused.value.code is wire.StatusCode.INVALID_ARGUMENT


def test_a_worker_that_sends_none_is_waited_for_and_missed(
  tmp_path, monkeypatch, capfd
):
  monkeypatch.setattr(replays, "_WAIT_SECONDS", 0.3)
  with serving(tmp_path) as (kept, client):
    fetch = kept.saved()
    replays.keep(client, kept.key, kept.wanted, _REPLAY)
    assert list(fetch()) == ["0"]
    assert "replays of 1 workers, not of 2" in capfd.readouterr().err
    # What comes late, or twice, is dropped.
    replays.keep(client, kept.key, 1, _REPLAY)
    fetch = kept.saved()
    replays.keep(client, kept.key, 1, _REPLAY)
    for _ in range(5):
      replays.keep(client, kept.key, kept.wanted, _REPLAY)
    assert list(fetch()) == ["0", "1"]


@pytest.mark.parametrize("key", ["x", "", "\ud800"])
def test_only_who_was_told_the_key_gives_or_takes_a_replay(key, tmp_path):
  with serving(tmp_path) as (kept, client):
    kept.saved()
    kept.restore({f"0/{name}": leaf for name, leaf in flat(_REPLAY).items()})
    for call in (
      lambda: replays.keep(client, key, kept.wanted, _REPLAY),
      lambda: replays.take(client, key),
    ):
      with pytest.raises(wire.WireError, match="the key that workers are told"):
        call()


def test_a_replay_with_a_nan_is_refused(tmp_path):
  with serving(tmp_path) as (kept, client):
    kept.saved()
    with pytest.raises(wire.WireError, match="finite replays"):
      replays.keep(
        client, kept.key, kept.wanted, {"reward": np.float32([np.nan])}
      )


@pytest.mark.parametrize(
  ("hello", "content", "words"),
  [
    ({}, b"x", "bytes in the hello, found None"),
    ({"bytes": "9"}, b"x", "bytes in the hello, found '9'"),
    ({"bytes": 2**40}, b"x", "bytes in the hello, found 1099511627776"),
    ({"bytes": 1}, b"xy", "expected 1 bytes as the hello says, found more"),
    ({"bytes": 2}, b"xy", "expected a replay, found 2 bytes without"),
  ],
  ids=str,
)
def test_what_is_no_replay_is_refused(tmp_path, hello, content, words):
  with serving(tmp_path) as (kept, client):
    hello = {"key": kept.key, **hello}
    pieces = [np.frombuffer(content, np.uint8)]
    with pytest.raises(wire.WireError, match=words) as caught:
      list(
        client.stream(replays.KEEP, pieces, replays.PIECE, wire.NOTHING, hello)
      )
    assert caught.value.code is wire.StatusCode.INVALID_ARGUMENT


def test_a_replay_that_is_too_large_is_not_asked_for(tmp_path, monkeypatch):
  monkeypatch.setattr(replays, "_LAST_SECONDS", 1e6)
  with serving(tmp_path) as (kept, _):
    kept.leave_out()
    kept.fetch_last()
    assert kept.wanted == 0


@pytest.mark.slow
def test_a_runs_workers_go_on_with_the_replays_that_there_were(
  tmp_path, monkeypatch
):
  own, nodes = pipelines_test.make("gorila", "dqn", tmp_path)
  run, replay = own.process, own.process.replay
  middle, nests = [], []

  def save_in_the_middle():
    running.wait_until(lambda: own.learned.steps >= 20)
    middle.append(flat(replay.saved()()))

  saving = threading.Thread(target=save_in_the_middle, daemon=True)
  saving.start()
  pipelines_test.run_all(
    own, nodes, lambda: nests.append(running.copied(run.saved()))
  )
  saving.join(300)
  saved = flat(replay.saved()())
  for nest in (middle[0], saved):
    assert {name.partition("/")[0] for name in nest} == {"0", "1"}
    assert nest["0/steps"] >= 60 and nest["1/steps"] >= 60
  assert saved["0/steps"] > middle[0]["0/steps"]

  own, nodes = pipelines_test.make("gorila", "dqn", tmp_path, 1200)
  arrays = flat(nests[0])
  own.process.restore(lambda like: checkpoint.like(arrays, like, "it"))
  own.process.replay.restore(saved)
  begin, restored = replayed.Replayed._begin, []

  def spy(source, shares):
    is_first = not source.states
    begin(source, shares)
    if is_first:
      restored.append(flat(source.saved()()))

  monkeypatch.setattr(replayed.Replayed, "_begin", spy)
  pipelines_test.run_all(own, nodes)
  assert len(restored) == 2
  by_key = {tuple(nest["keys/0"].tolist()): nest for nest in restored}
  for k in range(2):
    expected = {
      name.partition("/")[2]: leaf
      for name, leaf in saved.items()
      if name.startswith(f"{k}/")
    }
    running.assert_equal(by_key[tuple(expected["keys/0"].tolist())], expected)
