#!/bin/bash
# Trials of the packages, each a function below. They install packages, upgrade them while a server answers, remove and
# purge them, in a container with systemd or in a bare root. `cargo xtask release --trial` creates the packages and calls
# this script:
#
#     packaging/trials/run.sh DIRECTORY [PART OF A NAME]
#
# DIRECTORY contains:
# - earlier.deb and earlier.rpm: the same programs, packaged as an earlier version; again/ is a second packing of the same
# - this.deb, this.rpm, this.tar.gz, and the packages of the tools (NAME-tools.deb, this-tools.rpm)
# - release, if the programs are those of a release, whose size is checked
# - earlier.version and this.version: the versions in Debian's format
# - SUITE.tar and own.tar: an archive of a root for each suite
#
# Needs root. Prints `test NAME ... ok` or `test NAME ... FAILED` for each trial.
# shellcheck disable=SC2015,SC2016,SC2126  # `fail` exits; what is quoted is for other shells; grep -c fails where it counts 0
set -uo pipefail

readonly packages=$1 only=${2:-}
here=$(dirname "$(readlink -f "$0")")
readonly here
readonly policy=/etc/netpolicy/policy.d/10-trial.toml
# Time limits in seconds: for one command, and until a container is up.
readonly command_limit=120 boot_limit=90
# Maximum sizes in bytes: of the installed package, and of the program.
readonly installed_max=25000000 program_max=20000000
# Maximum time in seconds from a fresh root to its first policy in force; minimum number of requests
# during an upgrade.
readonly first_policy_seconds=60 requests_min=500
# Creates a device with NAPIs in the network namespace of one command.
readonly lab="ip link add veth-server numrxqueues 2 numtxqueues 2 type veth peer name veth-client && ip link set veth-server up && \
ip link set veth-client up && ethtool -K veth-server gro on"

this_version=$(cat "$packages/this.version")
earlier_version=$(cat "$packages/earlier.version")
work=$(mktemp -d "$packages/roots.XXXXXX")
nspawn='' leader='' passed=0
failed=()

clean_up() {
    # When process 1 of the container is killed, the kernel kills all its other processes.
    if [ -n "$leader" ]; then kill -KILL "$leader"; elif [ -n "$nspawn" ]; then kill "$nspawn"; fi
    [ -n "$nspawn" ] && wait "$nspawn"
    rm -rf --one-file-system "$work"
} 2>/dev/null
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

fail() { printf '%s:\n%s\n' "$1" "${2:-}"; exit 1; }

# says TEXT WHAT WORDS...: fails with WHAT unless TEXT has all WORDS.
says() {
    local text=$1 what=$2 words
    shift 2
    for words in "$@"; do [[ $text == *"$words"* ]] || fail "$what" "$text"; done
}

