//! The main job: the whole cycle on this machine's kernel, with an unpatched memcached and an unpatched Redis.

mod judged;

use crate::shell::{self, Result};

/// What the second experiment runs, in which every policy has the same load.
const REDIS: &str =
    "redis-server --bind {address} --port {port} --protected-mode no --save '' --appendonly no";

/// Builds netpolicy and runs two experiments in a short form: what delivery modes cost in response times, and what policies save
/// of the machine's CPU. Then the whole cycle on a server under load.
pub(crate) fn run(arguments: &[String]) -> Result {
    if !shell::is_root() {
        return Err("the demo makes network namespaces and writes NAPI settings: run it as root".to_owned());
    }
    shell::run(shell::cargo().args(["build", "--release", "--package", "netpolicy"]))?;
    let folder = shell::root().join("target/demo");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let program = shell::root().join("target/release/netpolicy");
    let mut command = std::process::Command::new(&program);
    command.args(["bench", "memcached", "--matrix", "--short"]);
    command.arg("--report").arg(folder.join("report.html"));
    command.arg("--json").arg(folder.join("evidence.json"));
    shell::run(command.args(arguments))?;
    let mut command = std::process::Command::new(&program);
    command.args(["bench", "policies", "--policy", "none,latency,bulk,cpu,power", "--server", REDIS]);
    command.args(["--port", "6379", "--protocol", "redis", "--rate", "20K", "--connections", "128"]);
    command.args(["--repeats", "5", "--seconds", "1s"]);
    command.arg("--report").arg(folder.join("policies.html"));
    command.arg("--json").arg(folder.join("policies.json"));
    shell::run(&mut command)?;
    judged::play(&program, &folder)
}
