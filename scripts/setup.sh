#!/bin/bash
# Make .venv with the pinned dependencies the project, the broker's jars and an archive of Spark's classes. May be repeated.
# Usage: setup.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
venv_python=.venv/bin/python
scripts/preflight.sh "$python"

log=$(mktemp)
trap 'rm -f "$log"' EXIT

minor_version() { "$1" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2> /dev/null || echo none; }

make_venv() {
    rm -rf .venv
    if command -v uv > /dev/null; then
        uv venv --quiet --python "$(command -v "$python")" .venv
    elif "$python" -c 'import ensurepip' 2> /dev/null; then
        "$python" -m venv .venv
    else
        "$python" -m venv --without-pip .venv
    fi
}

install() {
    if command -v uv > /dev/null; then
        uv pip install --python "$venv_python" "$@"
    elif "$venv_python" -m pip --version > /dev/null 2>&1; then
        "$venv_python" -m pip install --log "$log" "$@"
    else
        "$python" -m pip --python "$venv_python" install --log "$log" "$@"
    fi
}

no_network='dns error|error sending request|client error \(Connect\)|NameResolutionError|NewConnectionError'
no_network+='|ConnectTimeout|ReadTimeout|Network is unreachable|Connection refused|Cannot connect to proxy|ProxyError'

# uv writes no log; asked again, it says without downloading anything whether it reaches the packages.
explain_failure() {
    command -v uv > /dev/null && uv pip install --dry-run --python "$venv_python" "$@" > "$log" 2>&1
    if grep -qE "$no_network" "$log"; then
        echo "The packages can't be downloaded: there is no network, or a proxy is needed (set HTTPS_PROXY)." >&2
        echo "The network is needed once; afterwards everything works without it." >&2
    else
        echo "The pinned dependencies could not be installed; the lines above say why." >&2
    fi
    exit 1
}

[ -t 1 ] || export PIP_PROGRESS_BAR=off
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
export PIP_RETRIES="${PIP_RETRIES:-2}"

[ "$(minor_version "$venv_python")" = "$(minor_version "$python")" ] || make_venv
echo "Installing the pinned dependencies into .venv (once; about 1 GB)"
install --require-hashes -r requirements.lock || explain_failure --require-hashes -r requirements.lock
install --quiet --no-deps --no-build-isolation --editable .
echo "Filling the per-user cache: the jars of the embedded broker, 55 MB, and an archive of Spark's classes, 170 MB"
.venv/bin/exactlyonce prepare
