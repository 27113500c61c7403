# Terrace for users: python:3.12-slim with the wheel, and nothing else. Build and run:
#   docker build -t terrace .
#   docker run --rm -it -v /mnt/nvme:/mnt/nvme terrace terrace train --nvme-path /mnt/nvme ...
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends git ca-certificates && rm -rf /var/lib/apt/lists/*
WORKDIR /terrace
COPY tools/setup tools/setup
RUN tools/setup --no-browser
COPY . .
RUN tools/wheel --to /wheel

FROM python:3.12-slim
RUN --mount=type=bind,from=build,source=/wheel,target=/wheel python -m pip install --no-cache-dir --no-index /wheel/*.whl
RUN useradd --create-home user
USER user
WORKDIR /home/user
CMD ["terrace", "--help"]
