"""Tests of the examples for clusters, with other addresses and paths.

Fake programs replace those of the cluster: they run on this machine what the
real programs would run elsewhere.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
import yaml

from seedx.app import certificates
from tests import programs, running

FOLDER = programs.ROOT / "examples" / "clusters"
SHORT = "--total-steps 3000 --envs-per-actor 4 --hidden-sizes 8"

# A fake `srun`: runs the command after the options, once for each task.
SRUN = """
while [ "${1#--}" != "$1" ]; do shift; done
for k in $(seq 0 $((SLURM_NTASKS - 1))); do
  SLURM_PROCID=$k "$@" &
  tasks="$tasks $!"
done
echo $tasks > tasks
for task in $tasks; do wait "$task" || status=$?; done
exit ${status:-0}
"""
# A fake `scontrol`: lists the names of hosts, or writes what it is to requeue.
SCONTROL = """
[ "$1 $2" = "show hostnames" ] && echo "$3" | tr , "\\n"
[ "$1" = requeue ] && echo "$2" > requeued
"""
# A fake `gcloud`: runs a command in a machine's home, or copies files to it.
GCLOUD = """
import os, pathlib, shutil, subprocess, sys
words = sys.argv[1:]
while words[0] in ("compute", "tpus", "tpu-vm"):
  words.pop(0)
with open(os.environ["COMMANDS"], "a") as commands:
  commands.write(" ".join(words) + "\\n")
what, words = words[0], words[1:]
if what == "describe":
  assert words[-1] == "value(networkEndpoints[0].ipAddress)"
  print("127.0.0.2")
  sys.exit()
for option in ("--zone", "--worker"):
  if option in words:
    k = words.index(option)
    del words[k : k + 2]
if what == "ssh":
  machine, option, command = words
  assert option == "--command"
  home = pathlib.Path(os.environ["HOMES"]) / machine
  status = subprocess.run(["bash", "-c", command], cwd=home).returncode
  sys.exit(status)
assert what == "scp"
words = [word for word in words if word != "--recurse"]
*sources, target = words
machine, path = target.split(":")
target = pathlib.Path(os.environ["HOMES"]) / machine / path
for source in sources:
  if os.path.isdir(source):
    # Like scp: into an existing folder, or as a new one.
    inside = target / os.path.basename(source) if target.exists() else target
    shutil.copytree(source, inside)
  else:
    shutil.copy(source, target)
