FROM {{ pins.node_image }} AS node

FROM {{ pins.image }}
ENV DEBIAN_FRONTEND=noninteractive \
    NO_PROXY=localhost,127.0.0.1 \
    no_proxy=localhost,127.0.0.1 \
    UV_NO_CACHE=1 \
    UV_SYSTEM_PYTHON=1

RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      build-essential ca-certificates curl git procps python3-dev python3-pip python3.10 wget \
 && rm -rf /var/lib/apt/lists/* \
 && ln -sf /usr/bin/python3.10 /usr/bin/python3 \
 && ln -sf /usr/bin/python3.10 /usr/bin/python

COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules /usr/local/lib/node_modules
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
 && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx

# First what decides about torch; the image is built where there is no GPU to ask, so its builds are named.
RUN python3 -m pip install --no-cache-dir uv=={{ pins.packages.uv }} \
 && uv pip install --torch-backend={{ pins.torch_backend }} vllm=={{ pins.packages.vllm }}
COPY image/requirements.txt /opt/ptb-image/requirements.txt
RUN uv pip install -r /opt/ptb-image/requirements.txt
RUN uv pip install --no-build-isolation flash-attn=={{ pins.packages["flash-attn"] }}

# The agents' CLIs.
RUN npm install --global{% for package, version in clis.items() %} {{ package }}@{{ version }}{% endfor %}


# Starts the monitor, and shows on the container's own output what agent and verifier write to their logs.
COPY image/entrypoint.sh /usr/local/bin/entrypoint.sh
