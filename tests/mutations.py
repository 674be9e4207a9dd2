"""Mutations of the most important code, each of which a test must notice.

    python -m tests.mutations [--only NAME] [--quick] [--fast] [--no-check]

A mutation replaces one expression under `seedx/` in a copy of the checkout. The
program runs the fast and slow tests of the mutation's test files in the copy,
until one of them fails. If none fails, all tests run, unless `--quick` is
given. First of all, the test files must pass in a copy without a mutation.

The exit status is 0 if at least one test failed for every mutation. Printed
seconds are CPU seconds. The copies share the checkout's `.pytest_cache/jax`.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import NamedTuple

# For each mutation: its name, a file under `seedx/`, and its test files; the
# code that occurs once in the file (-), and the code that replaces it (+).
_MUTATIONS = """\
due-updates-with-one-version learning/replay_source.py pipelines/sync
- version=inputs.version + i
+ version=inputs.version
due-updates-with-one-draw learning/replay_source.py pipelines/sync
- rng_key, first + i, clock + i
+ rng_key, first, clock
due-updates-counted-as-one learning/learner.py pipelines/sync
- self.version += len(results)
+ self.version += 1
due-updates-delay-acting learning/learner.py learning/learner
- not {*self.cores}.isdisjoint(acting_on)
+ False
priorities-of-the-other-replay replay/mixed.py replay/mixed
- jnp.where(is_fixed, nowhere, new_windows.leaf)
+ jnp.where(is_fixed, new_windows.leaf, nowhere)
demonstrations-are-kept replay/mixed.py replay/mixed
- fixed._replace(ring=()) if _has_priorities(fixed) else ()
+ fixed
actions-cross-demonstrations learning/demonstrations.py learning/demonstrations
- np.where(first, np.zeros_like(before), before)
+ before
unknown-versions-are-old agents/base.py learning/demonstrations
- counts = ~first & (unroll.version[:-1] != UNKNOWN_VERSION)
+ counts = ~first
long-episodes-go-on recordings/recorder.py recordings/recorder
- 0 if is_cut else self.left[k] - 1
+ self.left[k] - 1
recorded-discounts-unchecked recordings/storage.py recordings/storage
- discount.min() < 0 or discount.max() > 1
+ discount.max() > 1
recorded-seeds-again app/record.py app/record
- max(options.seed, writer.next_seed)
+ options.seed
another-recording-at-resume learning/fixed.py pipelines/offline
- int(saved["crc32"]) != self._checksum
+ False
offline-batches-again learning/fixed.py pipelines/offline
- self._num_drawn = updates
+ self._num_drawn = 0
recorded-code-without-trust app/runs/foreign_code.py pipelines/offline
- if code and not trust:
+ if False:
expectile-of-the-other-side losses/implicit_q.py losses/every_loss
- error < 0, 1.0 - expectile, expectile
+ error < 0, expectile, 1.0 - expectile
advantages-from-learned-critics agents/iql.py agents/agents
- criticized(state.target_params[_CRITIC])
+ criticized(params[_CRITIC])
targets-of-the-mean-action losses/returns.py losses/every_loss
- values = jnp.max(q_values, axis=-1)
+ values = jnp.mean(q_values, axis=-1)
resets-teach-q-values agents/pqn.py agents/pqn
- weight, axis_name = entries.weight, self.axis_name
+ weight, axis_name = jnp.ones_like(entries.weight), self.axis_name
epsilon-ends-at-once agents/epsilon_greedy.py agents/pqn
- jnp.maximum(1.0 - progress * (1.0 - end), end)
+ jnp.maximum(0.0, end)
epochs-in-order agents/minibatches.py agents/ppo_agent
- permutations.random(rng_key, size)
+ jnp.arange(size)
layers-stay-unnormalized networks/torsos.py networks/torsos
- if layer_norm:
+ if False:
radam-is-adam agents/optimizers.py agents/optimizers
- optax.scale_by_radam(
+ optax.scale_by_adam(
fewer-elites agents/cem.py agents/qt_opt
- actions = best.mean(axis=0) + best.std
+ actions = actions.mean(axis=0) + best.std
larger-lagged-value agents/qt_opt.py agents/qt_opt
- jnp.minimum(
+ jnp.maximum(
the-newest-copy-at-once agents/qt_opt.py agents/qt_opt
- (lagged.copy, lagged.second), (first
+ (first, lagged.second), (first
lost-windows-of-a-labeller acting/labels.py acting/labels
- self._server._give_back(self._held)
+ pass
labels-of-the-future acting/labels.py acting/labels
- request.version, 0, server._version()
+ request.version, 0, 2**30
equal-returns-by-order agents/evolution.py agents/evolution_strategies
- method="average"
+ method="ordinal"
left-out-pairs-count agents/evolution.py agents/evolution_strategies
- jnp.all(jnp.isfinite(batch.returns), axis=1)
+ jnp.ones(len(batch.returns), bool)
equal-returns-move-ars agents/evolution.py agents/evolution_strategies
- where(deviation > 0, count * deviation, jnp.inf)
+ where(deviation > 0, count * deviation, 0.0)
late-results-are-learned acting/populations.py pipelines/evolution
- used = np.array([x in self._due for x in results.pair.tolist()])
+ used = np.ones(len(results.pair), bool)
lost-pairs-of-a-worker acting/populations.py pipelines/evolution
- self._book.give_back(self._held)
+ pass
lengths-of-ended-episodes acting/perturbed.py acting/perturbed
- lengths += alive & (
+ lengths += True | (
train-buffer-grows learning/labelled.py learning/labelled
- index = self._sizes[core] % self._capacity
+ index = self._sizes[core]
games-of-other-environments acting/forwarded.py acting/forwarded
- self._has_joined[slot] == (kind == JOINED)
+ False
lost-unrolls-of-a-process acting/forwarded.py acting/forwarded
- self._acted.add_discarded(len(left))
+ pass
forwarded-steps-in-any-order acting/forwarded.py acting/forwarded
- (step_type[1:] == 0) != (step_type[:-1] == 2)
+ step_type > 2
seeds-of-two-actors acting/forwarded.py acting/forwarded
- self._seeds.take(count)
+ self._seeds.take(1)
events-again acting/inference_node.py acting/forwarded
- taken, self._events =
+ taken, _ =
draws-from-an-empty-buffer learning/sampled.py learning/sampled
- max(1, self._num_added)
+ self._config.buffer_batches
schedules-without-reuse learning/plans.py learning/sampled
- self.batch_steps / self.reuse
+ self.batch_steps
vtrace-thresholds-swapped losses/vtrace.py losses/vtrace
- clip_rho_threshold=clip_rho_threshold,
-     clip_pg_rho_threshold=clip_pg_rho_threshold,
+ clip_rho_threshold=clip_pg_rho_threshold,
+     clip_pg_rho_threshold=clip_rho_threshold,
ppo-smaller-value-loss losses/ppo.py losses/ppo
- jnp.maximum(square,
+ jnp.minimum(square,
ppo-gradient-of-advantage losses/ppo.py losses/every_loss
- advantage = jax.lax.stop_gradient(advantage)
+ pass
traces-cross-resets losses/streams.py losses/streams
- discount_t=jnp.where(starts, 0.0, discount[1:])
+ discount_t=discount[1:]
double-q-evaluates-its-own-choice losses/q_learning.py losses/q_learning
- q_values if double else target_q_values
+ target_q_values
n-step-rewards-undiscounted losses/categorical.py losses/every_loss
- ends.discount * reward[step]
+ reward[step]
normalizer-without-variance-between agents/normalizer.py agents/normalizer
- + rate * new + rate * (1.0 - rate) * apart
+ + rate * new
burn-in-gradient agents/replay_windows.py agents/r2d2
- core_state = jax.lax.stop_gradient(
+ core_state = (
importance-weights-unused agents/value_based.py agents/dqn
- per_step.loss * batch.importance_weight
+ per_step.loss
lstm-remembers-other-episodes networks/lstm.py networks/lstm
- jnp.where(first[:, None], 0.0, x)
+ x
priorities-of-evicted-windows replay/prioritized.py replay/prioritized
- jnp.where(is_kept, windows.leaf, sum_tree.NOWHERE)
+ windows.leaf
forgotten-windows-sampled replay/prioritized.py replay/rows
- jax.lax.fori_loop(first, ring.book.oldest, forget, state.tree)
+ state.tree
replay-schedules-without-windows learning/plans.py learning/experience
- with_windows(needs.learned_steps)
+ with_windows(1)
first-of-the-most-visited-moves envs/functional/search.py envs/search
- jnp.argmax(jnp.where(is_most, tree.qvalues, -jnp.inf), axis=-1)
+ jnp.argmax(visits, axis=-1)
estimates-beyond-a-won-game agents/alphazero.py agents/alphazero
- jnp.clip(value[0], -_LARGEST_ESTIMATE, _LARGEST_ESTIMATE)
+ value[0]
opponents-choose-alike envs/functional/opponents.py envs/match
- game_seed // count
+ game_seed
first-moves-without-openings app/arena/matches.py app/arena/matches
- move < len(opening) + 2
+ move < 2
discrete-actions-of-negative-noise agents/sac.py agents/sac
- outputs - jnp.log(
+ outputs + jnp.log(
unrolls-are-collected-a-step-late acting/unroll_store.py acting/unroll_store
- place = jnp.arange(layout.length)[:, None], row
+ place = jnp.arange(1, layout.length + 1)[:, None], row
actors-step-one-batch-at-a-time acting/thin_actor.py acting/thin_actor
- if batches == 1:
+ if batches:
actors-have-one-message-under-way acting/thin_actor.py acting/thin_actor
- for _ in range(batches):
+ for _ in range(1):
unrolls-begin-a-row-late acting/unroll_store.py acting/unroll_store
-   first = count - (layout.length - 1)
+   first = count - (layout.length - 2)
seeds-overlap-after-resume runtime/seeding.py runtime/slots
- self._place(int(saved))
+ self._place(int(saved) - 1)
acting-keys-without-time pipelines/anakin/program.py pipelines/anakin
- clock.time + offset)
+ offset)
resets-counted-as-steps runtime/counters.py runtime/counters
- int(np.count_nonzero(steps))
+ len(steps)
replay-ratio-without-carry replay/ratios.py learning/experience
- self._due += env_steps * self._replay_ratio
+ self._due = env_steps * self._replay_ratio
version-one-too-high runtime/publication.py learning/learner
- _Version(on_devices, version)
+ _Version(on_devices, version + 1)
micro-batches-weigh-alike learning/updates.py learning/learner
- jnp.maximum(output.weight, _LEAST_WEIGHT)
+ jnp.ones_like(output.weight)
fresh-dropped pipelines/gorila/parameter_server.py pipelines/parameter_server
- <= self._max_staleness
+ < self._max_staleness
long-messages-accepted wire/array_layout.py wire/wire
- if total != expected or len(message) != expected:
+ if total != expected:
damage-unnoticed checkpoint.py checkpoint
- zlib.crc32(part.data) != column.checksum
+ False
slots-leased-twice acting/leases.py acting/sessions
- free[:count], free[count:]
+ free[:count], free
returns-with-rewards-of-resets acting/episodes.py acting/episodes
- np.where(first, 0, steps.reward)
+ steps.reward
batches-wait-for-the-newest-request acting/batcher.py acting/batcher
- self._requests[0].arrived_seconds
+ self._requests[-1].arrived_seconds
first-parameters-served-for-ever acting/parameters.py acting/parameters
- self._copy is None or self._copy.version != version
+ self._copy is None
scaled-rewards-cross-episodes agents/rewards.py agents/rewards
- jnp.where(is_first, 0.0, discount * total)
+ discount * total
correlated-noise-too-small agents/policies.py agents/critics
- (1 - correlation**2) ** 0.5
+ (1 - correlation)
actions-off-the-middle agents/action_vectors.py agents/critics_bounds
- (action - self.middle)
+ (action - self.minimum)
mean-share-in-priorities agents/replay_windows.py agents/replay_windows
- share * jnp.max(size, axis=0) + (1 - share) * mean
+ (1 - share) * jnp.max(size, axis=0) + share * mean
second-games-counted-as-first app/arena/matches.py app/arena/matches
- match(board, b, a, opening, keys[2]).reversed()
+ match(board, b, a, opening, keys[2])
wilson-interval-too-wide app/arena/ratings.py app/arena/ratings
- extra / 4
+ extra / 2
every-switch-is-on app/cli/command_line.py app/cli/command_line
- name == wording.flag(setting.name)
+ True
evaluations-share-seeds app/evaluate.py app/evaluate
- options.seed * options.episodes
+ options.seed
exported-policy-never-samples app/export.py app/export
- None if seed is None else jax.random.key(seed)
+ None
runs-end-at-their-shortest app/plot.py app/plot
- max(ends.get(key, 0), _end(run))
+ min(ends.get(key, _end(run)), _end(run))
checkpoints-at-every-look app/runs/checkpointer.py app/runs/resuming
- env_steps // every > self._saved_steps // every
+ env_steps // every >= self._saved_steps // every
experiments-of-others-run app/runs/foreign_code.py app/runs/trust
- saved.experiment not in (None, *experiments.shipped())
+ False
saved-runs-begin-again app/runs/resuming.py app/runs/resuming
- .has(run_folders.CONFIG) and not saved(run_dir)
+ .has(run_folders.CONFIG)
opponents-always-trusted app/settings/opponents.py app/opponents
- _LOADERS[trust]
+ _LOADERS[True]
diverged-members-are-copied learning/populations.py learning/populations
- jnp.where(jnp.isnan(scores), -jnp.inf, scores)
+ jnp.where(jnp.isnan(scores), jnp.inf, scores)
zeros-stay-zeros learning/populations.py learning/populations
- jnp.where(happens, drawn, changed)
+ changed
copies-lose-their-counts learning/populations.py app/studies/population
- lambda x, y: y if jnp.issubdtype(x.dtype, jnp.inexact) else x, own, other
+ lambda x, y: y, own, other
all-members-start-again app/studies/population.py app/studies/population
- if other is not member or values != member.values:
+ if True:
lost-changes-are-not-made-again app/studies/population.py app/studies/population
- (other, member.values) if is_lost else None
+ None
members-keep-their-places app/studies/population.py app/studies/population
- takes_turns and not self._waiting.empty()
+ False
worst-trials-continue app/studies/search.py app/studies/search
- direction="maximize", pruner=pruner
+ direction="minimize", pruner=pruner
failed-trials-not-repeated app/studies/pool.py app/studies/trials
- for x in past if not x.get("error")
+ for x in past
checkpoints-forget-the-best checkpoint.py checkpoint
- *self.ranked()[:1],
+ *(),
newest-item-first channels.py channels
- self._items.popleft()
+ self._items.pop()
offsets-of-integers-dropped envs/actions.py envs/actions
- action + part.offset.astype(dtype)
+ action
negative-actions-accepted envs/finishing.py envs/functional_adapter
- (choices >= 0) & (choices <= maximum)
+ choices <= maximum
time-limits-count-as-terminal envs/functional/episodic.py envs/functional
- 1.0 - terminated.astype
+ 1.0 - over.astype
a-librarys-limit-left-out envs/functional/libraries.py envs/libraries
- self._params, self.time_limit = env, params, time_limit
+ self._params, self.time_limit = env, params, 0
resets-of-all-environments envs/functional/resets.py envs/libraries
- (index,) = jnp.nonzero(due, size=few
+ (index,) = jnp.nonzero(due, size=size
parameters-of-a-library-ignored envs/functional/gymnax_adapter.py envs/libraries
- if x in fields
+ if x in arguments
an-old-gymnax-accepted envs/functional/gymnax_adapter.py envs/libraries
- if not hasattr(env, "is_truncated"):
+ if False:
links-in-runs-followed files.py files
- _FOLDER | os.O_NOFOLLOW
+ _FOLDER
numbers-not-kept-on-rejoin launch/admission.py launch/join
- same if self._fixed else same or free
+ same if self._fixed else free
learners-code-runs-untold launch/joining.py launch/join
- hello.options.get(name) != value
+ False
dead-instances-restart-at-once launch/instances.py launch/launch
- 2 ** len(recent) - 1
+ 0
advice-that-does-not-divide learning/blocking.py learning/blocking
- n >= needed and self.divisible % n == 0
+ n >= needed
closed-inbox-gives-empty-batches learning/inbox.py learning/inbox
- self._shares.get(self._num_cores, timeout_seconds) or None
+ self._shares.get(self._num_cores, timeout_seconds)
staleness-counts-its-own-update learning/shared_state.py pipelines/shared
- self._version - int(version)
+ self._version - int(version) + 1
cores-average-alone losses/reductions.py losses/reductions
- sum_over_cores(jnp.sum(weights), axis_name)
+ jnp.sum(weights)
largest-critic-in-targets losses/continuous_q.py losses/continuous_q
- values = jnp.min(target_q_values, axis=-1)
+ values = jnp.max(target_q_values, axis=-1)
resets-teach-the-policy losses/alphazero.py losses/alphazero
- cross_entropy * steps.weight
+ cross_entropy
lines-before-a-resume-stay metrics/lines.py metrics
- map(operator.ge, _times(lines[-1]), times)
+ map(operator.gt, _times(lines[-1]), times)
waits-counted-twice metrics/meters.py metrics
- self._began[key] = now
+ pass
frames-of-other-episodes networks/frame_stack.py networks/frame_stack
- time - lag >= started
+ time - lag >= -past
advantages-centred-over-atoms networks/heads.py networks/heads
- -2 if self.parts else -1
+ -1
workers-play-alike pipelines/a3c.py pipelines/shared
- seed=self.seeds.take(self._config.workers.envs_per_worker)
+ seed=self._config.seed
episodes-never-lengthen-anew pipelines/anakin/program.py pipelines/anakin
- jnp.where(first, 0, state.episode_length + 1)
+ state.episode_length + ~first
shard-refilled pipelines/gorila/parameter_server.py pipelines/parameter_server
- if self._state is None:
-         state = self._start(
+ if True:
+         state = self._start(
gradients-without-experience pipelines/gorila/reports.py pipelines/gorila
- unlearned - made * steps_per_gradient
+ unlearned
uneven-batches-accepted pipelines/impala.py pipelines/impala
- self.learner.check_batches(self.learner.parts)
+ pass
batches-checked-without-replay pipelines/seed.py pipelines/seed
- self.learner.parts_of_unrolls(self.replay)
+ self.learner.parts
acting-never-learns pipelines/sync.py pipelines/sync
- learning.publish()
+ pass
windows-never-written-sampled replay/uniform.py replay/replay
- state.inserted - oldest
+ self.capacity
last-leaf-found replay/sum_tree.py replay/prioritized
- 2 * RADIX - place
+ RADIX + place
resets-charged-as-learned replay/ratios.py learning/experience
- self._due += missed
+ self._due += 0
skipped-updates-not-in-a-row runtime/progress.py runtime/counters
- 0 if applied else self._in_a_row + skipped
+ self._in_a_row + skipped
cached-files-count-as-used runtime/memory.py learning/experience
- int(limit) - int(used) + unused
+ int(limit) - int(used)
nested-compilation-counted-twice runtime/clocks.py runtime/clocks
- self.seconds -= other_end - other_start
+ pass
parts-of-batches-overlap sharding.py sharding
- leaf, index * size, size, axis
+ leaf, index, size, axis
warning-signals-unlike-sigterm signals.py app/signals
- signal.SIGTERM if number in WARNINGS else number
+ number
rows-beyond-the-maximum wire/array_layout.py wire/wire
- if not 1 <= rows <= self.max_rows:
-       raise MessageError(
+ if rows < 1:
+       raise MessageError(
clients-without-certificates wire/authentication.py wire/authentication
- require_client_auth=bool(self.tls_ca)
+ require_client_auth=False
secrets-work-twice wire/listening.py wire/unix_pipe
- expected is not None and expected.connected is None
+ expected is not None
full-servers-count-as-missing wire/reconnect.py wire/reconnect
- client.was_accepted or error.code is StatusCode.RESOURCE_EXHAUSTED
+ client.was_accepted
requests-before-the-reply wire/bundles.py wire/relay
- if self._is_asked:
+ if False:
bundles-of-any-size wire/bundles.py wire/relay
- size < BUNDLE_BYTES and not
+ not
bundled-handshakes-of-any-size wire/bundles.py wire/relay
- is_full or len(handshake) > self.max_handshake_bytes
+ is_full
a-relay-that-leaves-ends-the-run wire/relay.py wire/relay
- if not leave.is_set():
+ if True:
calls-of-a-learner-that-left wire/relay.py wire/relay
- if learner is not self._learner:
+ if False:
actors-end-with-the-learner app/machine.py launch/join
- self._actors is not None and assignment == self._assignment
+ False
messages-of-any-size wire/unix_pipe.py wire/unix_pipe
- if size > self._max_bytes:
+ if False:
"""


class Mutation(NamedTuple):
  """A change of one expression, from `old` to `new`, in one file."""

  name: str
  path: str
  old: str
  new: str
  tests: list[str]

  def apply(self, root):
    """Changes a checkout; raises ValueError if the mutation does not apply."""
    file = root / self.path
    content = file.read_text(encoding="utf-8")
    count = content.count(self.old)
    if count != 1:
      raise ValueError(f"expected {self.old!r} once, found it {count} times")
    content = content.replace(self.old, self.new)
    compile(content, str(file), "exec")  # May raise SyntaxError.
    file.write_text(content, encoding="utf-8")


def mutations():
  parsed = []
  for part in re.findall(r"^[^-+].*\n(?:[-+].*\n)+", _MUTATIONS, re.M):
    head, *lines = part.splitlines()
    name, path, *tests = head.split()
    old, new = (
      "\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+"
    )
    tests = [f"tests/{test}_test.py" for test in tests]
    parsed.append(Mutation(name, f"seedx/{path}", old, new, tests))
  return parsed


@contextlib.contextmanager
def copy_of(root):
  """Yields a temporary copy of a checkout's files; both share a JAX cache."""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
    folder = pathlib.Path(name).resolve()
    command = ["git", "-C", root, "ls-files", "-zco", "--exclude-standard"]
    for path in subprocess.check_output(command, text=True).split("\0"):
      if (root / path).is_file():  # A deleted file may still be in the index.
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, folder / path)
    # Some tests call git to list the files.
    for command in (["init", "--quiet"], ["add", "--all"]):
      subprocess.check_call(["git", "-C", folder, *command])
    cache = root / ".pytest_cache" / "jax"
    cache.mkdir(parents=True, exist_ok=True)
    (folder / ".pytest_cache").mkdir()
    (folder / ".pytest_cache" / "jax").symlink_to(cache)
    yield folder


def failure(folder, tests, marks):
  """Returns the first test that fails in a copy; None if none fails."""
  options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(folder)}}
  program = [sys.executable, "-c", "import seedx; print(seedx.__file__)"]
  imported = subprocess.check_output(program, text=True, **options).strip()
  if imported != str(folder / "seedx" / "__init__.py"):
    raise RuntimeError(f"expected the seedx of {folder}, found {imported}")
  # The test of the list of mutations fails with every mutation.
  words = "--ignore tests/repository/mutations_test.py"
  words += " -x -q -n 0 --tb=no -o addopts= -m"
  program = [sys.executable, "-m", "pytest", *words.split(), marks, *tests]
  with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
    options |= {"stdout": file, "stderr": file, "start_new_session": True}
    process = subprocess.Popen(program, **options)
    try:
      status = process.wait()
    finally:
      # A failed test may have left programs behind.
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    file.seek(0)
    output = file.read()
  failed = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.M)
  if status == 1 and failed:
    return failed[1]
  # No test has these marks (5), or a test only exceeded its budget.
  if status in (0, 5) or (status == 1 and "TOO DEAR" in output):
    return None
  raise RuntimeError(f"expected results of tests, found:\n{output[-2000:]}")


def noticed(root, mutation, marks, quick):
  """Returns the first test that fails with a mutation; None if none fails."""
  with copy_of(root) as folder:
    mutation.apply(folder)
    test = failure(folder, mutation.tests, marks)
    return test if test or quick else failure(folder, ["tests"], marks)


def cpu_seconds():
  return os.times().children_user + os.times().children_system


def main():
  everything = {mutation.name: mutation for mutation in mutations()}
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--only", action="append", choices=everything, metavar="NAME")
  add("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
  add("--list", action="store_true", help="print the mutations, and exit")
  add("--quick", action="store_true", help="run only a mutation's test files")
  add("--fast", action="store_true", help="do not run slow tests")
  add("--no-check", action="store_true", help="do not test unchanged code")
  options = parser.parse_args()
  root = options.root.resolve()
  chosen = [everything[name] for name in options.only or everything]
  if options.list:
    for name, path, *_, tests in chosen:
      print(f"{name:36} {path:44} {' '.join(tests)}")
    return 0
  marks = "not slow and " * options.fast + "not long and not alone"
  if not options.no_check:
    began = cpu_seconds()
    with copy_of(root) as folder:
      tests = dict.fromkeys(test for x in chosen for test in x.tests)
      test = failure(folder, tests, marks)
    seconds = cpu_seconds() - began
    print(
      f"{'no mutation':36} {seconds:4.0f} s  {test or 'passed'}", flush=True
    )
    if test:
      return 1
  killed = 0
  for mutation in chosen:
    began = cpu_seconds()
    try:
      test = noticed(root, mutation, marks, options.quick)
      result = f"killed by {test}" if test else "SURVIVED"
    except (OSError, ValueError, SyntaxError, RuntimeError) as error:
      test, result = None, f"NOT APPLIED: {error}"
    killed += test is not None
    seconds = cpu_seconds() - began
    print(f"{mutation.name:36} {seconds:4.0f} s  {result}", flush=True)
  print(f"killed {killed} of {len(chosen)}")
  return int(killed < len(chosen))


if __name__ == "__main__":
  sys.exit(main())
