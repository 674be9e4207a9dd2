"""Mutations of what matters most, each of which some test must notice.

    python -m tests.mutations [--only NAME] [--quick] [--fast] [--no-check]

A mutation replaces one expression under `seedx/`. For each of them the checkout
is copied into a temporary folder and changed there, and the test files that are
named with the mutation run in the copy, fast and slow tests alike, until one of
them fails. Without `--quick`, all tests run where these files notice nothing.
Before that, the same files must pass in a copy without a mutation.

The exit status is 0 if every mutation was noticed. Seconds are CPU seconds. The
copies share the checkout's `.pytest_cache/jax`, and `sys.executable` runs them.
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

# Of each its name, a file under `seedx/`, and files of tests that notice it;
# what occurs once in the file (-), and what comes in its place (+).
_MUTATIONS = """\
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
rainbow-atoms-undiscounted losses/categorical.py losses/every_loss
- ends.discount[:, None] * atoms
+ atoms
normalizer-without-variance-between agents/normalizer.py agents/normalizer
- + rate * new + rate * (1.0 - rate) * apart
+ + rate * new
burn-in-gradient agents/windows.py agents/r2d2
- core_state = jax.lax.stop_gradient(
+ core_state = (
importance-weights-unused agents/value_based.py agents/dqn
- steps.loss * batch.importance_weight
+ steps.loss
lstm-remembers-other-episodes networks/lstm.py networks/lstm
- jnp.where(first[:, None], 0.0, x)
+ x
priorities-of-evicted-windows replay/prioritized.py replay/prioritized
- jnp.where(now == then, windows.leaf, sum_tree.NOWHERE)
+ windows.leaf
unrolls-a-row-late acting/unroll_store.py acting/unroll_store
-   first = count - (layout.length - 1)
+   first = count - (layout.length - 2)
full-batch-refused acting/batcher.py acting/batcher pipelines/seed
- if rows > self._sizes[-1]:
-       raise
+ if rows >= self._sizes[-1]:
+       raise
seeds-overlap-after-resume runtime/seeds.py runtime/slots
- self._place(int(saved))
+ self._place(int(saved) - 1)
acting-keys-without-time pipelines/anakin/program.py pipelines/anakin
- clock.time + offset)
+ offset)
resets-counted-as-steps runtime/counters.py runtime/counters
- int(np.count_nonzero(steps))
+ len(steps)
cartpole-force envs/functional/classic_control.py envs/functional
- 10.0, -10.0
+ 9.99, -9.99
replay-ratio-without-carry replay/ratio.py learning/experience
- self._due += env_steps * self._replay_ratio
+ self._due = env_steps * self._replay_ratio
version-one-too-high learning/published.py learning/learner
- _Version(on_devices, version)
+ _Version(on_devices, version + 1)
micro-batches-weigh-alike learning/updates.py learning/learner
- jnp.maximum(output.weight, _LEAST_WEIGHT)
+ jnp.ones_like(output.weight)
fresh-dropped pipelines/gorila/parameter_server.py pipelines/parameter_server
- <= self._max_staleness
+ < self._max_staleness
long-messages-accepted wire/layout.py wire/wire
- if total != expected or len(message) != expected:
+ if total != expected:
damage-unnoticed checkpoint.py checkpoint
- zlib.crc32(part.data) != column.checksum
+ False
retention-of-one checkpoint.py checkpoint
- steps[-self._keep :]
+ steps[-1:]
"""


class Mutation(NamedTuple):
  """A change of one expression, from `old` to `new`, in one file."""

  name: str
  path: str
  old: str
  new: str
  tests: list[str]

  def apply(self, root):
    """Changes the checkout; raises ValueError if the mutation does not fit."""
    file = root / self.path
    content = file.read_text(encoding="utf-8")
    count = content.count(self.old)
    if count != 1:
      raise ValueError(f"expected {self.old!r} once, found it {count} times")
    content = content.replace(self.old, self.new)
    compile(content, str(file), "exec")  # Or raises SyntaxError.
    file.write_text(content, encoding="utf-8")


def mutations():
  """All mutations."""
  found = []
  for part in re.findall(r"^[^-+].*\n(?:[-+].*\n)+", _MUTATIONS, re.M):
    head, *lines = part.splitlines()
    name, path, *tests = head.split()
    old, new = (
      "\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+"
    )
    tests = [f"tests/{test}_test.py" for test in tests]
    found.append(Mutation(name, f"seedx/{path}", old, new, tests))
  return found


@contextlib.contextmanager
def copy_of(root):
  """A copy of a checkout's files in a temporary folder, with its cache."""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
    folder = pathlib.Path(name).resolve()
    command = ["git", "-C", root, "ls-files", "-zco", "--exclude-standard"]
    for path in subprocess.check_output(command, text=True).split("\0"):
      if (root / path).is_file():  # Else it is deleted, but not yet in git.
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, folder / path)
    # Some tests ask git which files there are.
    for command in (["init", "--quiet"], ["add", "--all"]):
      subprocess.check_call(["git", "-C", folder, *command])
    cache = root / ".pytest_cache" / "jax"
    cache.mkdir(parents=True, exist_ok=True)
    (folder / ".pytest_cache").mkdir()
    (folder / ".pytest_cache" / "jax").symlink_to(cache)
    yield folder


