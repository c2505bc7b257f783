//! A package's life on a host with systemd: installed, upgraded, gone back from, removed, purged.

use std::time::Instant;

use super::container::Container;
use super::{Packages, must, says};
use crate::files;
use crate::shell::{self, Result};

/// How long a fresh root may take to its first policy in force, in seconds.
const FIRST_POLICY_SECONDS: u64 = 60;
/// How large the package may be, installed, and the program, in bytes.
const INSTALLED_BYTES_MAX: u64 = 25_000_000;
const PROGRAM_BYTES_MAX: u64 = 20_000_000;
/// How many requests a run of the client makes at least, for a failure to have a chance.
const REQUESTS_MIN: u64 = 500;

/// A policy file for the device of [`prepare`].
pub(super) const POLICY: &str = "/etc/netpolicy/policy.d/10-trial.toml";

/// The page on monitoring, and how many drop-ins for the unit it has: one for a socket, one for a file.
const MONITORING: &str = "docs/howto/monitoring.md";
const DROP_INS: usize = 2;

/// Makes a lab in the container: a device of two queues, and a client's namespace at its other end.
pub(super) fn prepare(container: &Container) -> Result {
    // systemd-nspawn gives some of a container's processes a boot id of its own. That is not a reboot.
    container.runs("while umount /proc/sys/kernel/random/boot_id 2>/dev/null; do :; done")?;
    container.runs(
        "ip netns add client && ip link add veth-server numrxqueues 2 numtxqueues 2 type veth peer name veth-client \
         numrxqueues 2 numtxqueues 2 netns client && ip link set veth-server up && ip -n client link set veth-client up && \
         ip address add 192.0.2.1/24 dev veth-server && ip -n client address add 192.0.2.2/24 dev veth-client && \
         ethtool -K veth-server gro on && ip netns exec client ethtool -K veth-client tso off",
    )?;
    for (name, text) in [("server.pl", include_str!("server.pl")), ("client.pl", include_str!("client.pl"))] {
        files::write(&container.root().0.join("usr/local/bin").join(name), text)?;
    }
    container
        .runs("systemd-run --quiet --unit=trial-server perl /usr/local/bin/server.pl 192.0.2.1 7000")
        .map(drop)
}

/// The settings of the device's queues and the settings that are held, as text to compare.
pub(super) fn settings(container: &Container) -> Result<String> {
    container.runs("netpolicy -o json show | grep -E 'flush|defer|suspend|threaded'")
}

/// How many queues defer their interrupts for so long.
pub(super) fn deferred(container: &Container, microseconds: u32) -> Result<usize> {
    let table = container.runs("netpolicy show")?;
    let value = format!("{microseconds}us");
    Ok(table
        .lines()
        .filter(|l| l.contains("veth-server rx-") && l.split_whitespace().any(|w| w == value))
        .count())
}

/// The daemon's process, 0 without one.
pub(super) fn daemon(container: &Container) -> Result<u32> {
    let pid = container.runs("systemctl show --property=MainPID --value netpolicy.service")?;
    pid.trim().parse().map_err(|error| format!("MainPID {pid:?}: {error}"))
}

/// Installs a package that is in /packages.
pub(super) fn install(container: &Container, package: &str) -> Result<String> {
    container.runs(&format!("dpkg --install /packages/{package}"))
}

/// Starts the daemon with a policy for the device. In a container the units start only where an operator says so.
pub(super) fn start(container: &Container, delivery: &str) -> Result {
    ask(container, delivery)?;
    for unit in ["netpolicy", "netpolicy-attach"] {
        let drop_in = format!("/etc/systemd/system/{unit}.service.d/container.conf");
        files::write(&container.root().0.join(&drop_in[1..]), "[Unit]\nConditionVirtualization=\n")?;
    }
    container.runs("systemctl daemon-reload && systemctl enable --now netpolicy.service").map(drop)
}

/// Writes the policy file.
pub(super) fn ask(container: &Container, delivery: &str) -> Result {
    let text = format!("[device.veth-server]\npolicy = \"latency\"\ndelivery = \"{delivery}\"\n");
    files::write(&container.root().0.join(&POLICY[1..]), &text)
}

