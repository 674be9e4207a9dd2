# A thin actor of `seed`, without JAX. Build it in the repository:
#   docker build -f docker/actor.Dockerfile .
# and start it with the learner's HOST:PORT.
FROM python:3.12-slim
WORKDIR /seedx
# The layer of the requirements stays when the code changes.
COPY requirements-actor.txt constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt -r requirements-actor.txt
COPY . .
RUN pip install --no-cache-dir --no-deps .
RUN useradd --create-home seedx
USER seedx
WORKDIR /home/seedx
ENTRYPOINT ["python", "-m", "seedx.join"]
