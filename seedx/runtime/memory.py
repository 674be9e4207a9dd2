"""The free memory of a device."""

import pathlib

import jax

_ROOT = pathlib.Path("/")


def free_bytes(device: jax.Device, root: pathlib.Path = _ROOT) -> int | None:
  """Returns the free bytes of a device's memory; None if they are unknown.

  On CPU these are `free_bytes_of_machine`.
  """
  if device.platform != "cpu":
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
      return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
  return free_bytes_of_machine(root)


def free_bytes_of_machine(root: pathlib.Path = _ROOT) -> int | None:
  """Returns the machine's available memory in bytes; None if it is unknown.

  It is less if the limits of this process's control groups (containers, SLURM)
  leave less.
  """
  free = [*_available(root), *_left_by_groups(root)]
  return min(free) if free else None


def _available(root: pathlib.Path) -> list[int]:
  """Returns Linux's estimate of the memory left without swapping, if any."""
  for line in _text(root / "proc/meminfo").splitlines():
    if line.startswith("MemAvailable:"):
      return [int(line.split()[1]) * 1024]
  return []


def _left_by_groups(root: pathlib.Path) -> list[int]:
  free = []
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
    innermost = folder / path.lstrip("/")
    for group in (innermost, *innermost.parents):
      limit, used = (_text(group / name).strip() for name in names[:2])
      if limit.isdecimal() and used.isdecimal():
        # Linux drops inactive cached files when memory is short.
        stat = dict(
          line.split() for line in _text(group / "memory.stat").splitlines()
        )
        unused = int(stat.get(names[2], 0))
        free.append(max(0, int(limit) - int(used) + unused))
      if group == folder:
        break
  return free


def _text(path: pathlib.Path) -> str:
  try:
    return path.read_text()
  except (OSError, ValueError):
    return ""
