#!/bin/sh
# Say everything that is missing on this machine, and how to get it, before anything is installed.
# Usage: preflight.sh PYTHON
set -u
python=$1
missing=0

lacks() {
    [ "$missing" -eq 0 ] && echo "Something is missing on this machine:" >&2
    missing=1
    echo "  - $1" >&2
    echo "      $2" >&2
}

[ "$(uname -s)" = Linux ] || lacks "Linux ($(uname -s) found): the embedded broker reads /proc" "use a Linux machine or container"

# The first python3.11, python3.12 or python3.13 of the PATH, for people whose python3 is another one.
other_python() {
    for candidate in python3.11 python3.12 python3.13; do
        command -v "$candidate" > /dev/null 2>&1 && echo "$candidate" && return
    done
}

how_to_get_python() {
    found=$(other_python)
    if [ -n "$found" ]; then
        echo "$found is here: make PYTHON=$found ..."
    else
        echo "apt-get install python3 python3-venv   (Debian 12 or later), or another one by: make PYTHON=/path/to/python3.11 ..."
    fi
}

if ! command -v "$python" > /dev/null 2>&1; then
    lacks "Python 3.11 to 3.13 ($python is not on the PATH)" "$(how_to_get_python)"
elif ! "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null; then
    lacks "Python 3.11 to 3.13 ($python is $("$python" --version 2>&1))" "$(how_to_get_python)"
elif ! command -v uv > /dev/null 2>&1 \
    && ! "$python" -c 'import ensurepip, venv' 2> /dev/null \
    && ! "$python" -m pip --version > /dev/null 2>&1; then
    lacks "a way to install packages: $python has neither venv nor pip, and there is no uv" \
        "apt-get install python3-venv"
fi

how_to_get_java="apt-get install openjdk-17-jre-headless, or set JAVA_HOME to a newer one"
java=java
[ -n "${JAVA_HOME:-}" ] && java=$JAVA_HOME/bin/java
if ! command -v "$java" > /dev/null 2>&1; then
    if [ -n "${JAVA_HOME:-}" ]; then
        lacks "Java 17 or later (JAVA_HOME is $JAVA_HOME, which has no bin/java)" "$how_to_get_java"
    else
        lacks "Java 17 or later (there is no java on the PATH)" "$how_to_get_java"
    fi
else
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1)
    [ "${version:-0}" -ge 17 ] || lacks "Java 17 or later ($java is Java ${version:-of an unknown version})" "$how_to_get_java"
fi

exit "$missing"
