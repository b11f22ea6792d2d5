#!/usr/bin/env bash
# Create a virtual environment with the pinned requirements and this package in it: tools/setup.sh [directory]
# Spark also needs a Java runtime, which is looked for at the end. Set PYTHON to choose the interpreter, JAVA_HOME the Java.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

say() { printf '%s\n' "$*" >&2; }

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if recent "$candidate"; then echo "$candidate"; return 0; fi
  done
  return 1
}

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
  say "Installing $* with apt-get ..."
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 && return 0
  apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Spark's own rule: JAVA_HOME goes before the PATH. A Java older than 9 calls itself 1.8.
java_major() {
  local java=java
  if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi
  "$java" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1
}

java_recent() {
  local major
  major=$(java_major) || true
  [ "${major:-0}" -ge 17 ]
}

if ! python=$(find_python); then
  if may_install; then apt_install python3 python3-venv || true; fi
  if ! python=$(find_python); then
    say "Dovetail needs Python 3.11 or later; found: $(python3 --version 2>/dev/null || echo none)."
    say "Hint: on Debian 12 or later run 'sudo apt-get install python3 python3-venv', elsewhere install a newer Python;"
    say "      then run 'make setup' again, or 'PYTHON=/path/to/python3 make setup' to choose one."
    exit 1
  fi
fi

# Debian splits ensurepip off into python3-venv; without it `python3 -m venv` fails half-way.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  if may_install; then apt_install python3-venv || apt_install "$version-venv" || true; fi
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    say "$python has no venv module with pip (Debian packages it apart)."
    say "Hint: run 'sudo apt-get install python3-venv' (or $version-venv), then 'make setup' again."
    exit 1
  fi
fi

if ! { recent "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
  say "Creating $venv with $("$python" --version) ..."
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi
say "Installing the pinned requirements (a few minutes the first time) ..."
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$venv/bin/python" -m pip install --quiet --require-hashes -r requirements/dev.txt
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation -e .

# With JAVA_HOME set, a Java from apt-get would not be used: it is the variable that has to change.
if ! java_recent; then
  if [ -z "${JAVA_HOME:-}" ] && may_install; then
    apt_install openjdk-17-jre-headless || apt_install default-jre-headless || true
    hash -r
  fi
  if ! java_recent; then
    major=$(java_major) || true
    say "Spark needs Java 17 or later; found: ${major:-none}${JAVA_HOME:+ (JAVA_HOME is $JAVA_HOME)}."
    if [ -n "${JAVA_HOME:-}" ]; then
      say "Hint: run 'unset JAVA_HOME', or set it to a Java 17; then 'make setup' again."
    else
      say "Hint: on Debian or Ubuntu run 'sudo apt-get install openjdk-17-jre-headless', elsewhere install a Java 17 from"
      say "      https://adoptium.net and set JAVA_HOME to its directory; then run 'make setup' again."
    fi
    exit 1
  fi
fi
say "Done: $venv is ready."
