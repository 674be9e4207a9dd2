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
from seedx.learning import experience, labelled, plans
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
    if self.dataset:
      made = offline.process_of(
        self, context, lambda log: self.source(log, context)
      )
      made = dataclasses.replace(made, server=self.make_server(0))
    else:
      made = super().learn(context)
    learning: Any = made.parts["agent"]
    source: labelled.LabelledSource = learning.source
    agent, server = learning.agent, made.server
    if agent.label is None:
      raise types.ConfigError(
        "expected an agent whose targets other processes can compute, such as"
        " QT-Opt, found one without `label`"
      )
    assert server is not None
    targets = jax.jit(agent.targets)

    def take() -> labelled.Work | None:
      work = source.unlabelled.get()
      return work[0] if work else None

    def give(work: labelled.Work, values: Any, version: int) -> None:
      source.give(work, values, learning.version - version)

    service = labels.LabelServer[labelled.Work](
      take,
      sample=lambda work: work.sample,
      give=give,
      give_back=source.unlabelled.put,
      newest=lambda: (targets(learning.state), learning.version),
      version=lambda: learning.version,
    )
    cores = len(learning.cores)
    size = self.replay.replay_batch_size // cores
    service.bind(server, labels.example(agent, envs.spec(self.env), size))

    def stopping() -> None:
      source.close()
      made.stopping()

    measures = [*made.measures, *([server] if self.dataset else [])]
    return dataclasses.replace(made, stopping=stopping, measures=measures)
