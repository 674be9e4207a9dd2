"""Installs seedx: `pip install .`, or with the extra `test` to work on it."""

import pathlib

import setuptools

_TEST = [
  "hypothesis",
  "mypy",
  "psutil",
  "pytest",
  "pytest-timeout",
  "pytest-xdist",
  "ruff",
  "scipy",
]

setuptools.setup(
  name="seedx",
  version="0.1.0",
  description="Distributed reinforcement learning in JAX, SEED-style.",
  long_description=(pathlib.Path(__file__).parent / "README.md").read_text(),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=setuptools.find_packages(include=["seedx*", "experiments*"]),
  install_requires=[
    "distrax>=0.1.8",
    "dm-env>=1.6",
    "dm-tree>=0.1.9",
    "envpool>=1.2",
    "flax>=0.12",
    "grpcio>=1.60",
    "gymnasium>=1.0",
    "jax>=0.10",
    "matplotlib>=3.8",
    "numpy>=2.0",
    "optax>=0.2.6",
    "rich>=13",
    "rlax>=0.1.9",
    "tensorboardX>=2.6",
  ],
  extras_require={"test": _TEST, "notebooks": ["jupyterlab", "nbclient"]},
)