/// Two commands, and they have said what else to look at.
pub(super) fn first_policy(container: &Container, packages: &Packages) -> Result {
    let begun = Instant::now();
    container.runs(&format!("apt-get install --yes /packages/{}", packages.this))?;
    must(
        deferred(container, 200)? == 0 && daemon(container)? == 0,
        "installing set or started something",
        "",
    )?;
    let said = container.runs("netpolicy set device veth-server defer200")?;
    must(deferred(container, 200)? == 2, "not in force", &said)?;
    must(
        begun.elapsed().as_secs() < FIRST_POLICY_SECONDS,
        "it took long",
        &format!("{:?}", begun.elapsed()),
    )?;
    eprintln!("trial: a first policy after {:.1} s", begun.elapsed().as_secs_f64());
    let group =
        container.runs("getent group netpolicy; stat -c %a /var/lib/netpolicy; netpolicy --version")?;
    says(&group, &["netpolicy:", "700"], "group and state directory")?;
    must(group.contains(&packages.version.number), "the version", &group)?;
    if packages.released {
        let program = container.runs("stat -c %s /usr/sbin/netpolicy")?;
        let listed = container.runs("dpkg-query --listfiles netpolicy | xargs -d '\\n' stat -c '%F %s' | awk '/regular/ { n += $NF } END { print n }'")?;
        let small = |text: &str, most: u64| text.trim().parse::<u64>().is_ok_and(|size| size < most);
        must(small(&program, PROGRAM_BYTES_MAX), "the program is large", &program)?;
        must(small(&listed, INSTALLED_BYTES_MAX), "the package is large", &listed)?;
        eprintln!("trial: the program has {} bytes, all that is installed {}", program.trim(), listed.trim());
    }
    Ok(())
}

/// With what [`first_policy`] left in force.
pub(super) fn removed_and_purged(container: &Container, _: &Packages) -> Result {
    let before = container.runs("ls /var/lib/netpolicy/journal")?;
    let said = container.runs("dpkg --remove netpolicy")?;
    says(&said, &["settings stay in force", "sh /var/lib/netpolicy/roll-back.sh"], "no way back named")?;
    must(container.runs("test -e /usr/sbin/netpolicy").is_err(), "the program is still there", "")?;
    must(container.runs("ls /var/lib/netpolicy/journal")? == before, "the journal changed", &before)?;
    // Installed again, it knows them; then purged at once.
    let said = container.runs("ls /packages/*earlier*.deb | xargs dpkg --install")?;
    must(deferred(container, 200)? == 2, "removal changed settings", &said)?;
    must(container.runs("netpolicy history")?.contains("kept"), "history lost it", "")?;
    let said = container.runs("dpkg --purge netpolicy")?;
    says(&said, &["put back to 0"], "the purge put nothing back")?;
    let left = container.runs(
        "ls -d /var/lib/netpolicy /etc/netpolicy /run/netpolicy /usr/share/netpolicy 2>/dev/null || true",
    )?;
    must(left.trim().is_empty(), "the purge left files", &left)?;
    let said = container.runs("ls /packages/*earlier*.deb | xargs dpkg --install")?;
    must(deferred(container, 200)? == 0, "the purge left settings", &said)?;
    container.runs("dpkg --purge netpolicy").map(drop)
}

/// The files as `make install` lays them out, a daemon that runs, and a package over it.
pub(super) fn from_make_install(container: &Container, packages: &Packages) -> Result {
    let laid = "mkdir /tmp/laid && dpkg-deb --extract /packages/EARLIER /tmp/laid && rm -r /tmp/laid/usr/share/doc \
                /tmp/laid/etc && cp -r /tmp/laid/usr / && systemd-sysusers && systemd-tmpfiles --create netpolicy.conf";
    container.runs(&laid.replace("EARLIER", &packages.earlier))?;
    start(container, "defer200")?;
    must(
        deferred(container, 200)? == 2,
        "the daemon set nothing",
        &container.runs("journalctl -u netpolicy --no-pager | tail")?,
    )?;
    let (before, history, process) =
        (settings(container)?, container.runs("netpolicy -o json history")?, daemon(container)?);
    let said = install(container, &packages.earlier)?;
    must(daemon(container)? != process && daemon(container)? != 0, "the daemon was not replaced", &said)?;
    must(settings(container)? == before, "settings changed", &said)?;
    must(container.runs("netpolicy -o json history")? == history, "the journal changed", &said)
}

