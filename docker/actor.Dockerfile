# A thin actor of `seed`: no JAX. Build it in the repository:
#   docker build -f docker/actor.Dockerfile .
# and start it with the learner's HOST:PORT.
FROM python:3.12-slim
WORKDIR /seedx
COPY . .
RUN pip install --no-cache-dir -r requirements-actor.txt
RUN pip install --no-cache-dir --no-deps .
ENTRYPOINT ["python", "-m", "seedx.join"]
