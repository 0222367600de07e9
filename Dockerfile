# qrun in a container, for the CPU:
#   docker build -t qrun .
#   docker run --rm -v "$PWD/models:/models" qrun generate --model /models/NAME --prompt "Hello"
FROM debian:bookworm-slim AS build
COPY . /source
RUN cd /source && scripts/install-dependencies.sh && ./install.sh --prefix /opt/qrun

FROM debian:bookworm-slim
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends libcjson1 libedit2 libevent-core-2.1-7 \
        libevent-openssl-2.1-7 libpcre2-8-0 libssl3 libutf8proc2 libyaml-0-2 libzstd1 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/qrun /usr/local
RUN ldconfig
ENTRYPOINT ["qrun"]
CMD ["help"]
