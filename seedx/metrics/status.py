"""A view of a run's progress on a terminal, which loads Rich."""

from collections.abc import Mapping
from typing import Any, TextIO

import rich.console
import rich.live
import rich.progress_bar
import rich.table
import rich.text


class Status:
  """A view of progress as three lines of a terminal that change in place."""

  def __init__(self, stream: TextIO) -> None:
    self._bar: Any = None
    self._live = rich.live.Live(
      console=rich.console.Console(file=stream, highlight=False),
      auto_refresh=False,
    )

  def show(self, progress: Mapping[str, str]) -> None:
    """Replaces the three lines."""
    percent, steps = progress["percent"], progress["steps"]
    bar = rich.table.Table.grid(padding=(0, 2))
    bar.add_column()
    bar.add_column(no_wrap=True)
    bar.add_row(
      rich.progress_bar.ProgressBar(
        100, int(percent[:-1]), width=32, complete_style="cyan"
      ),
      f"{percent}  {steps.replace('/', ' of ')} {progress['unit']}",
    )
    figures = "{rate} {unit}/s  return {episode_return}{info}"
    figures += "  policy lag {policy_lag}  {left} left"
    # A wrapped line would make the status jump in a narrow terminal.
    one_line: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}
    lines = (
      rich.text.Text(figures.format(**progress), **one_line),
      rich.text.Text.assemble(
        progress["label"],
        (progress["bottleneck"], "bold"),
        progress["evidence"],
        **one_line,
      ),
    )
    self._live.start()  # Hides the cursor; a second call does nothing.
    self._live.update(rich.console.Group(bar, *lines), refresh=True)
    self._bar = bar

  def close(self) -> None:
    """Leaves only the bar, without momentary values; shows the cursor."""
    if self._bar is not None:
      self._live.update(self._bar, refresh=True)
    self._live.stop()
