#!/bin/bash
# A learner and its actors under SLURM:
#   sbatch --ntasks 5 examples/clusters/slurm.sh seed_vtrace --env Pong-v5
# The first task is the learner, every other task an actor. Run it in a folder that
# all nodes share, with seedx installed in .venv. Two minutes before the job's time
# is over, the learner saves a checkpoint and ends, and the job is queued again. A
# requeued job continues from its newest checkpoint.
#SBATCH --job-name seedx
#SBATCH --cpus-per-task 8
#SBATCH --requeue
#SBATCH --open-mode append
#SBATCH --signal USR1@120
set -eu
export RUN="runs/slurm-$SLURM_JOB_ID" PORT=8470
export LEARNER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
rm -rf "$RUN-tls"  # A requeued job may have other nodes.
.venv/bin/python -m seedx certificates "$RUN-tls" --hosts "$LEARNER"
status=0
srun --kill-on-bad-exit bash -c '
if [ "$SLURM_PROCID" = 0 ]; then
  exec .venv/bin/python -m "experiments.$1" "${@:2}" --run-dir "$RUN" --resume auto --role learner \
    --address "0.0.0.0:$PORT" --num-actors "$((SLURM_NTASKS - 1))" --token-file "$RUN-tls/token" \
    --tls-certificate "$RUN-tls/certificate.pem" --tls-key "$RUN-tls/key.pem"
fi
exec .venv/bin/python -m seedx.join "$LEARNER:$PORT" --tls-ca "$RUN-tls/ca.pem" --token-file "$RUN-tls/token"
' seedx "$@" || status=$?
# A signal has ended the run before its last step.
if [ "$status" = 143 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