"""


@pytest.fixture(autouse=True)
def end_all():
  """Ends the programs that a failed test has left."""
  yield
  for process in psutil.Process().children(recursive=True):
    process.kill()


def write_program(folder, name, text, interpreter="/bin/bash"):
  folder.mkdir(exist_ok=True)
  path = folder / name
  path.write_text(f"#!{interpreter}\n{text}")
  path.chmod(0o755)


def with_free_port(text):
  assert "8470" in text
  return text.replace("8470", str(programs.free_port()))


def without_devices():
  return {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}


def start(command, folder, **environment):
  environment["PATH"] = f"{folder / 'bin'}:{os.environ['PATH']}"
  environment["PYTHONPATH"] = str(programs.ROOT)
  return subprocess.Popen(
    command,
    cwd=folder,
    env={**without_devices(), **environment},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def run(command, folder, **environment):
  started = start(command, folder, **environment)
  out, err = started.communicate(timeout=600)
  return subprocess.CompletedProcess(command, started.returncode, out, err)


def last_line(run_dir):
  return json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])


def learned(run_dir):
  """Returns whether the newest whole line reports learning."""
  text = (run_dir / "metrics.jsonl").read_text()
  return "\n" in text and last_line(run_dir)["learner_steps"] > 0


def make_venv(home):
  """Makes a `.venv` with this interpreter in a folder, as the examples need."""
  folder = home / ".venv" / "bin"
  folder.mkdir(parents=True)
  write_program(folder, "python", f'exec {sys.executable} "$@"')


@pytest.mark.long
def test_the_slurm_example_trains_and_continues_when_requeued(tmp_path):
  text = with_free_port((FOLDER / "slurm.sh").read_text())
  script = tmp_path / "job.sh"
  script.write_text(text)
  make_venv(tmp_path)
  write_program(tmp_path / "bin", "srun", SRUN)
  write_program(tmp_path / "bin", "scontrol", SCONTROL)
  slurm = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "127.0.0.2,127.0.0.9",
    "SLURM_NTASKS": "3",
  }
  words = ["bash", str(script), "seed_vtrace", *SHORT.split()]
  job = start(
    [x.replace("3000", "1000000000") for x in words], tmp_path, **slurm
  )
  run_dir = tmp_path / "runs" / "slurm-7"
  lines = run_dir / "metrics.jsonl"
  running.wait_until(
    lambda: lines.exists() and learned(run_dir),
    lambda: job.poll() is None or pytest.fail(job.communicate()[1]),
  )
  # SLURM warns each process of a task, long before it ends the job.
  (signal_name,) = re.findall("^#SBATCH --signal (.*)@120$", text, re.MULTILINE)
  tasks = map(int, (tmp_path / "tasks").read_text().split())
  trees = [psutil.Process(task) for task in tasks]
  warned = [y for x in trees for y in (*x.children(recursive=True), x)]
  for process in warned:
    # An actor may have ended with the learner, which got its signal before.
    with contextlib.suppress(psutil.NoSuchProcess):
      process.send_signal(getattr(signal, f"SIG{signal_name}"))
  _, err = job.communicate(timeout=600)
  assert job.returncode == 143, err
  assert (tmp_path / "requeued").read_text() == "7\n"
  (tmp_path / "requeued").unlink()
  first = last_line(run_dir)
  assert (run_dir / "checkpoints" / str(first["env_steps"])).is_dir()
  assert err.count("joined 127.0.0.2:") == 2
  # A requeued job has the same job ID, and may have other nodes.
  slurm["SLURM_JOB_NODELIST"] = "127.0.0.3,127.0.0.9"
  total = first["env_steps"] + 3000
  more = [x.replace("3000", str(total)) for x in words]
  done = run(more, tmp_path, **slurm)
  assert done.returncode == 0, done.stderr
  assert last_line(run_dir)["env_steps"] >= total
  assert json.dumps(first)[:40] in lines.read_text()
  assert not (tmp_path / "requeued").exists()


@pytest.mark.long
def test_the_commands_of_the_jobset_example_train(tmp_path):
  text = (FOLDER / "jobset.yaml").read_text()
  volume, jobset = yaml.safe_load_all(text)
  spec = jobset["spec"]
  jobs = {x["name"]: x for x in spec["replicatedJobs"]}
  assert set(spec["successPolicy"]["targetReplicatedJobs"]) <= set(jobs)
  name = jobset["metadata"]["name"]
  subdomain = spec["network"]["subdomain"]
  assert spec["network"]["enableDNSHostnames"]
  # JobSet's name of the first pod of the first job.
  host = f"{name}-learner-0-0.{subdomain}"
  tls = tmp_path / "tls"
  assert re.search(r"--hosts (\S+)", text)[1] == host
  assert certificates.main([str(tls), "--hosts", "127.0.0.2"]) == 0
  (tmp_path / "runs").mkdir()
  port = programs.free_port()

  def here(text):
    text = text.replace(f"{host}:8470", f"127.0.0.2:{port}")
    text = text.replace("0.0.0.0:8470", f"0.0.0.0:{port}")
    text = text.replace("/tls/", f"{tls}/")
    text = text.replace("/runs/", f"{tmp_path}/runs/")
    return text.replace("seedx train", f"{sys.executable} -m seedx train")

  started = []
  for role, job in jobs.items():
    pod = job["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {x["name"]: x for x in pod["volumes"]}
    for mount in container["volumeMounts"]:
      kind = given[mount["name"]]
      assert mount["mountPath"] == f"/{mount['name']}"
      if "persistentVolumeClaim" in kind:
        claim = kind["persistentVolumeClaim"]["claimName"]
        assert claim == volume["metadata"]["name"]
      for item in kind.get("secret", {}).get("items", []):
        assert (tls / item["key"]).exists()
    words = [here(x) for x in container["args"]]
    if role == "learner":
      assert container["command"] == ["sh", "-c"]
      count = int(re.search(r"--num-actors (\d+)", words[0])[1])
      words = ["sh", "-c", f"{words[0]} {SHORT}"]
      replicas = 1
    else:
      image = (programs.ROOT / "docker" / "actor.Dockerfile").read_text()
      entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", image, re.M)[1])
      assert entry[0] == "python" and "command" not in container
      words = [sys.executable, *entry[1:], *words]
      replicas = job["template"]["spec"]["parallelism"]
      assert replicas == job["template"]["spec"]["completions"] == count
    started += [
      subprocess.Popen(words, cwd=programs.ROOT, env=without_devices())
      for _ in range(replicas)
    ]
  try:
    assert [process.wait(600) for process in started] == [0] * 5
  finally:
    for process in started:
      process.kill()
  assert last_line(tmp_path / "runs" / "first")["env_steps"] >= 3000


@pytest.mark.long
def test_the_cloud_tpu_example_trains_twice_without_giving_away_the_key(
  tmp_path,
):
  text = with_free_port((FOLDER / "cloud_tpu.sh").read_text())
  script = tmp_path / "cloud_tpu.sh"
  script.write_text(text)
  homes = tmp_path / "homes"
  for machine in ("tpu", "actor-1", "actor-2"):
    make_venv(homes / machine / "seedx")
  write_program(tmp_path / "bin", "gcloud", GCLOUD, sys.executable)
  write_program(tmp_path / "bin", "python", f'exec {sys.executable} "$@"')
  words = "us-a tpu actor-1 actor-2 -- seed_vtrace"
  options = [*SHORT.split(), "--env-options", '{"max_episode_steps": 5}']
  home = tmp_path / "home"
  for _ in range(2):
    folders = {"HOMES": homes, "HOME": home, "COMMANDS": tmp_path / "commands"}
    command = ["bash", str(script), *words.split(), *options]
    done = run(command, tmp_path, **folders)
    assert done.returncode == 0, done.stderr
    # In the second run, the machines still have the files of the first.
    shutil.rmtree(home)
  commands = (tmp_path / "commands").read_text()
  assert all("--zone us-a" in line for line in commands.splitlines())
  runs = (homes / "tpu" / "seedx" / "runs" / "seed_vtrace").iterdir()
  for run_dir in runs:
    assert last_line(run_dir)["env_steps"] >= 3000
    assert last_line(run_dir)["episode_return"] == 5
  # An actor's machine does not get the learner's key.
  given = {x.name for x in (homes / "actor-1" / "tls").iterdir()}
  assert given == {"ca.pem", "token"}


def test_each_example_is_tested_and_each_script_is_valid_bash():
  tested = {"slurm.sh", "jobset.yaml", "cloud_tpu.sh"}
  assert {path.name for path in pathlib.Path(FOLDER).iterdir()} == tested
  for path in FOLDER.glob("*.sh"):
    assert os.access(path, os.X_OK)
    assert shlex.split(path.read_text().splitlines()[0]) == ["#!/bin/bash"]
    done = subprocess.run(["bash", "-n", path], capture_output=True)
    assert not done.stderr
