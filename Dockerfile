# Stentor for CPUs (default) or NVIDIA GPUs (--build-arg DEVICE=cuda); see docs/docker.md.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm AS build

ARG DEVICE=cpu
ARG EXTRAS=av,vad,serve,studio,track
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/stentor/bin:$PATH
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

WORKDIR /source
RUN python -m venv /opt/stentor

# torch first: its layer is large and changes rarely. The build of PyPI has the CUDA libraries.
COPY constraints.txt ./
RUN case "$DEVICE" in \
      cpu) index=https://download.pytorch.org/whl/cpu ;; \
      cuda) index=https://pypi.org/simple ;; \
      *) echo "DEVICE must be cpu or cuda, got $DEVICE" >&2; exit 1 ;; \
    esac \
    && pip install --constraint constraints.txt --extra-index-url "$index" "$(grep '^torch==' constraints.txt)"

COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY docker/licences.py ./
RUN pip install --constraint constraints.txt ".[$EXTRAS]" \
    && python licences.py > /opt/stentor/LICENSES \
    && stentor --version

FROM python:${PYTHON}-slim-bookworm

COPY --from=build /opt/stentor /opt/stentor
RUN useradd --create-home --uid 1000 --user-group stentor \
    && install --directory --owner=1000 --group=1000 /models /runs /cache

ENV PATH=/opt/stentor/bin:$PATH \
    HF_HOME=/cache/huggingface \
    STENTOR_CACHE=/cache/stentor \
    PYTHONUNBUFFERED=1 \
    HEALTH=http://127.0.0.1:8000/health
USER 1000:1000
WORKDIR /runs
VOLUME ["/models", "/runs", "/cache"]
EXPOSE 8000 7860

# Of `stentor serve`; HEALTH= turns it off for other commands.
HEALTHCHECK --interval=30s --timeout=10s --start-period=5m \
    CMD ["python", "-c", "import os, urllib.request as u; a = os.environ['HEALTH']; a and u.urlopen(a, timeout=5)"]

ENTRYPOINT ["stentor"]
CMD ["--help"]
