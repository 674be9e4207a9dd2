from seedx.app.experiments import Experiment as Experiment
from seedx.app.policies import Policy as Policy
from seedx.app.policies import load as load
from seedx.app.presets import preset as preset
from seedx.app.programs import main as main
from seedx.app.training import Run as Run
from seedx.app.training import train as train
