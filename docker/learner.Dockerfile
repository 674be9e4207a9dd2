# A learner, and any process that needs JAX. Build it in the repository:
#   docker build -f docker/learner.Dockerfile --build-arg EXTRA=cuda13 .
# EXTRA is cuda12, cuda13 or tpu, or several extras, such as cuda13,games; without
# it, JAX uses the CPU. Mount a folder that the user `seedx` may write at
# /home/seedx/runs to keep runs.
FROM python:3.12-slim
ARG EXTRA=
WORKDIR /seedx
# Files that setup.py reads. Its requirements' layer stays when the code changes.
COPY setup.py README.md constraints.txt ./
COPY seedx/__init__.py seedx/__init__.py
COPY experiments/__init__.py experiments/__init__.py
RUN pip install --no-cache-dir -c constraints.txt ".${EXTRA:+[$EXTRA]}"
COPY . .
RUN pip install --no-cache-dir --no-deps --force-reinstall .
RUN useradd --create-home seedx
USER seedx
WORKDIR /home/seedx
ENTRYPOINT ["seedx"]
