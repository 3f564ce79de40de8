# The operator's image. `make image` builds the same one without Docker (hack/image.py); a test
# keeps both alike. Tags are pinned here, and everything from Python's index by hash.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
COPY requirements/runtime.txt requirements/
RUN python -m pip install --no-cache-dir --no-deps --no-compile --require-hashes \
      --only-binary=:all: --target=/opt/app --requirement=requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir=/tmp/wheel . \
    && python -m zipfile -e /tmp/wheel/shardwright-*.whl /opt/app \
    && rm -rf /opt/app/bin \
    # a read-only container could not keep bytecode and would compile at every start
    && python -m compileall -q --invalidation-mode=unchecked-hash /opt/app

# Debian 12's Python 3.11 without shell and package manager.
FROM gcr.io/distroless/python3-debian12:nonroot
COPY --from=build /opt/app /opt/app
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
