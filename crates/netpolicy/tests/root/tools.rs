//! Checks netpolicy's files with other tools: its units with systemd, its interface with Varlink. The tests
//! do not need root, but programs that some machines lack.

use std::path::Path;
use std::process::Command;

use daemon::api::method;
use libtest_mimic::{Failed, Trial};
use testkit::scratch::Scratch;
use testkit::{Need, test};

use crate::desk::Desk;

/// The units, each with the maximum exposure that systemd may calculate, in tenths (0: none; 100: full).
const UNITS: [(&str, &str); 2] =
    [("netpolicy.service", "--threshold=25"), ("netpolicy-attach.service", "--threshold=20")];

pub(crate) fn tests() -> Vec<Trial> {
    const ANALYZE: &[Need] = &[Need::Program("systemd-analyze")];
    const CONTROL: &[Need] = &[Need::Program("varlinkctl")];
    const GENERATOR: &[Need] = &[Need::Program("varlink-go-interface-generator")];
    vec![
        test("tools/systemd_understands_the_units_and_thinks_them_hardened", ANALYZE, units),
        test("tools/varlinkctl_reads_the_description_of_a_daemon_that_runs", CONTROL, varlinkctl),
        test("tools/the_descriptions_are_read_by_another_ones_generator", GENERATOR, generator),
    ]
}

fn units() -> Result<(), Failed> {
    let scratch = Scratch::new("units")?;
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    for (name, _) in UNITS {
        // Replace the program's path, because it need not be installed.
        let text = std::fs::read_to_string(packaging.join(name))?;
        let text = text.replace("/usr/sbin/netpolicy", env!("CARGO_BIN_EXE_netpolicy"));
        std::fs::write(scratch.path(name), text)?;
    }
    for (name, exposed_max) in UNITS {
        let path = scratch.path(name);
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        // Ignore what systemd-analyze reports about other units on the machine.
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("netpolicy")).collect();
        assert!(ours.is_empty(), "{ours:?}");
        let mut judge = Command::new("systemd-analyze");
        let output = judge.args(["security", "--offline=true", exposed_max]).arg(&path).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {}", said.lines().last().unwrap_or_default());
    }
    Ok(())
}

fn varlinkctl() -> Result<(), Failed> {
    let desk = Desk::new(Some(rustix::process::getegid().as_raw()));
    let socket = format!("unix:{}", desk.socket.display());
    let output = Command::new("varlinkctl").args(["introspect", &socket, "io.netpolicy"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("method Rollback"), "{said}");
    Ok(())
}

fn generator() -> Result<(), Failed> {
    let scratch = Scratch::new("idl")?;
    for (name, text) in
        [("io.netpolicy", method::DESCRIPTION), ("org.varlink.service", method::SERVICE_DESCRIPTION)]
    {
        let file = scratch.path(&format!("{name}.varlink"));
        std::fs::write(&file, text)?;
        let output = Command::new("varlink-go-interface-generator").arg(&file).output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
