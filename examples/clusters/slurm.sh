#!/bin/bash
# A learner and its actors under SLURM:
#   sbatch --ntasks 5 examples/clusters/slurm.sh seed_vtrace --env Pong-v5
# The first task is the learner, every other task an actor. Run it in a folder that
# all nodes share, with seedx installed in .venv. A requeued job continues from its
# newest checkpoint.
#SBATCH --job-name seedx
#SBATCH --cpus-per-task 8
#SBATCH --requeue
set -eu
export RUN="runs/slurm-$SLURM_JOB_ID" PORT=8470
export LEARNER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
rm -rf "$RUN-tls"  # A requeued job may have other nodes.
.venv/bin/python -m seedx certificates "$RUN-tls" --hosts "$LEARNER"
srun --kill-on-bad-exit bash -c '
if [ "$SLURM_PROCID" = 0 ]; then
  if ls "$RUN"/checkpoints/*[0-9] > /dev/null 2>&1; then where=--resume; else rm -rf "$RUN"; where=--run-dir; fi
  exec .venv/bin/python -m "experiments.$1" "${@:2}" $where "$RUN" --role learner \
    --address "0.0.0.0:$PORT" --num-actors "$((SLURM_NTASKS - 1))" --token-file "$RUN-tls/token" \
    --tls-certificate "$RUN-tls/certificate.pem" --tls-key "$RUN-tls/key.pem"
fi
exec .venv/bin/python -m seedx.join "$LEARNER:$PORT" --tls-ca "$RUN-tls/ca.pem" --token-file "$RUN-tls/token"
' seedx "$@"
