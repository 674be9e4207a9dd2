"""Draws the pipelines: a figure of each one, and a figure of all.

  python -m experiments.figures.pipelines

Both are made from the same descriptions. The SVG files have light or dark
colours, as the reader's system prefers, and can be read at a width of 400
pixels (the figure of all pipelines: 800).
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from xml.sax import saxutils

_FOLDER = pathlib.Path(__file__).parent
_WIDTH, _HEIGHT, _GAP = 600, 318, 16
# Distance between the boxes of a stack, which stands for any number of them.
_STEP = 6
_ROUND = {"process": 12, "params": 12, "thread": 0}

# The colours of boxes are Okabe and Ito's.
_STYLE = """
    text { font-family: sans-serif; font-size: 18px; fill: #111; }
    .middle { text-anchor: middle; }
    .end { text-anchor: end; }
    .name { font-size: 26px; font-weight: bold; }
    .place { font-weight: bold; font-size: 17px; fill: #333; }
    .wire { font-style: italic; fill: #444; }
    .ground { fill: #fff; }
    .panel { fill: #f2f2f2; }
    .box { stroke: #111; stroke-width: 1.5; }
    .process { fill: #fff; stroke: #333; stroke-width: 2; }
    .thread { fill: #fff; stroke: #777; }
    .buffer { fill: #e2e2e2; }
    .env { fill: #f0e442; }
    .act { fill: #e69f00; }
    .replay { fill: #56b4e9; }
    .learn { fill: #0072b2; }
    .params { fill: #cc79a7; }
    .in-learn { fill: #fff; }
    .data, .copy { fill: none; stroke: #111; stroke-width: 2.2; }
    .data, .copy { marker-end: url(#head); }
    .copy { stroke-dasharray: 7 4.5; }
    .head { fill: #111; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .place { fill: #c9d1d9; }
      .wire { fill: #aab4be; }
      .ground { fill: #0d1117; }
      .panel { fill: #161b22; }
      .process, .thread { fill: #0d1117; stroke: #8b949e; }
      .box { stroke: #c9d1d9; }
      .buffer { fill: #30363d; }
      .in-env, .in-act, .in-replay, .in-params { fill: #111; }
      .data, .copy { stroke: #e6edf3; }
      .head { fill: #e6edf3; }
    }
"""
_HEAD = (
  '<defs><marker id="head" viewBox="0 0 12 12" refX="11" refY="6"'
  ' markerWidth="12" markerHeight="12" markerUnits="userSpaceOnUse"'
  ' orient="auto"><path class="head" d="M0 1 L12 6 L0 11 Z"/></marker></defs>'
)


@dataclasses.dataclass(frozen=True)
class Figure:
  """The figure of a pipeline.

  Attributes:
    source: year and paper.
    about: the figure in words, read aloud by screen readers.
    parts: SVG elements, from back to front.
  """

  source: str
  about: str
  parts: Sequence[str]


def _text(text: str, x: float, y: float, style: str = "middle") -> str:
  """Returns a text at a point of its baseline."""
  content = saxutils.escape(text)
  return f'<text class="{style}" x="{x:g}" y="{y:g}">{content}</text>'


def _box(
  kind: str,
  x: float,
  y: float,
  width: float,
  height: float,
  label: str = "",
  copies: int = 1,
) -> str:
  """Returns a box with the lines of a label, in front of its other copies.

  The label of a process or a thread stands at its lower left corner.
  """
  parts = []
  for k in reversed(range(copies)):
    left, top = x - _STEP * k, y + _STEP * k
    if kind == "replay":
      arc = f"a{width / 2:g} 6 0 0"
      parts.append(
        f'<path class="box replay" d="M{left:g} {top + 6:g} v{height - 12:g}'
        f" {arc} 0 {width:g} 0 v{12 - height:g} {arc} 0 {-width:g} 0"
        f' {arc} 0 {width:g} 0"/>'
      )
      continue
    parts.append(
      f'<rect class="box {kind}" x="{left:g}" y="{top:g}" width="{width:g}"'
      f' height="{height:g}" rx="{_ROUND.get(kind, 4)}"/>'
    )
  if kind in ("process", "thread"):
    parts.append(_text(label, x + 14, y + height - 12, "place"))
  else:
    lines = label.split("\n")
    middle = y + height / 2 + 6 - 10 * (len(lines) - 1)
    middle += 4 * (kind == "replay")
    parts += [
      _text(line, x + width / 2, middle + 20 * k, f"middle in-{kind}")
      for k, line in enumerate(lines)
    ]
  return "\n".join(parts)


def _data(path: str) -> str:
  """Returns an arrow along an SVG path."""
  return f'<path class="data" d="M{path}"/>'


def _copy(path: str) -> str:
  """Returns the dashed arrow of parameters along an SVG path."""
  return f'<path class="copy" d="M{path}"/>'


_SEED = Figure(
  "2019 · SEED RL (Espeholt et al.)",
  "Thin actors send observations to the learner's process, and receive actions."
  " The learner's process acts for all actors, collects unrolls, and learns.",
  [
    _box("process", 30, 80, 124, 176, "thin actors", copies=3),
    _box("env", 42, 94, 100, 66, "envs"),
    _box("process", 266, 80, 316, 222),
    _text("learner", 280, 184, "place"),
    _text("process", 280, 206, "place"),
    _box("buffer", 280, 94, 78, 36, "batcher"),
    _box("act", 394, 94, 172, 62, "act for all", copies=2),
    _box("buffer", 486, 186, 80, 46, "unroll\nstore"),
    _box("buffer", 436, 258, 130, 32, "bounded queue"),
    _box("learn", 286, 238, 112, 52, "learn", copies=2),
    _data("142 112 H280"),
    _text("observations", 210, 104),
    _text("gRPC", 210, 133, "middle wire"),
    _data("388 144 H142"),
    _text("actions", 210, 164),
    _data("358 112 H394"),
    _data("526 156 V186"),
    _data("526 232 V258"),
    _text("unrolls", 516, 251, "end"),
    _data("436 274 H398"),
    _copy("390 238 V162"),
    _text("parameters", 399, 182, ""),
  ],
)

_SYNC = Figure(
  "A2C 2016 · PPO 2017 · DQN 2015",
  "One process: environments step together, the agent acts for all of them,"
  " and learns from each unroll before the next action.",
  [
    _box("process", 18, 80, 564, 222, "one process, in lock step"),
    _box("env", 40, 96, 110, 72, "envs"),
    _box("act", 420, 96, 110, 72, "act"),
    _box("replay", 400, 214, 150, 56, "replay (DQN)"),
    _box("learn", 190, 218, 110, 48, "learn"),
    _data("150 114 H420"),
    _text("observations", 285, 106),
    _data("420 150 H150"),
    _text("actions", 285, 170),
    _data("500 168 V214"),
    _text("unrolls", 509, 197, ""),
    _data("400 242 H300"),
    _copy("245 218 V194 H450 V168"),
    _text("parameters", 236, 204, "end"),
  ],
)

_OFFLINE = Figure(
  "from a recording, without an environment",
  "One process: the agent learns from windows of a recording. A thread plays"
  " the recorded environment, only for evaluations.",
  [
    _box("process", 18, 80, 564, 222, "one process"),
    _box("replay", 40, 110, 120, 76, "recording"),
    _box("learn", 280, 124, 110, 48, "learn"),
    _box("thread", 280, 196, 284, 94, "evaluation"),
    _box("act", 296, 206, 94, 46, "act"),
    _box("env", 470, 206, 80, 46, "envs"),
    _data("160 148 H280"),
    _text("windows", 220, 140),
    _copy("335 172 V206"),
    _text("parameters", 344, 189, ""),
    _data("390 220 H470"),
    _data("470 238 H390"),
  ],
)

_QT_OPT = Figure(
  "2018 · QT-Opt (Kalashnikov et al.)",
  "Actors send unrolls to the learner's log. Labellers compute targets of its"
  " windows with lagged parameters. The learner learns from the train buffer.",
  [
    _box("process", 30, 80, 104, 156, "actors", copies=3),
    _box("env", 42, 92, 80, 40, "envs"),
    _box("act", 42, 148, 80, 40, "act"),
    _data("70 132 V148"),
    _data("94 148 V132"),
    _box("process", 208, 80, 236, 222, "learner process"),
    _box("replay", 222, 92, 80, 56, "log"),
    _box("learn", 222, 206, 84, 44, "learn"),
    _box("buffer", 350, 200, 80, 56, "train\nbuffer"),
    _box("process", 486, 80, 104, 156, "labellers", copies=3),
    _box("learn", 498, 98, 80, 44, "label"),
    _data("134 120 H222"),
    _text("unrolls", 171, 112),
    _data("302 112 H498"),
    _text("windows", 372, 104),
    _data("548 142 V196 H462 V228 H430"),
    _text("targets", 436, 276, "end"),
    _data("350 228 H306"),
    _copy("222 216 H160 V168 H122"),
    _text("parameters", 158, 262, "middle"),
    _copy("264 206 V178 H516 V142"),
    _text("lagged parameters", 372, 172),
  ],
)

_ANAKIN = Figure(
  "2021 · Podracer (Hessel et al.)",
  "On each device, one compiled program steps environments, acts, and learns."
  " The host calls the program, and receives counts and metrics.",
  [
    _box("process", 30, 80, 424, 210, "one program, on each device", copies=3),
    _box("env", 46, 96, 104, 66, "envs"),
    _box("act", 330, 96, 104, 66, "act"),
    _box("replay", 306, 196, 128, 52, "replay (DQN)"),
    _box("learn", 120, 198, 104, 48, "learn"),
    _data("150 114 H330"),
    _text("observations", 240, 106),
    _data("330 146 H150"),
    _text("actions", 240, 166),
    _data("384 162 V196"),
    _text("unrolls", 392, 184, ""),
    _data("306 222 H224"),
    _copy("172 198 V180 H350 V162"),
    _text("parameters", 164, 192, "end"),
    _box("process", 500, 80, 84, 210, "host"),
    _data("500 114 H454"),
    _text("calls", 542, 120),
    _data("454 202 H500"),
    _text("counts,", 544, 198),
    _text("metrics", 544, 218),
  ],
)

_IMPALA = Figure(
  "2018 · IMPALA (Espeholt et al.)",
  "Actors step environments and act with a copy of the parameters. They send"
  " unrolls to the learner, and fetch parameters.",
  [
    _box("process", 30, 80, 206, 210, "actors", copies=3),
    _box("env", 44, 96, 70, 140, "envs"),
    _box("act", 156, 96, 66, 140, "act"),
    _box("process", 392, 80, 190, 210, "learner"),
    _box("buffer", 406, 96, 162, 46, "bounded queue"),
    _box("learn", 406, 190, 162, 46, "learn", copies=2),
    _data("114 119 H156"),
    _data("156 213 H114"),
    _data("222 119 H406"),
    _text("unrolls", 314, 111),
    _text("gRPC", 314, 172, "middle wire"),
    _copy("400 213 H222"),
    _text("parameters", 314, 234),
    _data("487 142 V190"),
    _text("batches", 496, 172, ""),
  ],
)

_APEX = Figure(
  "2018 · Ape-X (Horgan et al.)",
  "Actors step environments and act with a copy of the parameters. They send"
  " unrolls and priorities to the learner's prioritized replay.",
  [
    _box("process", 30, 80, 196, 210, "actors", copies=3),
    _box("env", 44, 96, 66, 140, "envs"),
    _box("act", 148, 96, 64, 140, "act"),
    _box("process", 372, 80, 210, 210, "learner"),
    _box("replay", 386, 94, 182, 56, "prioritized replay"),
    _box("learn", 386, 194, 182, 44, "learn", copies=2),
    _data("110 119 H148"),
    _data("148 213 H110"),
    _data("212 119 H386"),
    _text("unrolls", 299, 111),
    _text("+ priorities", 299, 140),
    _text("gRPC", 299, 176, "middle wire"),
    _copy("380 213 H212"),
    _text("parameters", 299, 234),
    _data("460 150 V194"),
    _text("batches", 451, 179, "end"),
    _data("480 194 V150"),
    _text("priorities", 489, 179, ""),
  ],
)

_A3C = Figure(
  "2016 · A3C (Mnih et al.)",
  "Threads of one process step environments, act, and compute gradients. Each"
  " gradient updates the shared parameters; the thread then copies them.",
  [
    _box("process", 18, 80, 564, 222, "one process"),
    _box("thread", 46, 96, 308, 146, "threads", copies=3),
    _box("env", 56, 108, 62, 84, "envs"),
    _box("act", 156, 108, 56, 84, "act"),
    _box("learn", 282, 108, 62, 84, "learn"),
    _box("params", 466, 96, 100, 146, "shared\nparameters\n+ optimizer"),
    _data("118 128 H156"),
    _data("156 172 H118"),
    _data("212 150 H282"),
    _text("unrolls", 245, 142),
    _data("344 126 H466"),
    _text("gradients", 410, 118),
    _text("one at a time", 410, 146),
    _copy("466 218 H354"),
    _text("parameters", 410, 238),
  ],
)

_GORILA = Figure(
  "2015 · Gorila (Nair et al.)",
  "Workers step environments, act, fill a replay, and compute gradients. They"
  " send parts of each gradient to the parameter servers, and reports to the"
  " coordinator.",
  [
    _box("process", 30, 80, 268, 210, "workers", copies=3),
    _box("env", 42, 96, 58, 146, "envs"),
    _box("act", 138, 96, 66, 46, "act"),
    _box("replay", 134, 184, 74, 54, "replay"),
    _box("learn", 234, 96, 56, 146, "learn"),
    _data("100 108 H138"),
    _data("138 130 H100"),
    _data("171 142 V184"),
    _text("unrolls", 163, 170, "end"),
    _data("208 211 H234"),
    _text("parameter servers", 558, 66, "end place"),
    *(_box("process", 444, y, 114, 44) for y in (78, 126, 174)),
    *(
      _box("params", 450, 84 + 48 * k, 102, 32, f"shard {k}") for k in range(3)
    ),
    _data("290 148 H450"),
    _data("420 148 V100 H450"),
    _data("420 148 V196 H450"),
    _text("gradients,", 358, 120),
    _text("in parts", 358, 140),
    _copy("552 100 H576 V226 H298"),
    '<path class="copy" style="marker-end: none" d="M552 148 H576"/>',
    '<path class="copy" style="marker-end: none" d="M552 196 H576"/>',
    _text("parameters", 358, 218),
    _data("298 270 H444"),
    _text("reports", 358, 262),
    _text("gRPC", 358, 292, "middle wire"),
    _box("process", 444, 248, 124, 44, "coordinator"),
  ],
)

_EVOLUTION = Figure(
  "2017 · Evolution Strategies (Salimans et al.)",
  "Workers step environments with perturbed parameters, and send numbers of"
  " pairs and returns. Learner and workers make the same update from all"
  " returns.",
  [
    _box("process", 30, 80, 232, 210, "workers", copies=3),
    _box("env", 44, 96, 70, 140, "envs"),
    _box("act", 156, 96, 92, 60, "members"),
    _box("learn", 156, 186, 92, 50, "update"),
    _data("114 112 H156"),
    _data("156 140 H114"),
    _copy("202 186 V156"),
    _box("process", 402, 80, 180, 210, "learner"),
    _box("buffer", 416, 96, 152, 46, "returns of pairs"),
    _box("learn", 416, 190, 152, 46, "update"),
    _data("248 119 H416"),
    _text("pairs, returns", 336, 111),
    _text("gRPC", 336, 166, "middle wire"),
    _data("402 211 H248"),
    _text("all returns", 336, 232),
    _data("492 142 V190"),
  ],
)

_POOL = Figure(
  "2019 · OpenAI Five (Berner et al.)",
  "Thin actors send observations to inference processes, which act for them and"
  " collect unrolls. The learner learns from batches drawn from a buffer.",
  [
    _box("process", 30, 80, 92, 210, "actors", copies=3),
    _box("env", 42, 96, 68, 140, "envs"),
    _box("process", 222, 80, 150, 210, "inference", copies=3),
    _box("act", 240, 96, 114, 56, "act for its\nactors"),
    _box("buffer", 240, 190, 114, 46, "unroll store"),
    _data("110 112 H240"),
    _text("obs.", 174, 104),
    _data("240 138 H110"),
    _text("actions", 166, 160),
    _text("gRPC", 166, 186, "middle wire"),
    _data("297 152 V190"),
    _box("process", 472, 80, 112, 210, "learner"),
    _box("learn", 484, 96, 88, 46, "learn"),
    _box("buffer", 484, 190, 88, 46, "buffer"),
    _data("354 213 H484"),
    _text("unrolls", 420, 205),
    _text("gRPC", 420, 238, "middle wire"),
    _data("528 190 V142"),
    _copy("484 119 H354"),
    _text("parameters", 420, 74),
  ],
)

PIPELINES = {
  "seed": _SEED,
  "pool": _POOL,
  "sync": _SYNC,
  "impala": _IMPALA,
  "apex": _APEX,
  "a3c": _A3C,
  "gorila": _GORILA,
  "anakin": _ANAKIN,
  "offline": _OFFLINE,
  "qt_opt": _QT_OPT,
  "evolution": _EVOLUTION,
}

_LEGEND = [
  _text("What is what", 18, 40, "name"),
  _box("env", 18, 72, 84, 34, "envs"),
  _text("environments", 116, 95, ""),
  _box("act", 18, 116, 84, 34, "act"),
  _text("computes actions", 116, 139, ""),
  _box("learn", 18, 160, 84, 34, "learn"),
  _text("computes gradients", 116, 183, ""),
  _box("params", 18, 204, 84, 34, "shard"),
  _text("parameters, optimizer", 116, 227, ""),
  _box("replay", 18, 248, 84, 40, "replay"),
  _text("past experience", 116, 275, ""),
  _box("process", 330, 72, 50, 30),
  _text("a process", 396, 94, ""),
  _box("process", 342, 116, 38, 22, copies=3),
  _text("any number of them", 396, 139, ""),
  _box("buffer", 330, 160, 50, 34),
  _text("a buffer", 396, 183, ""),
  _data("330 221 H380"),
  _text("data", 396, 227, ""),
  _copy("330 268 H380"),
  _text("parameters", 396, 275, ""),
]


def of_one(name: str) -> str:
  """Returns the figure of a pipeline, as SVG."""
  figure = PIPELINES[name]
  title = f"The pipeline {name}"
  return _svg(title, figure.about, _WIDTH, _HEIGHT, [_panel(0, 0, name)])


def of_all() -> str:
  """Returns the figure of all pipelines and a legend, as SVG."""
  panels = [
    _panel((k % 2) * (_WIDTH + _GAP), (k // 2) * (_HEIGHT + _GAP), name)
    for k, name in enumerate([*PIPELINES, ""])
  ]
  rows = (len(panels) + 1) // 2
  about = " ".join(f"{k}: {x.about}" for k, x in PIPELINES.items())
  width, height = 2 * _WIDTH + _GAP, rows * (_HEIGHT + _GAP) - _GAP
  return _svg("The pipelines of seedx", about, width, height, panels)


def main() -> None:
  """Writes all figures beside this program."""
  (_FOLDER / "pipelines.svg").write_text(of_all())
  for name in PIPELINES:
    (_FOLDER / f"pipeline_{name}.svg").write_text(of_one(name))


def _panel(x: float, y: float, name: str) -> str:
  """Returns the panel of a pipeline, or of the legend for an empty name."""
  parts = list(_LEGEND)
  if name:
    figure = PIPELINES[name]
    title = _text(name, 18, 40, "name"), _text(figure.source, 18, 64, "")
    parts = [*title, *figure.parts]
  content = "\n".join(parts)
  return (
    f'<g transform="translate({x:g} {y:g})">\n<rect class="panel"'
    f' width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>\n{content}\n</g>'
  )


def _svg(
  title: str, about: str, width: float, height: float, panels: Sequence[str]
) -> str:
  content = "\n".join(panels)
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g}'
    f' {height:g}" width="{width:g}" height="{height:g}" role="img"'
    f' aria-labelledby="title desc">\n<title id="title">{title}</title>\n'
    f'<desc id="desc">{saxutils.escape(about)}</desc>\n'
    f"<style>{_STYLE}</style>\n{_HEAD}\n"
    f'<rect class="ground" width="{width:g}" height="{height:g}"/>\n'
    f"{content}\n</svg>\n"
  )


if __name__ == "__main__":
  main()
