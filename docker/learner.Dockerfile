# A learner, and any process that needs JAX. Build it in the repository:
#   docker build -f docker/learner.Dockerfile --build-arg EXTRA=cuda13 .
# EXTRA is cuda12, cuda13 or tpu; without it, JAX uses the CPU.
FROM python:3.12-slim
ARG EXTRA=
WORKDIR /seedx
COPY . .
RUN pip install --no-cache-dir ".${EXTRA:+[$EXTRA]}"
ENTRYPOINT ["seedx"]
