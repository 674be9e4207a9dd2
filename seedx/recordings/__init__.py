"""Recordings: episodes on disk, for agents that learn from them later."""

from seedx.recordings.minari_files import opened
from seedx.recordings.recorder import Recorder
from seedx.recordings.storage import (
  Description,
  Episode,
  Recording,
  Writer,
)

__all__ = [
  "Description",
  "Episode",
  "Recorder",
  "Recording",
  "Writer",
  "opened",
]
