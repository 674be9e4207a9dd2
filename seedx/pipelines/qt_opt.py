"""QT-Opt: a log of experience, labellers of targets, and a train buffer.

    actor: EnvPool <-> act --.   unrolls   .-> log --- windows --> labellers
    actor: EnvPool <-> act ---------------<    (replay)              |
         parameters ^                      '-- recording             | targets
                    '------- update <--- train buffer <--------------'
                               '----- lagged parameters --> labellers

The log has the actors' unrolls, and perhaps demonstrations. Labellers take
batches of its windows, compute targets with lagged parameters, and store them
in the train buffer. The learner learns from this buffer, and so from targets
that are some updates old. With a `dataset`, there are no actors: the log is a
recording, and the run's clock is the number of updates.

Kalashnikov et al. 2018, "QT-Opt: Scalable Deep Reinforcement Learning for
Vision-Based Robotic Manipulation", https://arxiv.org/abs/1806.10293, figure 3;
labellers are its Bellman updaters.
"""

import dataclasses
from typing import Any

import jax

from seedx import envs, types
from seedx import replay as replay_lib
from seedx.acting import labels
from seedx.agents import models
from seedx.launch import topology
from seedx.learning import experience, labelled, learners, plans
from seedx.pipelines import apex, offline
from seedx.runtime import process
from seedx.wire import serving


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(apex.Config):
  """The options of a QT-Opt run: those of an Ape-X run, and labellers.

  Attributes:
    replay: the log.
    dataset: recording as the log, without actors; none if empty.
    num_labellers: number of processes that compute targets.
    label_ahead: number of batches that may wait for their targets.
    label_capacity: number of batches in the train buffer.
    label_fetch_interval: number of batches of a labeller between two fetches of
      the lagged parameters.
  """

  replay: replay_lib.Config = replay_lib.Config()
  dataset: str = types.setting("", changes="resume")
  num_labellers: int = types.setting(2, changes="resume", low=1, high=2**10)
  label_ahead: int = types.setting(4, low=1, high=2**16)
  label_capacity: int = types.setting(16, low=1, high=2**16)
  label_fetch_interval: int = types.setting(10, low=1, high=2**31 - 1)

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.learner.hosts > 1 or self.replay.has_priorities:
      raise types.ConfigError(
        "expected one learner host and a uniform replay, found"
        f" {self.learner.hosts} and {self.replay}"
      )

  @property
  def plan(self) -> plans.Plan:
    """The run's amounts of experience."""
    if self.dataset:
      return offline.plan_of(self.total_steps, self.dataset, self)
    return super().plan

  def nodes(self) -> list[topology.Node]:
    """Returns the actors, unless there is a recording, and the labellers."""
    cores = max(1, len(self.learner.learner_devices))
    work = labels.Work(
      address=self.address,
      env=self.env,
      agent=models.on_cpu(self.agent),
      batch_size=self.replay.replay_batch_size // cores,
      fetch_interval=self.label_fetch_interval,
      security=self.security,
    )
    count = self.num_labellers
    node = topology.Node("labeller", labels.run, work, count, needs_jax=True)
    return [*([] if self.dataset else super().nodes()), node]

  def make_server(self, max_streams: int) -> serving.Server:
    """Makes the learner's server, for labellers, too."""
    return super().make_server(max_streams + self.num_labellers)

  def source(
    self, experience: experience.Experience, context: process.Context
  ) -> experience.Experience:
    """Returns the train buffer of a log."""
    return labelled.LabelledSource(
      experience,
      self.learner.cores(),
      self.label_capacity,
      self.label_ahead,
      jax.random.fold_in(context.keys(self.seed).replay, 1),
      context.stop,
    )

  def learn(self, context: process.Context) -> process.Process:
    """Returns the learner process: log, train buffer, updates."""
    if not self.dataset:
      return self._with_labellers(super().learn(context))
    spec = envs.spec(self.env)
    acted = context.acted(spec, self.total_steps)
    learning = learners.of(
      self, spec, context, acted, wrap=lambda log: self.source(log, context)
    )
    source: Any = learning.source
    made = offline.process_of(
      learning, source.log, acted, self.total_steps, context
    )
    server = self.make_server(0)
    return self._with_labellers(
      dataclasses.replace(
        made, server=server, measures=[*made.measures, server]
      )
    )

  def _with_labellers(self, made: process.Process) -> process.Process:
    """Returns a learner process that also serves labellers."""
    learning: Any = made.parts["agent"]
    source: labelled.LabelledSource = learning.source
    agent, server = learning.agent, made.server
    assert server is not None
    if agent.label is None:
      raise types.ConfigError(
        "expected an agent whose targets other processes can compute, such as"
        " QT-Opt, found one without `label`"
      )
    targets = jax.jit(agent.targets)

    def give(work: labelled.Work, values: Any, version: int) -> None:
      source.give(work, values, learning.version - version)

    service = labels.LabelServer[labelled.Work](
      lambda: next(iter(source.unlabelled.get() or ()), None),
      sample=lambda work: work.sample,
      give=give,
      give_back=source.unlabelled.put,
      newest=lambda: (targets(learning.state), learning.version),
      version=lambda: learning.version,
    )
    size = self.replay.replay_batch_size // len(learning.cores)
    service.bind(server, labels.example(agent, envs.spec(self.env), size))

    def stopping() -> None:
      source.close()
      made.stopping()

    return dataclasses.replace(made, stopping=stopping)
