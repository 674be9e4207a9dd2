"""Measures what seedx does with an accelerator, as `seedx trial` does."""

import sys

from seedx.app import accelerator_trial

if __name__ == "__main__":
  sys.exit(accelerator_trial.main())
