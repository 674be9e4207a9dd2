"""Installs seedx: `pip install .`, or with the extra `test` for development."""

import pathlib
import re

import setuptools

# Requirements of `python -m colab.build`.
_NOTEBOOKS = ["ipykernel", "jupytext", "nbclient", "nbformat"]

# Requirements of `python -m docs.build`.
_DOCS = ["furo>=2025.7", "myst-nb>=1.3", "sphinx>=8.2"]

# Requirements of a search in games, and of more games than seedx's own.
_GAMES = ["mctx>=0.0.6", "pgx>=2.6"]

_TEST = [
  *_DOCS,
  *_GAMES,
  *_NOTEBOOKS,
  "coverage>=7.10",
  "hypothesis",
  "imageio-ffmpeg",
  "mypy",
  "psutil>=6",
  "pytest",
  "pytest-timeout",
  "pytest-xdist",
  "pyyaml",
  "ruff",
]
_RAY = ["ray>=2.60"]
_SWEEP = ["optuna>=4.5"]
# Requirements of data sets in Minari's format.
_OFFLINE = ["minari[hdf5]>=0.5.3"]
# Environments of other libraries of JAX functions; gymnax needs JAX below 0.12
# and Gymnasium below 1.4, and Brax is not maintained.
_LIBRARIES = {
  "gymnax": ["gymnax>=1.0.1"],
  "craftax": ["craftax>=1.6"],
  "brax": ["brax>=0.14"],
}
# What the fast tests do not need, since it takes long to install.
_CI = [*_TEST, *_RAY, *_SWEEP, *_OFFLINE, "minatar"]

_ROOT = pathlib.Path(__file__).parent
_PACKAGE = (_ROOT / "seedx/__init__.py").read_text()
_NAMES = dict(re.findall(r'^(\w+) = "(.*)"', _PACKAGE, re.MULTILINE))
_URL = f"https://github.com/{_NAMES['REPOSITORY']}"
# Extras with the accelerator support of JAX; the default is the CPU.
_ACCELERATORS = {x: [f"jax[{x}]>=0.10"] for x in ("cuda12", "cuda13", "tpu")}

setuptools.setup(
  name="seedx",
  version=_NAMES["__version__"],
  description=(
    "Distributed reinforcement learning in JAX: agents (PPO, DQN, SAC, ...) in"
    " the architectures of the field (A3C, Ape-X, IMPALA, SEED, Anakin, ...)."
  ),
  long_description=(_ROOT / "README.md").read_text(),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  url=_URL,
  project_urls={
    "Changes": f"{_URL}/blob/main/CHANGELOG.md",
    "Issues": f"{_URL}/issues",
  },
  keywords=[
    "reinforcement learning",
    "distributed",
    "jax",
    "flax",
    "envpool",
    "IMPALA",
    "V-trace",
    "SEED",
    "PPO",
    "A2C",
    "A3C",
    "DQN",
    "Ape-X",
    "DDPG",
    "D4PG",
    "TD3",
    "SAC",
    "AlphaZero",
  ],
  classifiers=[
    "Development Status :: 4 - Beta",
    "Intended Audience :: Science/Research",
    "Operating System :: POSIX :: Linux",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
    "Typing :: Typed",
  ],
  python_requires=">=3.11",
  # In the repository, the experiments are outside the package.
  packages=[*setuptools.find_packages(include=["seedx*"]), "seedx.experiments"],
  package_dir={"seedx.experiments": "experiments"},
  package_data={"seedx": ["py.typed"], "seedx.app": ["*.pyi"]},
  entry_points={"console_scripts": ["seedx = seedx.__main__:program"]},
  install_requires=[
    "chex>=0.1.90",
    "cloudpickle>=3",
    "distrax>=0.1.8",
    "dm-env>=1.6",
    "dm-tree>=0.1.9",
    "envpool>=1.2",
    "flatbuffers>=24",
    "flax>=0.12",
    "grpcio>=1.60",
    "gymnasium>=1.0",
    "jax>=0.10",
    "matplotlib>=3.8",
    "numpy>=2.0",
    "optax>=0.2.6",
    "pillow>=10",
    "rich>=13",
    "rlax>=0.1.9",
    "scipy>=1.11",
    "tensorboardX>=2.6",
  ],
  extras_require={
    "test": _TEST,
    "ci": _CI,
    "docs": _DOCS,
    "games": _GAMES,
    "offline": _OFFLINE,
    "notebooks": _NOTEBOOKS,
    "ray": _RAY,
    "sweep": _SWEEP,
    **_LIBRARIES,
    **_ACCELERATORS,
  },
)
