//! The main job: the whole cycle on this machine's kernel, with a memcached that nobody patched.

use crate::shell::{self, Result};

/// Builds netpolicy and runs the experiment in its short form.
pub(crate) fn run(arguments: &[String]) -> Result {
    if !shell::is_root() {
        return Err("the demo makes network namespaces and writes NAPI settings: run it as root".to_owned());
    }
    shell::run(shell::cargo().args(["build", "--release", "--package", "netpolicy"]))?;
    let folder = shell::root().join("target/demo");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut command = std::process::Command::new(shell::root().join("target/release/netpolicy"));
    command.args(["bench", "memcached", "--matrix", "--short"]);
    command.arg("--report").arg(folder.join("report.html"));
    command.arg("--json").arg(folder.join("evidence.json"));
    shell::run(command.args(arguments))
}
