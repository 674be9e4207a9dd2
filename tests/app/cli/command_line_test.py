"""Settings of configs, and the command lines that change them."""

import dataclasses
import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest

from seedx import types
from seedx.app.cli import command_line
from seedx.app.settings import configs, wording
from tests import programs


@dataclasses.dataclass(frozen=True)
class Env:
  """An environment.

  Attributes:
    env: name in EnvPool, or MODULE:FACTORY: one
      of yours.
    env_options: options of EnvPool or your factory.
    info_keys: info entries that join the observation.
  """

  env: str = "CartPole-v1"
  env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  info_keys: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Base:
  """Settings of all agents.

  Attributes:
    learning_rate: step size of Adam.
    discount: discount per env step.
  """

  learning_rate: float = 2e-3
  discount: float = types.setting(0.99, low=0, high=1)

  def __post_init__(self):
    types.check_settings(self)


class Plain:
  pass


@dataclasses.dataclass(frozen=True)
class Agent(Base, Plain):
  """An agent.

  Attributes:
    discount: discount of later rewards.
    td_lambda: weight of longer returns.
    double: whether there are two networks.
    recurrent: whether there is a memory.
    hidden_sizes: units of the layers.
    image_torso: the network for images.
  """

  td_lambda: float = 1.0
  double: bool = True
  recurrent: bool = False
  hidden_sizes: tuple[int, ...] = (64, 64)
  image_torso: Literal["nature", "impala"] = "nature"
  make_network: Callable[[], Any] | None = None
  learning_rate_end: float | None = None


@dataclasses.dataclass(frozen=True)
class Replay:
  """A replay.

  Attributes:
    replay_capacity: env steps that are kept.
  """

  replay_capacity: int = 100


@dataclasses.dataclass
class Thawed:
  inner: int = 3


@dataclasses.dataclass(frozen=True)
class Run:
  """A run.

  Attributes:
    num_envs: number of environments.
    seconds: seconds to wait.
    total_steps: env steps to learn for.
    run_dir: directory of the results; runs/<experiment>/<time> if empty.
  """

  num_envs: int
  env: Env = Env()
  agent: Agent = dataclasses.field(default_factory=lambda: Agent(td_lambda=0.9))
  replay: Replay | None = None
  kind: type = Replay
  thawed: Thawed = dataclasses.field(default_factory=Thawed)
  few: int = types.setting(5, low=1, high=9)
  seconds: float = types.setting(5.0, low=0)
  total_steps: int = 2_000
  run_dir: str = ""
  derived: int = dataclasses.field(init=False, default=7)

  def __post_init__(self):
    types.check_settings(self)
    types.check_range("num_envs", self.num_envs, 1, types.MAX_VALUE)
    if self.total_steps < self.num_envs:
      raise types.ConfigError(
        f"expected total_steps of at least\n{self.num_envs} for the num_envs,"
        f" found {self.total_steps} of the expected steps"
      )


@dataclasses.dataclass(frozen=True)
class Plot:
  """A plot.

  Attributes:
    metric: metric to plot.
    run_dirs: directories of the runs.
    smooth: steps to average over.
    log: whether the axis is logarithmic.
  """

  metric: str = ""
  run_dirs: tuple[str, ...] = ()
  smooth: int = 1
  log: bool = False

  def __post_init__(self):
    if "bad" in self.run_dirs:
      raise types.ConfigError("expected run_dirs of runs, found bad")


RUN = Run(num_envs=4)


def parse(words, config=RUN, **options):
  argv = words.split(" ") if isinstance(words, str) else words
  argv = [word for word in argv if word] if isinstance(words, str) else argv
  return command_line.parse(config, argv, "a.program", "Does it.", **options)


def plot(words):
  return parse(words, Plot(), positional=("metric", "run_dirs"))


def refused(capfd, call, *arguments, **options):
  """Returns the one line that a call prints before it exits with status 2."""
  capfd.readouterr()
  with pytest.raises(SystemExit) as caught:
    call(*arguments, **options)
  assert caught.value.code == 2
  out, err = capfd.readouterr()
  assert out == ""
  assert err.startswith("error: ") and err.endswith("; see --help\n")
  assert err.count("\n") == 1
  return err.removeprefix("error: ").removesuffix("; see --help\n")


def helped(capfd, config=RUN, **options):
  with pytest.raises(SystemExit) as caught:
    parse("--help", config, **options)
  assert caught.value.code == 0
  out, err = capfd.readouterr()
  assert err == ""
  return out


# Settings.


def test_settings_are_the_plain_fields_at_any_depth_in_order():
  names = """num_envs env env_options info_keys learning_rate discount
    td_lambda double recurrent hidden_sizes image_torso few seconds total_steps
    run_dir"""
  assert list(configs.settings(RUN)) == names.split()


