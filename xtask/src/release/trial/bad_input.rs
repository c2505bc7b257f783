//! What goes wrong: a clear message, and the host as it was.

use super::container::Container;
use super::life::{POLICY, ask, daemon, deferred, install, settings};
use super::{Packages, must, says};
use crate::files;
use crate::shell::Result;

/// Unpacked and never configured, as after a loss of power; the daemon of before goes on.
pub(super) fn half_installed(container: &Container, packages: &Packages) -> Result {
    let (before, process) = (settings(container)?, daemon(container)?);
    container.runs(&format!("dpkg --unpack /packages/{}", packages.earlier))?;
    let status = container.runs("dpkg-query --show --showformat='${db:Status-Status}' netpolicy")?;
    says(&status, &["unpacked"], "it is not half installed")?;
    must(
        daemon(container)? == process && settings(container)? == before,
        "half an installation changed something",
        "",
    )?;
    let history = container.runs("netpolicy history")?;
    must(
        history.contains("kept") && !history.contains("unreadable"),
        "the new program cannot read the journal",
        &history,
    )?;
    let said = container.runs("dpkg --configure --pending")?;
    must(
        daemon(container)? != process && settings(container)? == before,
        "configuring changed settings",
        &said,
    )?;
    install(container, &packages.this).map(drop)
}

/// Not a block left where the journal is.
pub(super) fn var_full(container: &Container, packages: &Packages) -> Result {
    let before = settings(container)?;
    container.runs(
        "systemctl stop netpolicy netpolicy-attach; cp -a /var/lib/netpolicy /run/kept; mount -t tmpfs -o size=256k tmpfs \
         /var/lib/netpolicy && cp -a /run/kept/. /var/lib/netpolicy/; cat /dev/zero > /var/lib/netpolicy/full 2>/dev/null || true",
    )?;
    let refused = container.runs("netpolicy set device veth-server defer50");
    let refused = refused.err().unwrap_or_default();
    says(&refused, &["No space left on device", "Nothing was changed"], "no clear message")?;
    must(settings(container)? == before, "something was set", &refused)?;
    // The package comes and goes: what it cannot write down it says, and settings stay.
    let said = container.runs(&format!("dpkg --install /packages/{}", packages.earlier))?;
    let removed = container.runs("dpkg --remove netpolicy")?;
    says(&removed, &["undo.sh"], "no way back named")?;
    container.runs("rm /var/lib/netpolicy/full; umount /var/lib/netpolicy; rm -rf /run/kept")?;
    install(container, &packages.this)?;
    must(settings(container)? == before, "settings changed", &format!("{said}{removed}"))?;
    container.runs("systemctl start netpolicy").map(drop)
}

/// A key that this version does not know.
pub(super) fn later_policy_file(container: &Container, _: &Packages) -> Result {
    let before = settings(container)?;
    let later = "[device.veth-server]\npolicy = \"latency\"\ndelivery = \"defer50\"\nforesight = 3\n";
    files::write(&container.root().0.join(&POLICY[1..]), later)?;
    container.runs("systemctl reload netpolicy && sleep 1")?;
    let said = container.runs("netpolicy plan; netpolicy status; true")?;
    must(
        said.contains("`foresight` is not a key") && said.contains(&format!("{POLICY}:4:1")),
        "no line is named",
        &said,
    )?;
    says(&said, &["this is netpolicy 0."], "its own version is not named")?;
    must(settings(container)? == before, "the policy of before was given up", &said)?;
    // A daemon that starts with it does not start, and changes nothing.
    let started = container.runs("systemctl restart netpolicy");
    must(settings(container)? == before, "a refused start changed settings", &format!("{started:?}"))?;
    ask(container, "defer200")?;
    container.runs("systemctl reset-failed netpolicy; systemctl restart netpolicy").map(drop)
}

/// Another version's daemon beside the one that runs.
pub(super) fn two_versions(container: &Container, packages: &Packages) -> Result {
    let (before, process) = (settings(container)?, daemon(container)?);
    container.runs(&format!(
        "mkdir -p /opt/other && dpkg-deb --extract /packages/{} /opt/other",
        packages.earlier
    ))?;
    for state in ["", "--state-dir /run/other-state"] {
        let refused = container.runs(&format!("/opt/other/usr/sbin/netpolicy {state} daemon"));
        let refused = refused.err().unwrap_or_default();
        must(
            refused.contains("status: 7") && refused.contains(&process.to_string()),
            "it is not refused",
            &refused,
        )?;
    }
    must(daemon(container)? == process && settings(container)? == before, "something changed", "")?;
    // Another one in /usr/local is named at the next installation.
    container.runs("mkdir -p /usr/local/sbin && cp /opt/other/usr/sbin/netpolicy /usr/local/sbin/")?;
    let said = install(container, &packages.this)?;
    container.runs("rm -r /usr/local/sbin/netpolicy /opt/other")?;
    says(&said, &["/usr/local/sbin/netpolicy comes before this package's"], "it is not named")
}

