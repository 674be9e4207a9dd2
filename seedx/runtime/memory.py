"""How much memory a device has left."""

import pathlib

import jax

_ROOT = pathlib.Path("/")


def free_bytes(device: jax.Device, root: pathlib.Path = _ROOT) -> int | None:
  """Returns what a device's memory has room for; None where that is unknown.

  On CPU it is the machine's available memory, or what the limits of this
  process's control groups (containers, SLURM) leave of it.

  Args:
    device: the device.
    root: of the file system.
  """
  if device.platform != "cpu":
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
      return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
  found = [*_available(root), *_left_by_groups(root)]
  return min(found) if found else None


def _available(root: pathlib.Path) -> list[int]:
  """What Linux estimates that programs can have without swapping."""
  for line in _text(root / "proc/meminfo").splitlines():
    if line.startswith("MemAvailable:"):
      return [int(line.split()[1]) * 1024]
  return []


def _left_by_groups(root: pathlib.Path) -> list[int]:
  """What each control group above this process leaves, where it has a limit."""
  found = []
  for line in _text(root / "proc/self/cgroup").splitlines():
    _, controllers, path = line.split(":", 2)
    folder = root / "sys/fs/cgroup"
    names = ("memory.max", "memory.current", "inactive_file")
    if controllers:
      if "memory" not in controllers.split(","):
        continue
      folder /= "memory"
      names = (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
      )
    own = folder / path.lstrip("/")
    for group in (own, *own.parents):
      limit, used = (_text(group / name).strip() for name in names[:2])
      if limit.isdecimal() and used.isdecimal():
        # Files that nothing uses now make room for others.
        stat = dict(
          line.split() for line in _text(group / "memory.stat").splitlines()
        )
        unused = int(stat.get(names[2], 0))
        found.append(max(0, int(limit) - int(used) + unused))
      if group == folder:
        break
  return found


def _text(path: pathlib.Path) -> str:
  try:
    return path.read_text()
  except (OSError, ValueError):
    return ""