def test_a_setting_has_its_sentence_and_its_class_default():
  settings = configs.settings(Run(4, env=Env("Pong-v5")))
  env = settings["env"]
  assert env.default == "CartPole-v1"
  assert env.help == "name in EnvPool, or MODULE:FACTORY: one of yours."
  # This is the default of the class `Agent`; the agent of `Run` has 0.9.
  assert settings["td_lambda"].default == 1.0
  # A sentence comes from the nearest class that has one.
  assert settings["learning_rate"].help == "step size of Adam."
  assert settings["discount"].help == "discount of later rewards."
  assert settings["learning_rate"].owner is Agent


def test_a_sentence_is_an_entry_of_the_docstring():
  @dataclasses.dataclass(frozen=True)
  class Other:
    """Something else.

    Args:
        two: another section.

    Attributes:
        one: first: of
            two lines.
        two (int): second.

    Raises:
        one: nothing.
    """

    one: int = 1
    two: int = 2

  helps = {name: x.help for name, x in configs.settings(Other()).items()}
  assert helps == {"one": "first: of two lines.", "two": "second."}


def test_two_settings_with_one_name_are_an_error():
  @dataclasses.dataclass(frozen=True)
  class Other:
    num_envs: int = 1

  config = Run(4, replay=Other())
  with pytest.raises(ValueError, match=r"num_envs, .*Run and .*Other"):
    configs.settings(config)


def test_replaced_changes_settings_at_any_depth():
  network = dict
  config = dataclasses.replace(RUN, agent=Agent(make_network=network))
  replaced = configs.replaced(
    config, {"total_steps": 9, "td_lambda": 0.5, "discount": 0.5, "env": "x"}
  )
  agent = Agent(make_network=network, td_lambda=0.5, discount=0.5)
  assert replaced == Run(4, env=Env("x"), agent=agent, total_steps=9)
  assert config.total_steps == 2_000
  assert configs.replaced(config, {}) == config


def test_replaced_checks_all_changes_at_once():
  @dataclasses.dataclass(frozen=True)
  class Pair:
    low: int = 0
    high: int = 1

    def __post_init__(self):
      if self.low >= self.high:
        raise types.ConfigError("expected low below high")

  pair = Pair()
  assert configs.replaced(pair, {"high": 9, "low": 8}) == Pair(8, 9)


def test_a_name_without_a_setting_is_an_error():
  for name in ("lerning_rate", "make_network", "replay_capacity", "agent"):
    with pytest.raises(ValueError, match=f"num_envs, .*found {name}, zzz$"):
      configs.replaced(RUN, {name: 1.0, "td_lambda": 1.0, "zzz": 1.0})


# Values that are accepted.


@pytest.mark.parametrize(
  ("words", "name", "expected"),
  [
    ("--total-steps 7 --total-steps=8", "total_steps", 8),
    ("--few 1", "few", 1),
    ("--few 9", "few", 9),
    ("--discount 5e-4", "discount", 5e-4),
    ("--discount 1", "discount", 1.0),
    ("--td_lambda -inf", "td_lambda", -math.inf),
    ("--run-dir=--x=y", "run_dir", "--x=y"),
    ("--hidden-sizes 3,4", "hidden_sizes", (3, 4)),
    ("--hidden-sizes ,", "hidden_sizes", ()),
    ("--info-keys a,b", "info_keys", ("a", "b")),
    ("--env-options ,", "env_options", {}),
    (
      '--env-options a=[1,2],b={"c":[3,"x,y"]},d="e,f",g=[h',
      "env_options",
      {"a": [1, 2], "b": {"c": [3, "x,y"]}, "d": "e,f", "g": "[h"},
    ),
    ("--no-double", "double", False),
    ("--no-recurrent --recurrent", "recurrent", True),
    ("--image-torso impala", "image_torso", "impala"),
    (
      "--env-options a=1,b=True,c=x,d=null,e=1e-3,f=false,g=k=v,h=False",
      "env_options",
      dict(a=1, b=True, c="x", d=None, e=1e-3, f=False, g="k=v", h=False),
    ),
  ],
)
def test_a_flag_sets_its_setting_and_no_other(words, name, expected):
  config = parse(words)
  value = configs.values(config)[name]
  assert value == expected and type(value) is type(expected)
  assert config == configs.replaced(RUN, {name: expected})


