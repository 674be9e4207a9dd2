from seedx.app.cli.programs import main as main
from seedx.app.runs.policies import Policy as Policy
from seedx.app.runs.policies import load as load
from seedx.app.settings.experiments import Experiment as Experiment
from seedx.app.settings.presets import preset as preset
from seedx.app.training import Run as Run
from seedx.app.training import train as train