# same BEFORE AFTER WHAT: fails with WHAT unless both texts are equal.
same() { [ "$1" = "$2" ] || fail "$3" "$1
$2"; }

unpack_root() {
    local root=$work/$2
    rm -rf --one-file-system "$root" && mkdir "$root" && tar --directory "$root" --extract --file "$packages/$1.tar" && echo "$root"
}

# in_root ROOT COMMAND: runs COMMAND without systemd, in a network namespace of its own, with /proc
# and /sys as in an operator's chroot.
in_root() {
    unshare --net --mount --pid --fork --kill-child sh -c \
        'mount --make-rprivate / && mount -t proc proc "$1/proc" && mount -t sysfs -o ro sys "$1/sys" &&
         exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive \
         timeout "$3" sh -c "$2" 2>&1' sh "$1" "$2" "$command_limit" </dev/null
}

# c COMMAND: runs COMMAND in the container.
c() {
    nsenter --target="$leader" --mount --uts --ipc --net --pid --cgroup --root /usr/bin/env --chdir=/ -i \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive timeout "$command_limit" \
        sh -c 'exec 2>&1; eval "$1"' sh "$1" </dev/null
}

# refused COMMAND WHAT: prints the output of COMMAND in the container; fails with WHAT if COMMAND
# succeeds.
refused() {
    local said
    if said=$(c "$1"); then fail "$2" "$said"; fi
    printf '%s' "$said"
}

boot() {
    local begun=$SECONDS
    root=$(unpack_root own container) || return 1
    mkdir "$root/packages"
    # Settings below network/ belong to the container's own network namespace; the rest of /proc and
    # /sys is read-only.
    SYSTEMD_NSPAWN_API_VFS_WRITABLE=network setpriv --pdeathsig TERM -- systemd-nspawn --quiet --register=no --keep-unit \
        --private-network --capability=all --boot --console=read-only --directory "$root" --bind-ro="$packages:/packages" \
        </dev/null >"$work/console" 2>&1 &
    nspawn=$!
    while :; do
        read -r leader _ 2>/dev/null <"/proc/$nspawn/task/$nspawn/children"
        if [ -n "$leader" ]; then
            case $(c 'systemctl is-system-running') in running | degraded) break ;; esac
        fi
        if [ $((SECONDS - begun)) -gt $boot_limit ] || ! kill -0 "$nspawn"; then
            echo 'the container did not boot:'
            tail -n 20 "$work/console"
            return 1
        fi
        sleep 0.2
    done
    # systemd-nspawn gives some processes of a container a boot id of their own, which netpolicy would
    # take for a reboot.
    c 'while umount /proc/sys/kernel/random/boot_id 2>/dev/null; do :; done'
    cp "$here/server.pl" "$here/client.pl" "$root/usr/local/bin/"
    c 'ip netns add client && ip link add veth-server numrxqueues 2 numtxqueues 2 type veth peer name veth-client \
       numrxqueues 2 numtxqueues 2 netns client && ip link set veth-server up && ip -n client link set veth-client up &&
       ip address add 192.0.2.1/24 dev veth-server && ip -n client address add 192.0.2.2/24 dev veth-client &&
       ethtool -K veth-server gro on && ip netns exec client ethtool -K veth-client tso off &&
       systemd-run --quiet --unit=trial-server perl /usr/local/bin/server.pl 192.0.2.1 7000'
}

# The settings of the queues, as text to compare.
settings() { c "netpolicy -o json show | grep -E 'flush|defer|suspend|threaded'"; }

# Prints how many queues defer their interrupts for the given number of microseconds.
deferred() { c "netpolicy show" | grep -E "veth-server rx-.*[[:space:]]$1us([[:space:]]|\$)" | wc -l; }

# The pid of the daemon, 0 without one.
daemon() { c 'systemctl show --property=MainPID --value netpolicy.service'; }

install() { c "dpkg --install /packages/$1.deb"; }

# ask MODE: writes a policy file with this mode.
ask() {
    mkdir -p "$root${policy%/*}"
    printf '[device.veth-server]\npolicy = "latency"\ndelivery = "%s"\n' "$1" >"$root$policy"
}

# Checks that no file of the package and none of its settings is left.
as_before() {
    c 'test -e /var/lib/netpolicy' && fail 'the journal is left' "$1"
    install this
    same 0,0 "$(deferred 200),$(deferred 50)" 'settings are left'
    c 'dpkg --purge netpolicy'
}

# --- Trials in the container. Each begins in the state that the previous one left.

a_first_policy_takes_two_commands() {
    local begun=$SECONDS
    c 'apt-get install --yes /packages/this.deb'
    same 0,0 "$(deferred 200),$(daemon)" 'installing set or started something'
    said=$(c 'netpolicy set device veth-server defer200')
    same 2 "$(deferred 200)" 'not in force'
    [ $((SECONDS - begun)) -lt $first_policy_seconds ] || fail 'it took long' "$((SECONDS - begun)) s"
    said=$(c 'getent group netpolicy; stat -c %a /var/lib/netpolicy; netpolicy --version')
    says "$said" 'group, state directory, version' netpolicy: 700 "${this_version%%\~*}"
    [ -e "$packages/release" ] || return 0
    program=$(c 'stat -c %s /usr/sbin/netpolicy')
    all=$(c "dpkg-query --listfiles netpolicy | xargs -d '\\n' stat -c '%F %s' | awk '/regular/ { n += \$NF } END { print n }'")
    [ "$program" -lt $program_max ] || fail 'the program is large' "$program"
    [ "$all" -lt $installed_max ] || fail 'the package is large' "$all"
    echo "trial: the program has $program bytes, all that is installed $all" >&2
}