def test_settings_that_are_not_given_keep_their_values():
  config = Run(
    8,
    env=Env("Pong-v5", {"a": "1"}),
    agent=Agent(recurrent=True, make_network=dict),
    replay=Replay(7),
  )
  assert parse("", config) == config
  given = parse("--replay-capacity 9 --no-recurrent", config)
  assert given.replay == Replay(9)
  assert given.agent == Agent(make_network=dict)


def test_positional_words_may_come_before_or_after_flags():
  expected = Plot("loss", ("a", "b,c"), smooth=3, log=True)
  for words in (
    "loss a b,c --smooth 3 --log",
    "--smooth 3 --log loss a b,c",
    "loss --log a --smooth=3 b,c",
    "--smooth 3 --log -- loss a b,c",
  ):
    assert plot(words) == expected
  assert plot("loss a").run_dirs == ("a",)
  last = parse("a b loss", Plot(), positional=("run_dirs", "metric"))
  assert last == Plot("loss", ("a", "b"))


def test_read_some_reads_settings_and_ignores_the_rest():
  argv = "word --env-options a=1 --foo 3 --few x --recurrent --help -h"
  names = ("env", "env_options", "recurrent", "double")
  values = command_line.read_some(RUN, names, [*argv.split(), "--no-double"])
  assert values == {
    "env": "CartPole-v1",
    "env_options": {"a": 1},
    "recurrent": True,
    "double": False,
  }
  assert command_line.read_some(RUN, (), ["--env", "x"]) == {}


def test_read_some_refuses_wrong_values_and_names(capfd):
  error = refused(capfd, command_line.read_some, RUN, ("env",), ["--env"])
  assert "a value after --env" in error
  with pytest.raises(ValueError, match=r"found agent, foo$"):
    command_line.read_some(RUN, ("env", "foo", "agent"), [])


# Values that are refused.


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("1e6", 1_000_000),
    ("1_000_000", 1_000_000),
    ("120e-1", 12),
    ("9007199254740993.0", 2**53 + 1),
  ],
)
def test_a_whole_number_may_have_any_notation(text, value):
  run = parse(f"--total-steps {text} --hidden-sizes 64,{text}")
  assert run.total_steps == value
  assert run.agent.hidden_sizes == (64, value)
  assert type(run.total_steps) is int


@pytest.mark.parametrize(
  ("value", "message"),
  [(1e6, r"1000000\.0; write 1_000_000$"), (1.5, r"1\.5$")],
)
def test_a_float_in_place_of_an_int_is_refused_in_python(value, message):
  with pytest.raises(types.ConfigError, match=f"whole number, found {message}"):
    Run(num_envs=2, total_steps=value)


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("--foo", "--foo"),
    ("--total-step=" + "1" * 21, "(nearest: --total-steps)"),
    ("--no_doubel=1 --foo", "(nearest: --no-double, --double)"),
    ("--gamma 0.9", "unrecognized arguments: --gamma (here: --discount)"),
    ("--gae_lambda=1", "--gae_lambda=1 (here: --td-lambda)"),
    ("--few 3 word", "unrecognized arguments: word"),
    ("--double=True", "a switch without a value, found --double=True"),
    (
      "--image-torso vgg",
      "--image-torso: expected nature, impala, found 'vgg'",
    ),
    ("--few x", "--few as a whole number, found 'x'; write a thousand as"),
    ("--total-steps 1.5", "a whole number, found '1.5'; write a thousand as"),
    ("--total-steps 1e999999999", "as a whole number, found '1e999999999'"),
    ("--total-steps inf", "as a whole number, found 'inf'"),
    ("--hidden-sizes 64,1.5", "as whole numbers N,N, found '64,1.5'; write"),
    ("--seconds x", "--seconds as a number, found 'x'"),
    ("--seconds ٣", "--seconds as a number, found '٣'"),
    ("--env-options a=" + "[" * 10_000, "or as a JSON object, found"),
    ("--env-options a=1,b", "or as a JSON object, found 'a=1,b'"),
    ("--env", "a value after --env"),
    ("--td-lambda -1 --run_dir -x", "a value after --run_dir"),
    ("--num-envs 0", "--num-envs of at least 1, found 0"),
    ("--few 10", "--few from 1 to 9, found 10"),
    ("--seconds nan", "--seconds of at least 0, found nan"),
    (
      "--total-steps 3",
      "--total-steps of at least 4 for the num_envs, found 3",
    ),
  ],
)
def test_a_wrong_command_line_exits_with_2_and_one_line(words, reason, capfd):
  assert reason in refused(capfd, parse, words)


@pytest.mark.parametrize(
  ("words", "reason"),
  [
    ("", "METRIC"),
    ("loss --smooth 3", "RUN_DIRS"),
    ("loss --run-dirs a", "--run-dirs"),
    ("loss bad", "expected RUN_DIRS of runs, found bad"),
  ],
)
def test_wrong_positional_words_exit_with_2_and_one_line(words, reason, capfd):
  assert reason in refused(capfd, plot, words)


