#!/bin/sh
# Checks the models: `check.sh` each and its mutations in seconds, `check.sh full` in wider bounds too.
# Needs spin and gcc. Prints a table; exits with 1 if the protocol has a counterexample, or a mutation has none.
set -eu
models=$(cd "$(dirname "$0")" && pwd)
for tool in spin gcc; do
    command -v "$tool" > /dev/null || { echo "$tool is not on the path: apt-get install $tool" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# check MODEL NAME EXPECTED DEFINITION...
check() {
    model=$1 name=$2 expected=$3
    shift 3
    rm -rf "$work/run" && mkdir "$work/run" && cd "$work/run"
    cp "$models"/*.pml .
    spin "$@" -a "$model.pml" > spin.txt 2>&1 || { cat spin.txt >&2; exit 1; }
    gcc -w -O2 -DSAFETY -DCOLLAPSE -DMEMLIM=8000 -o pan pan.c
    ./pan -m100000 -w24 > out.txt 2>&1 || true
    states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' out.txt)
    seconds=$(sed -n 's/pan: elapsed time \([0-9.e+]*\) seconds.*/\1/p' out.txt)
    megabytes=$(sed -n 's/ *\([0-9]*\)[0-9.]*\ttotal actual memory usage.*/\1/p' out.txt)
    found=$(sed -n 's/pan:1: \(.*\) (at depth.*/\1/p' out.txt)
    if grep -q 'errors: 0' out.txt && ! grep -qE 'Search not completed|too small|out of memory' out.txt; then
        result=holds
    elif [ -n "$found" ]; then
        result="counterexample: $found"
    else
        result="not completed"
    fi
    case "$result" in
    "$expected"*) ;;
    *) failed=1 && result="$result, NOT AS EXPECTED" ;;
    esac
    echo "| $model | $name | $* | ${states:-?} | ${megabytes:-?} | ${seconds:-?} | $result |"
}

echo "| model | protocol | bounds | states | MB | s | result |"
echo "|---|---|---|---|---|---|---|"
small="-DDRIVERS=2 -DUNITS=2 -DTRIES=1 -DTROUBLES=1"
check protocol "as it is" holds $small
check protocol "as it is" holds -DDRIVERS=1 -DUNITS=4 -DTRIES=5 -DTROUBLES=4
check protocol "as it is" holds -DDRIVERS=1 -DUNITS=2 -DTRIES=4 -DTROUBLES=3 -DPARTITIONS=2
for mutation in ALWAYS_MINUS_ONE NO_EPOCH_BUMP ABORT_AFTER_COMMIT SKIP_REPLAY_CHECK NO_CLAIM READ_BEFORE_TAKE_OVER \
    DECIDE_WITHOUT_CLAIM NO_VERIFICATION; do
    check protocol "$mutation" counterexample $small "-D$mutation"
done
small="-DDRIVERS=2 -DUNITS=2 -DSINKS=1 -DTROUBLES=1"
check sinks "as it is" holds $small
check sinks "as it is" holds -DDRIVERS=2 -DUNITS=2 -DSINKS=2 -DTROUBLES=1
for mutation in NO_SINK_CLAIM NO_RUN_CHECK CLAIM_WITHOUT_LOCK SKIP_SINK_LEDGER NO_CLAIM_AFTER_UNKNOWN LEDGER_FIRST \
    ATTEMPT_AFTER_FAILED_CLAIM ABORT_AFTER_UNKNOWN; do
    check sinks "$mutation" counterexample $small "-D$mutation"
done
tables="-DTABLES $small -DOTHERS=0"
check sinks "as it is" holds $tables
check sinks "as it is" holds -DTABLES -DDRIVERS=1 -DUNITS=3 -DSINKS=1 -DTROUBLES=2
check sinks "as it is" holds -DTABLES -DDRIVERS=1 -DUNITS=2 -DSINKS=2 -DTROUBLES=2
for mutation in NO_SINK_CLAIM NO_RUN_CHECK NO_COMPARE BLIND_RETRY REFUSED_IS_NO ABORT_AFTER_UNKNOWN; do
    check sinks "$mutation" counterexample $tables "-D$mutation"
done
check sinks STALE_NOTE counterexample -DDRIVERS=2 -DUNITS=3 -DSINKS=1 -DTROUBLES=0 -DSTALE_NOTE
if [ "${1:-}" = full ]; then
    check protocol "as it is" holds -DDRIVERS=2 -DUNITS=2 -DTRIES=1 -DTROUBLES=2
    check protocol "as it is" holds -DDRIVERS=2 -DUNITS=2 -DTRIES=2 -DTROUBLES=1
    check protocol "as it is" holds -DDRIVERS=2 -DUNITS=3 -DTRIES=1 -DTROUBLES=1
    check sinks "as it is" holds -DDRIVERS=2 -DUNITS=3 -DSINKS=1 -DTROUBLES=2
    check sinks "as it is" holds -DDRIVERS=1 -DUNITS=3 -DSINKS=2 -DTROUBLES=3
    check sinks "as it is" holds -DTABLES -DDRIVERS=2 -DUNITS=2 -DSINKS=1 -DTROUBLES=1
fi
exit $failed