/// A client that asks all the time, and somebody who compares the settings all the time.
pub(super) fn upgraded_under_load(container: &Container, packages: &Packages) -> Result {
    let (before, history, process) =
        (settings(container)?, container.runs("netpolicy -o json history")?, daemon(container)?);
    container.runs(
        "rm -f /run/stop /run/client /run/drift && systemd-run --quiet --unit=trial-client sh -c \
         'ip netns exec client perl /usr/local/bin/client.pl 192.0.2.1 7000 /run/stop > /run/client'",
    )?;
    // The program of before does the looking, for the one that is installed is replaced meanwhile.
    container.runs(
        "cp /usr/sbin/netpolicy /run/looks && systemd-run --quiet --unit=trial-looks sh -c \
         'while ! test -e /run/stop; do /run/looks --quiet verify && echo same || echo drift; done > /run/drift'",
    )?;
    container.runs("sleep 1")?;
    let said = install(container, &packages.this)?;
    container.runs(
        "sleep 1; touch /run/stop; sleep 1; systemctl is-active --quiet trial-client && sleep 2 || true",
    )?;
    let (client, drift) = (container.runs("cat /run/client")?, container.runs("sort /run/drift | uniq -c")?);
    let number = |name: &str| {
        let after = client.split_whitespace().skip_while(|word| *word != name).nth(1);
        after.and_then(|count| count.parse::<u64>().ok())
    };
    must(number("requests").is_some_and(|count| count >= REQUESTS_MIN), "too few requests to tell", &client)?;
    must(number("failed") == Some(0), "requests failed", &client)?;
    must(drift.contains("same") && !drift.contains("drift"), "settings drifted meanwhile", &drift)?;
    must(daemon(container)? != process && daemon(container)? != 0, "the daemon was not replaced", &said)?;
    must(settings(container)? == before, "settings changed", &said)?;
    must(container.runs("netpolicy -o json history")? == history, "the journal changed", &said)?;
    let runs = container
        .runs("readlink /proc/$(systemctl show --property=MainPID --value netpolicy.service)/exe")?;
    must(runs.trim() == "/usr/sbin/netpolicy", "the daemon is the earlier program", &runs)?;
    eprintln!(
        "trial: upgraded: {}; looks: {}",
        client.trim(),
        drift.split_whitespace().collect::<Vec<_>>().join(" ")
    );
    Ok(())
}

/// Back to the earlier version, and forward again.
pub(super) fn downgraded(container: &Container, packages: &Packages) -> Result {
    let (before, history) = (settings(container)?, container.runs("netpolicy -o json history")?);
    let said = install(container, &packages.earlier)?;
    let wanted =
        format!("going back from {} to {}", packages.version.debian(), packages.earlier_version.debian());
    says(&said, &[wanted.as_str(), "settings stay in force"], "it is not said")?;
    must(settings(container)? == before && daemon(container)? != 0, "settings changed", &said)?;
    must(container.runs("netpolicy -o json history")? == history, "the journal changed", &said)?;
    install(container, &packages.this).map(drop)
}

/// The drop-ins of the page on monitoring, each with the unit as it is shipped: the confined daemon starts and serves metrics.
pub(super) fn monitored(container: &Container, _: &Packages) -> Result {
    let page = files::read(&shell::root().join(MONITORING))?;
    let blocks = page.split("```ini\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let drop_ins: Vec<&str> = blocks.map(|(text, _)| text).collect();
    must(drop_ins.len() == DROP_INS, "the page has other drop-ins", &drop_ins.join("\n"))?;
    container.runs("mkdir -p /var/lib/node_exporter/textfile")?;
    let file = "/etc/systemd/system/netpolicy.service.d/monitoring.conf";
    let looks = [
        "exec 3<>/dev/tcp/127.0.0.1/9989 && echo GET /metrics HTTP/1.0 >&3 && echo >&3 && cat <&3",
        "until test -s /var/lib/node_exporter/textfile/netpolicy.prom; do sleep 0.2; done; \
         cat /var/lib/node_exporter/textfile/netpolicy.prom",
    ];
    for (drop_in, look) in drop_ins.into_iter().zip(looks) {
        files::write(&container.root().0.join(&file[1..]), drop_in)?;
        container.runs("systemctl daemon-reload && systemctl restart netpolicy.service").map_err(|why| {
            let log = container.runs("journalctl --unit=netpolicy --no-pager --lines=20").unwrap_or_default();
            format!("{why}\nwith\n{drop_in}\n{log}")
        })?;
        let said = container.runs(&format!("timeout 30 bash -c '{look}'"))?;
        says(&said, &["netpolicy_settings_held 4"], "no metrics")?;
    }
    container
        .runs(&format!("rm {file} && systemctl daemon-reload && systemctl restart netpolicy.service"))
        .map(drop)
}