# Help.


def test_help_is_plain_and_begins_with_usage_and_description(capfd):
  text = "Trains.\n\n  python -m a.program --env X\n\nMore.\n"
  with pytest.raises(SystemExit):
    command_line.parse(RUN, ["--few", "x", "-h"], "a.program", text)
  output = capfd.readouterr().out
  begin = "usage: a.program [options]\n\n"
  assert output.startswith(begin + text.strip() + "\n\noptions:\n  -h, --help ")
  assert output.isascii() and "\x1b" not in output


def test_help_begins_with_the_settings_often_changed(capfd):
  output = helped(capfd, often=("few", "env", "double"))
  first, *parts = output.partition("often changed:\n")[2].split("\n\n")
  flags = re.compile(r"(?m)^  (--[\w-]+)")
  assert flags.findall(first) == ["--few", "--env", "--double"]
  rest = flags.findall("\n".join(parts))
  expected = {wording.flag(name) for name in configs.settings(RUN)}
  assert sorted([*rest, "--few", "--env", "--double"]) == sorted(expected)


def test_help_has_each_options_placeholder_and_sentence(capfd):
  given = {"env_options": {"a": 1}, "hidden_sizes": ()}
  output = " ".join(helped(capfd, configs.replaced(RUN, given)).split())
  for text in (
    "--num-envs N number of environments (default: 4)",
    "--image-torso {nature,impala} the network for images (default: nature",
    "--double, --no-double whether there are two networks (default: True)",
    "env: --env ",
    "longer returns (default: 0.9, from a preset; 1.0 without it)",
    "your factory (default: a=1, from a preset)",
    "layers (default: empty, from a preset; 64,64 without it)",
  ):
    assert text in output
  assert "make" not in output and "derived" not in output


def test_help_shows_values_that_can_be_given_again(capfd):
  options = dict(a=1, b=True, c="x", d=None, e="1", f="True", g="null", h=0.5)
  options["i"] = "x,j=2"
  output = "".join(helped(capfd, Run(4, env=Env(env_options=options))).split())
  begin = "--env-optionsOPTIONSoptionsofEnvPooloryourfactory(default:"
  shown = output[output.index(begin) + len(begin) :].partition(",fromapreset")[
    0
  ]
  assert parse(["--env-options", shown]).env.env_options == options


def test_help_has_the_positional_words(capfd):
  output = helped(capfd, Plot(), positional=("metric", "run_dirs"))
  usage = "usage: a.program METRIC RUN_DIRS [RUN_DIRS ...] [options]"
  assert output.startswith(usage + "\n")
  assert "METRIC metric to plot." in " ".join(output.split())
  assert "--metric" not in output and "--run-dirs" not in output


def test_help_is_as_wide_as_the_terminal(capfd, monkeypatch):
  for columns in (60, 120):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert columns / 2 < max(map(len, helped(capfd).splitlines())) <= columns


def python(*words):
  """Runs Python with these words, in a process of its own."""
  return subprocess.run(
    [sys.executable, *words],
    cwd=programs.ROOT,
    capture_output=True,
    text=True,
    timeout=600,
  )


def test_python_without_docstrings_plots_but_does_not_train():
  done = python("-OO", "-m", "seedx", "plot", "--help")
  assert done.returncode == 0 and "--output" in done.stdout
  done = python("-OO", "-m", "seedx", "train", "ppo")
  assert done.returncode == 2
  assert done.stderr.startswith("error: expected Python without -OO")
  assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_run_needs_no_assertions(tmp_path):
  words = ["train", "seed_vtrace", "--total-steps", "2000", "--quiet"]
  run_dir = str(tmp_path / "run")
  done = python("-O", "-m", "seedx", *words, "--run-dir", run_dir)
  assert done.returncode == 0, done.stderr
  done = python("-O", "-m", "seedx", "evaluate", run_dir, "--episodes", "2")
  assert done.returncode == 0, done.stderr


def test_choices_are_checked_where_annotations_are_text():
  kind = "Literal['one', 'other']"
  chosen = dataclasses.make_dataclass(
    "Chosen", [("mode", kind, "one")], namespace={"__module__": __name__}
  )
  types.check_settings(chosen("other"))
  with pytest.raises(types.ConfigError, match="mode one or other, found third"):
    types.check_settings(chosen("third"))


def test_annotations_without_a_type_at_run_time_are_accepted():
  odd = dataclasses.make_dataclass("Odd", [("mode", "NotImported", "one")])
  types.check_settings(odd("other"))