def failure(folder, tests, marks):
  """The first test that fails in a copy; None if all pass, or there are none.

  Raises:
    RuntimeError: the tests did not run, or not with the copy.
  """
  options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(folder)}}
  program = [sys.executable, "-c", "import seedx; print(seedx.__file__)"]
  used = subprocess.check_output(program, text=True, **options).strip()
  if used != str(folder / "seedx" / "__init__.py"):
    raise RuntimeError(f"expected the seedx of {folder}, found {used}")
  words = "-x -q -n 0 --tb=no -o addopts= -m"
  program = [sys.executable, "-m", "pytest", *words.split(), marks, *tests]
  with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
    options |= {"stdout": file, "stderr": file, "start_new_session": True}
    process = subprocess.Popen(program, **options)
    try:
      status = process.wait()
    finally:
      # A test that failed may have left programs behind.
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    file.seek(0)
    output = file.read()
  found = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.M)
  if status == 1 and found:
    return found[1]
  # No test has such marks, or the tests pass and `tests/budget.py` does not.
  if status in (0, 5) or (status == 1 and "TOO DEAR" in output):
    return None
  raise RuntimeError(f"expected results of tests, found:\n{output[-2000:]}")


def noticed(root, mutation, marks, quick):
  """The test that notices a mutation; None if none does."""
  with copy_of(root) as folder:
    mutation.apply(folder)
    found = failure(folder, mutation.tests, marks)
    return found if found or quick else failure(folder, ["tests"], marks)


def cpu_seconds():
  """CPU seconds of all tests so far."""
  return os.times().children_user + os.times().children_system


def main():
  """Applies mutations, and prints which tests notice them."""
  everything = {mutation.name: mutation for mutation in mutations()}
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  add = parser.add_argument
  add("--only", action="append", choices=everything, metavar="NAME")
  add("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
  add("--list", action="store_true", help="print the mutations, and end")
  add("--quick", action="store_true", help="run no other files than named")
  add("--fast", action="store_true", help="run no slow tests")
  add("--no-check", action="store_true", help="do not run unchanged code")
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
      found = failure(folder, tests, marks)
    took = cpu_seconds() - began
    print(f"{'no mutation':36} {took:4.0f} s  {found or 'passed'}", flush=True)
    if found:
      return 1
  killed = 0
  for mutation in chosen:
    began = cpu_seconds()
    try:
      found = noticed(root, mutation, marks, options.quick)
      words = f"killed by {found}" if found else "SURVIVED"
    except (OSError, ValueError, SyntaxError, RuntimeError) as error:
      found, words = None, f"NOT APPLIED: {error}"
    killed += found is not None
    took = cpu_seconds() - began
    print(f"{mutation.name:36} {took:4.0f} s  {words}", flush=True)
  print(f"killed {killed} of {len(chosen)}")
  return int(killed < len(chosen))


if __name__ == "__main__":
  sys.exit(main())
