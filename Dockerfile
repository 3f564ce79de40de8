# The operator's image. `make image` builds the same one without Docker (hack/image.py); a test
# keeps both alike. Tags are pinned here, and everything from Python's index by hash.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
COPY requirements/runtime.txt requirements/dev.txt requirements/
RUN python -m pip install --no-cache-dir --no-deps --no-compile --require-hashes \
      --only-binary=:all: --target=/locked/opt/app --requirement=requirements/runtime.txt \
    && rm -rf /locked/opt/app/bin \
    # a read-only container could not keep bytecode and would compile at every start
    && python -m compileall -q -s /locked -p / --invalidation-mode=unchecked-hash /locked
# the build backend is a locked one too: isolated, pip would fetch one of its choice
RUN python -m pip install --no-cache-dir --require-hashes --only-binary=:all: \
      --requirement=requirements/dev.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir=/tmp/wheel . \
    && python -m zipfile -e /tmp/wheel/shardwright-*.whl /own/opt/app \
    && python -m compileall -q -s /own -p / --invalidation-mode=unchecked-hash /own

# Debian 12's Python 3.11 without shell and package manager.
FROM gcr.io/distroless/python3-debian12:nonroot
# apart, so that an upgrade of the operator brings a small layer
COPY --from=build /locked/opt/app /opt/app
COPY --from=build /own/opt/app /opt/app
ENV LANG=C.UTF-8 \
    HOME=/tmp \
    LOGNAME=shardwright \
    PYTHONPATH=/opt/app \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
LABEL org.opencontainers.image.title="shardwright" \
      org.opencontainers.image.description="Operator that serves LLMs split over GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
EXPOSE 8080
USER 65532:65532
WORKDIR /
ENTRYPOINT ["python3", "-m", "shardwright"]
CMD ["run"]
