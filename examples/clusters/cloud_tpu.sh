#!/bin/bash
# A learner on a Cloud TPU VM with one host, and actors on Compute Engine machines
# in the same network:
#   examples/clusters/cloud_tpu.sh ZONE LEARNER ACTOR ... -- seed_vtrace --env Pong-v5
# LEARNER is the name of the TPU VM, each ACTOR the name of a machine. All of them
# have seedx installed in ~/seedx/.venv, the TPU VM with the extra tpu.
set -eu
zone=$1 learner=$2
shift 2
actors=()
while [ "$1" != -- ]; do actors+=("$1"); shift; done
shift
tpu=(gcloud compute tpus tpu-vm)
address=$("${tpu[@]}" describe "$learner" --zone "$zone" --format 'value(networkEndpoints[0].ipAddress)')
port=8470 tls=~/.seedx-tls/$address
[ -e "$tls" ] || python -m seedx certificates "$tls" --hosts "$address"
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
"${tpu[@]}" ssh "$learner" --zone "$zone" --command "rm -rf tls"
"${tpu[@]}" scp --zone "$zone" --recurse "$tls" "$learner:tls"
for actor in "${actors[@]}"; do
  gcloud compute ssh "$actor" --zone "$zone" --command "mkdir -p tls"
  gcloud compute scp --zone "$zone" "$tls/ca.pem" "$tls/token" "$actor:tls"
  gcloud compute ssh "$actor" --zone "$zone" --command \
    "seedx/.venv/bin/python -m seedx.join $address:$port --tls-ca tls/ca.pem --token-file tls/token" &
done
"${tpu[@]}" ssh "$learner" --zone "$zone" --command "cd seedx && .venv/bin/python -m experiments.$(printf '%q ' "$@") \
  --role learner --address 0.0.0.0:$port --num-actors ${#actors[@]} --token-file ../tls/token \
  --tls-certificate ../tls/certificate.pem --tls-key ../tls/key.pem"
wait
