"""The rows whose runs would compute something else today."""

import collections
import contextlib
import importlib.util
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.results import data, fingerprints
from seedx.envs import config

NOT_MEASURED, OLD, UNKNOWN = "not measured", "old", "unknown"
CURRENT, SAME_AGENT, STALE = "current", "agent unchanged", "stale"


def states(rows: Sequence[data.Row]) -> dict[str, str]:
  """Returns the state of each row at the checkout's HEAD, by name.

  * not measured: there is no outcome.
  * old: some outcome has no fingerprint, being older than this program.
  * current: all fingerprints are those of today; for pipelines other than
    `sync` and `anakin`, "agent unchanged".
  * stale: a fingerprint differs, or the command does not work any more.
  * unknown: a fingerprint is of another kind of CPU or version of JAX, and
    cannot be computed for its commit here, or the environment's library is not
    installed.
  """
  result = {row.name: _without_training(row) for row in rows}
  measured = [row for row in rows if not result[row.name]]
  today = fingerprints.of_rows([row.name for row in measured])
  elsewhere = _of_commits(measured)
  for row in measured:
    fingerprinted = {
      outcome.fingerprint
      if _is_of_here(outcome)
      else elsewhere[outcome.commit or ""].get(row.name)
      for outcome in row.outcomes.values()
    }
    if row.name not in today or (fingerprinted - {None, today[row.name]}):
      result[row.name] = STALE
    elif None in fingerprinted:
      result[row.name] = UNKNOWN
    else:
      of_agent = fingerprints.is_of_agent(row.words)
      result[row.name] = SAME_AGENT if of_agent else CURRENT
  return result


def _without_training(row: data.Row) -> str:
  """Returns the state of a row without fingerprints, else ""."""
  if not row.outcomes:
    return NOT_MEASURED
  for prefix in config.LIBRARY_PREFIXES:
    is_of_library = any(word.startswith(prefix) for word in row.words)
    if is_of_library and not importlib.util.find_spec(prefix[:-1]):
      return UNKNOWN
  has_all = all(x.fingerprint for x in row.outcomes.values())
  return "" if has_all else OLD


def _is_of_here(outcome: data.Outcome) -> bool:
  """Returns whether its fingerprint can be compared with those of here."""
  jax = (outcome.versions or {}).get("jax")
  return (outcome.cpu, jax) == (data.cpu(), data.versions()["jax"])


def _of_commits(
  rows: Sequence[data.Row],
) -> Mapping[str, Mapping[str, str]]:
  """Computes, here, the fingerprints that are of other CPUs or versions."""
  names: dict[str, set[str]] = collections.defaultdict(set)
  for row in rows:
    for outcome in row.outcomes.values():
      if not _is_of_here(outcome):
        names[outcome.commit or ""].add(row.name)
  digests = {}
  for commit, of_commit in names.items():
    with _checkout(commit) as root:
      digests[commit] = (
        fingerprints.of_rows(sorted(of_commit), root) if root else {}
      )
  return digests


@contextlib.contextmanager
def _checkout(commit: str) -> Iterator[pathlib.Path | None]:
  """Yields a checkout of a commit; None if the commit is unknown."""
  if not commit or not data.git("cat-file", "-t", commit):
    yield None
    return
  with tempfile.TemporaryDirectory(prefix="seedx-") as folder:
    root = pathlib.Path(folder, "checkout")
    data.git("worktree", "add", "--detach", str(root), commit)
    try:
      yield root if root.is_dir() else None
    finally:
      data.git("worktree", "remove", "--force", str(root))