# The commands of the tools: missing, installed, upgraded with netpolicy, removed.
the_tools_come_and_go_with_their_package() {
    for command in 'tc dump' 'bench live --help' 'help sim'; do
        said=$(c "netpolicy $command; echo exit \$?")
        says "$said" 'the package is not named' 'is not installed' 'install the package netpolicy-tools' 'exit 6'
    done
    install earlier && install earlier-tools
    said=$(c 'apt-get install --yes /packages/this.deb /packages/this-tools.deb')
    same '' "$(c 'dpkg --verify netpolicy netpolicy-tools')" 'files differ'
    tools_work
    same 2 "$(deferred 200)" 'settings changed'
    c 'dpkg --purge netpolicy-tools; dpkg --verify netpolicy'
    [ ! -e "$root/usr/libexec/netpolicy" ] || fail 'the tools are left'
}

# tools_work: checks that the commands of the tools run, and that their manual pages exist.
tools_work() {
    said=$(c "netpolicy tc load --dry-run - <<'END' && netpolicy sim run --help | head -n 1 && ls /usr/share/man/man8/netpolicy-tc-load.8.gz
filter add dev lo ingress protocol ip prio 1 u32 match ip src 10.0.0.1 action drop
END")
    says "$said" 'the tools do not work' '1 command' 'Predict' netpolicy-tc-load
}

# In earlier versions, one package contained all commands: the tools' files move to the other package,
# in whichever order the packages are unpacked.
an_upgrade_from_one_package_to_two_loses_nothing() {
    dpkg-deb --raw-extract "$packages/earlier.deb" "$root/whole"
    dpkg-deb --extract "$packages/earlier-tools.deb" "$root/whole"
    rm "$root/whole/usr/share/doc/netpolicy-tools" "$root/whole/usr/share/lintian/overrides/netpolicy-tools"
    dpkg-deb -Zgzip -z1 --build "$root/whole" "$root/whole.deb" >/dev/null
    for order in 'apt-get install --yes /packages/this-tools.deb /packages/this.deb' \
        'dpkg --auto-deconfigure --unpack /packages/this-tools.deb && dpkg --install /packages/this.deb && dpkg --configure --pending'; do
        c 'dpkg --purge netpolicy-tools; apt-get install --yes --allow-downgrades /whole.deb'
        said=$(c "$order")
        same '' "$(c 'dpkg --verify netpolicy netpolicy-tools')" "$order"
        tools_work
        same 2 "$(deferred 200)" 'settings changed'
    done
    # If the tools are not installed, the upgrade removes their files, which the one package contained.
    c 'dpkg --purge netpolicy-tools && dpkg --install /whole.deb && dpkg --install /packages/this.deb'
    said=$(c 'ls /usr/share/man/man8/netpolicy-tc.8.gz /usr/libexec/netpolicy; true')
    [[ $said != */usr/libexec/netpolicy/netpolicy-tc* && $said == *'cannot access'* ]] || fail 'files of the tools are left' "$said"
    rm -r "$root/whole" "$root/whole.deb"
}

removal_leaves_packets_as_they_are_and_purge_rolls_back_first() {
    before=$(c 'ls /var/lib/netpolicy/journal')
    said=$(c 'dpkg --remove netpolicy')
    says "$said" 'no way back named' 'settings stay in force' 'sh /var/lib/netpolicy/roll-back.sh'
    c 'test -e /usr/sbin/netpolicy' && fail 'the program is still there'
    same "$before" "$(c 'ls /var/lib/netpolicy/journal')" 'the journal changed'
    # A newly installed program recognizes the settings that are in force; then the package is purged
    # at once.
    said=$(install earlier)
    same 2 "$(deferred 200)" 'removal changed settings'
    said=$(c 'netpolicy history')
    says "$said" 'history lost it' kept
    said=$(c 'dpkg --purge netpolicy')
    says "$said" 'the purge put nothing back' 'restored to 0'
    left=$(c 'ls -d /var/lib/netpolicy /etc/netpolicy /run/netpolicy /usr/share/netpolicy 2>/dev/null || true')
    same '' "$left" 'the purge left files'
    install earlier
    same 0 "$(deferred 200)" 'the purge left settings'
    c 'dpkg --purge netpolicy'
}

# Installs the package over files that `make install` installed, while their daemon runs.
what_make_install_laid_out_is_upgraded_with_what_is_in_force() {
    c 'mkdir /tmp/laid && dpkg-deb --extract /packages/earlier.deb /tmp/laid && rm -r /tmp/laid/usr/share/doc /tmp/laid/etc &&
       cp -r /tmp/laid/usr / && systemd-sysusers && systemd-tmpfiles --create netpolicy.conf'
    ask defer200
    # In a container, the units start only if an operator enables them.
    for unit in netpolicy netpolicy-attach; do
        mkdir -p "$root/etc/systemd/system/$unit.service.d"
        printf '[Unit]\nConditionVirtualization=\n' >"$root/etc/systemd/system/$unit.service.d/container.conf"
    done
    c 'systemctl daemon-reload && systemctl enable --now netpolicy.service'
    same 2 "$(deferred 200)" "the daemon set nothing: $(c 'journalctl -u netpolicy --no-pager | tail')"
    before=$(settings) history=$(c 'netpolicy -o json history') process=$(daemon)
    said=$(install earlier)
    [ "$(daemon)" != "$process" ] && [ "$(daemon)" != 0 ] || fail 'the daemon was not replaced' "$said"
    same "$before" "$(settings)" 'settings changed'
    same "$history" "$(c 'netpolicy -o json history')" 'the journal changed'
}

# Starts a client that sends requests continuously, and a loop that compares the settings continuously.
an_upgrade_under_load_fails_no_request_and_changes_no_setting() {
    before=$(settings) history=$(c 'netpolicy -o json history') process=$(daemon)
    c "rm -f /run/stop /run/client /run/drift && systemd-run --quiet --unit=trial-client sh -c \
       'ip netns exec client perl /usr/local/bin/client.pl 192.0.2.1 7000 /run/stop > /run/client'"
    # Uses a copy of the earlier program to read the settings, because the installed one is replaced
    # meanwhile.
    c "cp /usr/sbin/netpolicy /run/looks && systemd-run --quiet --unit=trial-looks sh -c \
       'while ! test -e /run/stop; do /run/looks --quiet verify && echo same || echo drift; done > /run/drift'"
    sleep 1
    said=$(install this)
    c 'sleep 1; touch /run/stop; sleep 1; systemctl is-active --quiet trial-client && sleep 2 || true'
    client=$(c 'cat /run/client') drift=$(c 'sort /run/drift | uniq -c')
    [[ $client =~ requests\ +([0-9]+) && ${BASH_REMATCH[1]} -ge $requests_min ]] || fail 'too few requests to tell' "$client"
    [[ $client =~ failed\ +0($|[^0-9]) ]] || fail 'requests failed' "$client"
    [[ $drift == *same* && $drift != *drift* ]] || fail 'settings drifted meanwhile' "$drift"
    [ "$(daemon)" != "$process" ] && [ "$(daemon)" != 0 ] || fail 'the daemon was not replaced' "$said"
    same "$before" "$(settings)" 'settings changed'
    same "$history" "$(c 'netpolicy -o json history')" 'the journal changed'
    same /usr/sbin/netpolicy "$(c 'readlink /proc/$(systemctl show --property=MainPID --value netpolicy.service)/exe')" \
        'the daemon is the earlier program'
    echo "trial: upgraded: $client; looks: $drift" >&2
}

a_downgrade_keeps_what_is_in_force() {
    before=$(settings) history=$(c 'netpolicy -o json history')
    said=$(install earlier)
    says "$said" 'it is not said' "going back from $this_version to $earlier_version" 'settings stay in force'
    same "$before" "$(settings)" 'settings changed'
    [ "$(daemon)" != 0 ] || fail 'the daemon is gone' "$said"
    same "$history" "$(c 'netpolicy -o json history')" 'the journal changed'
    install this
}

# Starts the daemon with each of the shipped units: it starts in its sandbox and serves metrics.
the_drop_ins_of_the_page_on_monitoring_serve_metrics() {
    local page=$here/../../docs/howto/monitoring.md file=/etc/systemd/system/netpolicy.service.d/monitoring.conf
    c 'mkdir -p /var/lib/node_exporter/textfile'
    same 2 "$(grep -c '^```ini$' "$page")" 'the page has other drop-ins'
    for at in 1 2; do
        awk -v at=$at '/^```ini$/ { seen++; on = seen == at; next } /^```$/ { on = 0 } on' "$page" >"$root$file"
        c 'systemctl daemon-reload && systemctl restart netpolicy.service' ||
            fail "with $(cat "$root$file")" "$(c 'journalctl --unit=netpolicy --no-pager --lines=20')"
        if [ $at = 1 ]; then
            look='exec 3<>/dev/tcp/127.0.0.1/9989 && echo GET /metrics HTTP/1.0 >&3 && echo >&3 && cat <&3'
        else
            look='until test -s /var/lib/node_exporter/textfile/netpolicy.prom; do sleep 0.2; done
                  cat /var/lib/node_exporter/textfile/netpolicy.prom'
        fi
        said=$(c "timeout 30 bash -c '$look'")
        says "$said" 'no metrics' 'netpolicy_settings_held 4'
    done
    c "rm $file && systemctl daemon-reload && systemctl restart netpolicy.service"
}

# The package is unpacked but not configured, as after a power loss; the earlier daemon keeps running.
what_is_half_installed_can_be_finished() {
    before=$(settings) process=$(daemon)
    c 'dpkg --unpack /packages/earlier.deb'
    same unpacked "$(c 'dpkg-query --show --showformat="\${db:Status-Status}" netpolicy')" 'it is not half installed'
    same "$process$before" "$(daemon)$(settings)" 'half an installation changed something'
    said=$(c 'netpolicy history')
    [[ $said == *kept* && $said != *unreadable* ]] || fail 'the new program cannot read the journal' "$said"
    said=$(c 'dpkg --configure --pending')
    [ "$(daemon)" != "$process" ] || fail 'the daemon was not replaced' "$said"
    same "$before" "$(settings)" 'configuring changed settings'
    install this
}

# The journal's file system has no free block.
with_var_full_nothing_is_set_and_nothing_is_lost() {
    before=$(settings)
    c 'systemctl stop netpolicy netpolicy-attach; cp -a /var/lib/netpolicy /run/kept; mount -t tmpfs -o size=256k tmpfs \
       /var/lib/netpolicy && cp -a /run/kept/. /var/lib/netpolicy/; cat /dev/zero > /var/lib/netpolicy/full 2>/dev/null || true'
    said=$(refused 'netpolicy set device veth-server defer50' 'it is not refused')
    says "$said" 'no clear message' 'No space left on device' 'Nothing was changed'
    same "$before" "$(settings)" 'something was set'
    # Installs and removes the package on the full file system: netpolicy reports what it cannot
    # write, and settings stay in force.
    install earlier
    said=$(c 'dpkg --remove netpolicy')
    says "$said" 'no way back named' undo.sh
    c 'rm /var/lib/netpolicy/full; umount /var/lib/netpolicy; rm -rf /run/kept'
    install this
    same "$before" "$(settings)" 'settings changed'
    c 'systemctl start netpolicy'
}

# Uses a key that this version does not know.
a_policy_file_of_a_later_version_is_named_and_the_policy_kept() {
    before=$(settings)
    ask defer50
    echo 'foresight = 3' >>"$root$policy"
    said=$(c 'systemctl reload netpolicy && sleep 1; netpolicy plan; netpolicy status; true')
    says "$said" 'no line or no version is named' '`foresight` is not a key' "$policy:4:1" 'this is netpolicy 0.'
    same "$before" "$(settings)" 'the policy of before was given up'
    # A daemon does not start with this policy file, and changes nothing.
    said=$(refused 'systemctl restart netpolicy' 'it starts')
    same "$before" "$(settings)" 'a refused start changed settings'
    ask defer200
    c 'systemctl reset-failed netpolicy; systemctl restart netpolicy'
}

a_second_daemon_is_refused_with_the_pid_of_the_first() {
    before=$(settings) process=$(daemon)
    c 'mkdir -p /opt/other && dpkg-deb --extract /packages/earlier.deb /opt/other'
    for state in '' '--state-dir /run/other-state'; do
        said=$(refused "/opt/other/usr/sbin/netpolicy $state daemon; code=\$?; echo \"exit \$code\"; exit \$code" 'it is not refused')
        says "$said" 'it is not refused' 'exit 7' "$process"
    done
    same "$process$before" "$(daemon)$(settings)" 'something changed'
    # The next installation names another copy of the program in /usr/local.
    c 'mkdir -p /usr/local/sbin && cp /opt/other/usr/sbin/netpolicy /usr/local/sbin/'
    said=$(install this)
    c 'rm -r /usr/local/sbin/netpolicy /opt/other'
    says "$said" 'it is not named' "/usr/local/sbin/netpolicy comes before this package's"
}

# The undo script of the settings in force fails: a purge must not remove the journal.
a_purge_that_cannot_roll_back_keeps_the_journal() {
    c 'dpkg --remove netpolicy'
    c "cp /var/lib/netpolicy/roll-back.sh /run/kept.sh && echo 'exit 5' > /var/lib/netpolicy/roll-back.sh"
    said=$(refused 'dpkg --purge netpolicy' 'it is purged')
    says "$said" 'no clear message' 'the journal stays: /var/lib/netpolicy'
    c 'test -d /var/lib/netpolicy/journal && cp /run/kept.sh /var/lib/netpolicy/roll-back.sh'
    said=$(c 'dpkg --purge netpolicy')
    says "$said" 'the second purge put nothing back' 'restored to 0'
    install this
    same 0 "$(deferred 200)" 'settings stayed'
    c 'dpkg --purge netpolicy'
}

# The package is unpacked but not configured: no script of the package runs before its files are removed.
a_purge_of_what_was_never_configured_rolls_back_first() {
    install this
    c 'netpolicy set device veth-server defer200 && netpolicy set device veth-server defer50'
    c 'dpkg --unpack /packages/earlier.deb'
    said=$(c 'dpkg --purge netpolicy')
    says "$said" 'the purge put nothing back' 'restored to 0'
    as_before "$said"
}

# The undo script of the settings in force cannot be written: the journal must not be removed before
# its settings are undone.
a_purge_with_var_full_rolls_back_first() {
    install this
    c 'mount -t tmpfs -o size=256k,mode=700 tmpfs /var/lib/netpolicy && netpolicy set device veth-server defer200;
       cat /dev/zero > /var/lib/netpolicy/full 2>/dev/null || true'
    same 2 "$(deferred 200)" 'not in force'
    said=$(c 'dpkg --purge netpolicy; code=$?; umount /var/lib/netpolicy; rmdir /var/lib/netpolicy; exit $code')
    says "$said" 'the purge put nothing back' 'restored to 0'
    as_before "$said"
}

# The journal is on another disk: dpkg must not remove the link to it.
removal_leaves_a_journal_on_another_disk() {
    c 'mkdir -m 0700 /srv/journal && ln -s /srv/journal /var/lib/netpolicy'
    install this
    c 'netpolicy set device veth-server defer200 && dpkg --remove netpolicy'
    c 'test -f /var/lib/netpolicy/roll-back.sh' || fail 'the link went'
    install this
    said=$(c 'netpolicy history')
    says "$said" 'history lost it' kept
    said=$(c 'dpkg --purge netpolicy && rmdir /srv/journal')
    says "$said" 'the purge put nothing back' 'restored to 0'
    as_before "$said"
}

# Creates a directory of another user, with a script that root must not run.
a_purge_runs_no_script_of_another_user() {
    install this
    c "chown 65534 /var/lib/netpolicy && mkdir /var/lib/netpolicy/journal && ln -s /run/overwritten \
       /var/lib/netpolicy/roll-back.sh.new && echo 'touch /run/run-as-root' > /var/lib/netpolicy/roll-back.sh"
    said=$(refused 'dpkg --purge netpolicy' 'it is not refused')
    says "$said" 'it is not refused' 'belongs to another user'
    c 'test -e /run/run-as-root || test -e /run/overwritten' && fail 'root ran or wrote what another user laid there'
    said=$(c 'rm -r /var/lib/netpolicy && dpkg --purge netpolicy')
    as_before "$said"
}

# A daemon that was not started by a unit holds the journal.
a_purge_under_a_daemon_of_no_unit_is_refused() {
    install this
    ask defer200
    c 'setsid netpolicy daemon >/run/by-hand.log 2>&1 &
       for i in $(seq 100); do netpolicy show | grep -q 200us && exit; sleep 0.1; done; cat /run/by-hand.log; exit 1'
    said=$(refused 'dpkg --purge netpolicy' 'it is not refused')
    says "$said" 'it is not refused' 'a netpolicy is at work' 'the journal stays'
    [[ $said != *'restored to'* ]] || fail 'something was restored under the daemon' "$said"
    said=$(c 'kill $(cat /var/lib/netpolicy/journal/daemon) &&
              flock /var/lib/netpolicy/journal/daemon dpkg --version >/dev/null && dpkg --purge netpolicy')
    says "$said" 'the purge put nothing back' 'restored to 0'
    as_before "$said"
}

# --- Trials in roots without a container.

# Names, modes, times and order are all chosen.
the_same_program_packs_to_the_same_bytes() {
    same "$(cat "$packages/earlier/SHA256SUMS")" "$(cat "$packages/again/SHA256SUMS")" 'other bytes'
    same 6 "$(wc -l <"$packages/again/SHA256SUMS")" 'other files'
}

# A chroot, as in containers and rescue systems: no init runs as process 1.
a_root_without_systemd_takes_the_package_and_a_policy() {
    bare=$(unpack_root own bare)
    cp "$packages/this.deb" "$bare/netpolicy.deb"
    said=$(in_root "$bare" "dpkg --install /netpolicy.deb && $lab && netpolicy set device veth-server defer200 && netpolicy verify &&
                            dpkg --purge netpolicy && ls -d /var/lib/netpolicy || true")
    says "$said" 'no policy was applied' '4 settings are in force as applied'
    says "$said" 'not purged' 'restored to 0' "cannot access '/var/lib/netpolicy'"
}

# Uses rpm's own tools, and a root that has only rpm's database.
rpm_installs_verifies_and_erases() {
    bare=$(unpack_root own bare)
    # The scripts of the package find a /proc, as on a host.
    of_rpm() { unshare --mount sh -c 'mount --bind /proc "$0/proc" && exec rpm --root "$0" "$@" 2>&1' "$bare" "$@"; }
    # The journal is on another disk: rpm must not remove the link to it.
    mkdir -p "$bare/srv/journal"
    ln -s ../../srv/journal "$bare/var/lib/netpolicy"
    cp "$packages/this.rpm" "$bare/netpolicy.rpm"
    cp "$packages/this-tools.rpm" "$bare/netpolicy-tools.rpm"
    cp "$packages/earlier.rpm" "$bare/earlier.rpm"
    rpm --checksig --nosignature "$bare/netpolicy.rpm"
    # dpkg installed /bin/sh, which is not in rpm's database.
    of_rpm --install --nodeps "$bare/netpolicy.rpm"
    of_rpm --verify --nodeps netpolicy
    said=$(in_root "$bare" "$lab && netpolicy set device veth-server defer200 && netpolicy verify; cat /etc/group")
    says "$said" 'no policy was applied' '4 settings are in force as applied' netpolicy:
    # The earlier netpolicy package contained all commands.
    of_rpm --upgrade --nodeps --oldpackage "$bare/earlier.rpm"
    of_rpm --upgrade --nodeps "$bare/netpolicy.rpm" "$bare/netpolicy-tools.rpm"
    of_rpm --verify --nodeps netpolicy netpolicy-tools
    said=$(in_root "$bare" 'netpolicy tc load --dry-run /dev/null; netpolicy sim --help')
    says "$said" 'the tools do not work' '0 commands' Predict
    of_rpm --erase netpolicy-tools
    said=$(of_rpm --erase netpolicy)
    says "$said" 'no way back named' 'sh /var/lib/netpolicy/roll-back.sh'
    [ ! -e "$bare/usr/sbin/netpolicy" ] && [ -e "$bare/var/lib/netpolicy/journal" ] || fail 'not erased, or the journal too'
}

# --- Trials that only a released program passes: that of the tests needs this machine's libraries.

one_program_runs_on_debian_11_12_and_13() {
    for suite in bullseye bookworm trixie; do
        bare=$(unpack_root $suite bare)
        cp "$packages/this.deb" "$bare/netpolicy.deb"
        said=$(in_root "$bare" "dpkg --install /netpolicy.deb && $lab && netpolicy set device veth-server defer200 &&
                                netpolicy verify && netpolicy doctor --seconds 0; dpkg --purge netpolicy")
        says "$said" "$suite" '4 settings are in force as applied' 'restored to 0'
        echo "trial: installed, applied, purged on $suite" >&2
    done
}

the_archive_unpacks_over_a_root() {
    bare=$(unpack_root own bare)
    tar --directory "$bare" --extract --keep-directory-symlink --file "$packages/this.tar.gz"
    said=$(in_root "$bare" "$lab && netpolicy set device veth-server defer200 && netpolicy verify && netpolicy sim --help")
    says "$said" 'no policy was applied' '4 settings are in force as applied' Predict
}

# Runs lintian; the package's overrides list what it may find, with reasons.
lintian_finds_nothing_but_what_is_listed() {
    same '' "$(lintian --allow-root --fail-on error,warning --tag-display-limit 0 "$packages/this.deb" "$packages/this-tools.deb")" lintian
}

readonly in_container="a_first_policy_takes_two_commands the_tools_come_and_go_with_their_package
an_upgrade_from_one_package_to_two_loses_nothing removal_leaves_packets_as_they_are_and_purge_rolls_back_first
what_make_install_laid_out_is_upgraded_with_what_is_in_force an_upgrade_under_load_fails_no_request_and_changes_no_setting
a_downgrade_keeps_what_is_in_force the_drop_ins_of_the_page_on_monitoring_serve_metrics what_is_half_installed_can_be_finished
with_var_full_nothing_is_set_and_nothing_is_lost a_policy_file_of_a_later_version_is_named_and_the_policy_kept
a_second_daemon_is_refused_with_the_pid_of_the_first a_purge_that_cannot_roll_back_keeps_the_journal
a_purge_of_what_was_never_configured_rolls_back_first a_purge_with_var_full_rolls_back_first removal_leaves_a_journal_on_another_disk
a_purge_runs_no_script_of_another_user a_purge_under_a_daemon_of_no_unit_is_refused"
readonly in_roots="the_same_program_packs_to_the_same_bytes a_root_without_systemd_takes_the_package_and_a_policy
rpm_installs_verifies_and_erases"
readonly of_release="one_program_runs_on_debian_11_12_and_13 the_archive_unpacks_over_a_root lintian_finds_nothing_but_what_is_listed"

try() {
    local status
    # Runs a trial in a subshell that ends with the first failure, which `set -e` would not do in a
    # condition.
    (
        set -e
        "$1"
    ) >"$work/said"
    status=$?
    if [ $status = 0 ]; then
        echo "test packages/$1 ... ok"
        passed=$((passed + 1))
    else
        echo "test packages/$1 ... FAILED"
        cat "$work/said"
        failed+=("$1")
    fi
}

is_wanted() { [[ packages/$1 == *"$only"* ]]; }

for trial in $in_container; do
    is_wanted "$trial" || continue
    if [ -z "$nspawn" ] && ! boot; then exit 1; fi
    try "$trial"
done
for trial in $in_roots $([ -e "$packages/release" ] && echo "$of_release"); do
    if is_wanted "$trial"; then try "$trial"; fi
done
echo "$passed passed, ${#failed[@]} failed"
[ ${#failed[@]} = 0 ]
