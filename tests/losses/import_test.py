"""The losses can be used without the rest of the framework."""

import pathlib
import subprocess
import sys


def test_losses_import_no_heavy_packages():
  script = (
    "import sys; import seedx.losses as losses;"
    "heavy = {'grpc', 'envpool', 'flax'} & set(sys.modules);"
    "assert not heavy, heavy; assert losses.vtrace"
  )
  subprocess.run(
    [sys.executable, "-c", script],
    check=True,
    cwd=pathlib.Path(__file__).parents[2],
  )