/// The script of what is in force fails: the journal must not go.
pub(super) fn purge_refused(container: &Container, packages: &Packages) -> Result {
    container.runs("dpkg --remove netpolicy")?;
    container.runs(
        "cp /var/lib/netpolicy/roll-back.sh /run/kept.sh && echo 'exit 5' > /var/lib/netpolicy/roll-back.sh",
    )?;
    let refused = container.runs("dpkg --purge netpolicy").err().unwrap_or_default();
    says(&refused, &["the journal stays: /var/lib/netpolicy"], "no clear message")?;
    container
        .runs("test -d /var/lib/netpolicy/journal && cp /run/kept.sh /var/lib/netpolicy/roll-back.sh")?;
    let said = container.runs("dpkg --purge netpolicy")?;
    says(&said, &["put back to 0"], "the second purge put nothing back")?;
    install(container, &packages.this)?;
    must(deferred(container, 200)? == 0, "settings stayed", &said)?;
    container.runs("dpkg --purge netpolicy").map(drop)
}

/// Unpacked and never configured: no script of the package runs before its files are gone.
pub(super) fn purged_unconfigured(container: &Container, packages: &Packages) -> Result {
    install(container, &packages.this)?;
    container
        .runs("netpolicy set device veth-server defer200 && netpolicy set device veth-server defer50")?;
    container.runs(&format!("dpkg --unpack /packages/{}", packages.earlier))?;
    let said = container.runs("dpkg --purge netpolicy")?;
    says(&said, &["put back to 0"], "the purge put nothing back")?;
    as_before(container, packages, &said)
}

/// The script of what is in force cannot be written: the journal must not go before its settings.
pub(super) fn purged_with_var_full(container: &Container, packages: &Packages) -> Result {
    install(container, &packages.this)?;
    container.runs(
        "mount -t tmpfs -o size=256k,mode=700 tmpfs /var/lib/netpolicy && netpolicy set device veth-server defer200; \
         cat /dev/zero > /var/lib/netpolicy/full 2>/dev/null || true",
    )?;
    must(deferred(container, 200)? == 2, "not in force", "")?;
    let purged = container.runs("dpkg --purge netpolicy");
    container.runs("umount /var/lib/netpolicy; rmdir /var/lib/netpolicy")?;
    let said = purged?;
    says(&said, &["put back to 0"], "the purge put nothing back")?;
    as_before(container, packages, &said)
}

/// The journal is on another disk: dpkg must not take the link to it.
pub(super) fn purged_by_link(container: &Container, packages: &Packages) -> Result {
    container.runs("mkdir -m 0700 /srv/journal && ln -s /srv/journal /var/lib/netpolicy")?;
    install(container, &packages.this)?;
    container.runs("netpolicy set device veth-server defer200")?;
    let removed = container.runs("dpkg --remove netpolicy")?;
    must(container.runs("test -f /var/lib/netpolicy/roll-back.sh").is_ok(), "the link went", &removed)?;
    install(container, &packages.this)?;
    must(container.runs("netpolicy history")?.contains("kept"), "history lost it", &removed)?;
    let said = container.runs("dpkg --purge netpolicy && rmdir /srv/journal")?;
    says(&said, &["put back to 0"], "the purge put nothing back")?;
    as_before(container, packages, &said)
}

/// A daemon that no unit has started holds the journal.
pub(super) fn purged_under_daemon(container: &Container, packages: &Packages) -> Result {
    install(container, &packages.this)?;
    ask(container, "defer200")?;
    container.runs(
        "setsid netpolicy daemon >/run/by-hand.log 2>&1 & \
         for i in $(seq 100); do netpolicy show | grep -q 200us && exit; sleep 0.1; done; cat /run/by-hand.log; exit 1",
    )?;
    let refused = container.runs("dpkg --purge netpolicy").err().unwrap_or_default();
    says(&refused, &["a netpolicy is at work", "the journal stays"], "it is not refused")?;
    must(!refused.contains("put back to"), "something was put back under the daemon", &refused)?;
    let said = container.runs(
        "kill $(cat /var/lib/netpolicy/journal/daemon) && flock /var/lib/netpolicy/journal/daemon dpkg --version >/dev/null && \
         dpkg --purge netpolicy",
    )?;
    says(&said, &["put back to 0"], "the purge put nothing back")?;
    as_before(container, packages, &said)
}

/// Another user's directory, with a script that root must not run.
pub(super) fn purged_with_foreign_state(container: &Container, packages: &Packages) -> Result {
    install(container, &packages.this)?;
    container.runs(
        "chown 65534 /var/lib/netpolicy && mkdir /var/lib/netpolicy/journal && ln -s /run/overwritten /var/lib/netpolicy/roll-back.sh.new && \
         echo 'touch /run/run-as-root' > /var/lib/netpolicy/roll-back.sh",
    )?;
    let refused = container.runs("dpkg --purge netpolicy").err().unwrap_or_default();
    says(&refused, &["belongs to another user"], "it is not refused")?;
    let touched = container.runs("test -e /run/run-as-root || test -e /run/overwritten");
    must(touched.is_err(), "root ran or wrote what another user laid there", &refused)?;
    let said = container.runs("rm -r /var/lib/netpolicy && dpkg --purge netpolicy")?;
    as_before(container, packages, &said)
}

/// Nothing of the package is left, nor what it had set.
fn as_before(container: &Container, packages: &Packages, said: &str) -> Result {
    must(container.runs("test -e /var/lib/netpolicy").is_err(), "the journal is left", said)?;
    install(container, &packages.this)?;
    let left = deferred(container, 200)? + deferred(container, 50)?;
    must(left == 0, "settings are left", said)?;
    container.runs("dpkg --purge netpolicy").map(drop)
}
