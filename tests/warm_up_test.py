"""Actors and workers compile before they take a place, and nothing after."""

import pytest

from seedx.acting import local_actor
from seedx.pipelines.gorila import worker
from tests import pipelines_test, running


@pytest.mark.parametrize(
  ("pipeline", "agent"),
  [("impala", "vtrace"), ("apex", "dqn"), ("gorila", "dqn")],
)
def test_all_that_acts_was_compiled_before(
  pipeline, agent, tmp_path, monkeypatch
):
  made, sizes = [], {}

  def sizes_of(owner, names):
    return [getattr(owner, name)._cache_size() for name in names]

  class Programs(local_actor.Programs):
    def warm_up(self, *arguments):
      unroll = super().warm_up(*arguments)
      made.append((self, ("act", "unrolled")))
      sizes[self] = sizes_of(*made[-1])
      return unroll

  monkeypatch.setattr(local_actor, "Programs", Programs)
  warm_up = worker._warm_up

  def spy(work, programs, learner):
    names = warm_up(work, programs, learner)
    made.append((learner, ("gradient",)))
    sizes[learner] = sizes_of(*made[-1])
    return names

  monkeypatch.setattr(worker, "_warm_up", spy)
  config = pipelines_test.config_of(pipeline, agent, tmp_path)
  with running.Running(pipelines_test.MODULES[pipeline], config) as run:
    run.main.join()
  assert made
  if pipeline == "apex":
    assert {owner.priorities._cache_size() for owner, _ in made} == {1}
  for owner, names in made:
    assert set(sizes[owner]) == {1}
    assert sizes_of(owner, names) == sizes[owner], names
