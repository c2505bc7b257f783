//! Runs a bench with the guest as the server's machine: its kernel, its CPUs, and a NIC whose driver masks
//! the NIC's interrupts. The client runs on this machine, in the network namespace that has the other end of
//! that NIC.

use std::time::Duration;

use serde_json::Value;

use super::Asked;
use super::boot::{self, Client, Guest as _, Order};
use super::cache::Cache;
use super::outcome::Kind;
use super::qemu::guest;
use crate::files::{self, About as _};
use crate::options::Options;
use crate::release::contents;
use crate::shell::{self, Result};
use crate::tally::Tally;

/// The guest's address, and the port on which its `bench serve` listens.
const SERVER: &str = "192.0.2.1:7100";

/// The script that the guest runs. $1 is the command that configures the NIC $2, $3 the path of `netpolicy`.
const SERVE: &str = "ip addr add 192.0.2.1/24 dev $2 && ip link set $2 up && $1 && \
    exec \"$3\" bench serve --listen 192.0.2.1:7100 --token /run/guest/token";

/// The script that runs on this machine, with the client's command as its arguments. `machine.sh` has created
/// the bridge.
const CLIENT: &str = "ip link set lo up && ip addr add 192.0.2.2/24 dev joined && exec \"$@\"";

/// The message of `bench serve` when it listens.
const LISTENS: &str = "Waiting for clients";

/// How many bytes of the token are random.
const TOKEN_BYTES: usize = 32;

/// The bench of [`smoke`]: two runs of a few hundred requests per second.
const SMOKE: &str = "memcached --mode base,suspend5000 --rate 300 --repeats 1 --seconds 2s --keys 100 \
    --connections 8 --threads 1 --sleep --json";

/// The minimum factor by which suspension must reduce the interrupts per answer.
const FEWER: f64 = 10.0;

/// Boots the guest, and measures it as the server of a bench.
pub(super) fn run(asked: &Asked) -> Result {
    super::pass_on(measure(asked)?)
}

/// Measures the guest with the distribution's kernel, and checks that suspension leaves few interrupts.
pub(crate) fn smoke() -> Result<Tally> {
    if !shell::is_root() {
        return Ok(Tally::of_skipped("[SKIPPED, needs root] guest/a_guest_is_the_second_machine_of_a_bench"));
    }
    let file = shell::root().join("target/guest-bench.json");
    let mut words: Vec<String> =
        ["--"].into_iter().chain(SMOKE.split_whitespace()).map(str::to_owned).collect();
    words.push(file.to_string_lossy().into_owned());
    let asked = Asked { kind: Some(Kind::Qemu), options: Options::read(&words, &[], &[], super::USAGE)? };
    let code = measure(&asked)?;
    if code != 0 {
        return Err(format!("the client ended with exit code {code}"));
    }
    let evidence: Value = serde_json::from_str(&files::read(&file)?).about(&file)?;
    let runs = evidence["evidence"].as_array().ok_or("the evidence has no runs")?;
    let of = |label: &str| {
        let run = runs.iter().find(|run| run["label"] == label);
        let counted = run.and_then(|run| run["interrupts_per_request"].as_f64());
        counted.ok_or_else(|| format!("{label}: no interrupts were counted"))
    };
    let (untouched, suspended) = (of("base")?, of("suspend5000")?);
    if suspended * FEWER < untouched {
        return Ok(Tally::of_passed(1));
    }
    Err(format!("an answer costs {suspended} interrupts with suspension, and {untouched} without"))
}

/// Boots the guest, measures it, and returns the exit code of the client.
fn measure(asked: &Asked) -> Result<i32> {
    boot::need_root()?;
    contents::build_programs(&[])?;
    let cache = Cache::open()?;
    let mut guest = guest(&cache, asked.kind.unwrap_or(Kind::Qemu), &asked.patch_files()?, false)?;
    let own = std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))?;
    let netpolicy = own.with_file_name("netpolicy").to_string_lossy().into_owned();
    let (configure, nic) = match asked.options.value("--e1000e") {
        Some(_) if asked.options.value("--queues").is_some() => {
            return Err("--queues and --e1000e exclude each other".into());
        }
        Some(_) if matches!(asked.kind, Some(Kind::Patched)) => {
            return Err("the patched kernel has no e1000e".into());
        }
        Some(usecs) => {
            let usecs: u16 = usecs.parse().map_err(|_| format!("--e1000e {usecs}: not a number"))?;
            (format!("ethtool -C e1000e0 rx-usecs {usecs}"), "e1000e0")
        }
        None => (format!("ethtool -L virtio0 combined {}", asked.options.number("--queues", 1)?), "virtio0"),
    };
    guest.has_e1000e = nic == "e1000e0";
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let order = Order {
        command: words(&["sh", "-c", SERVE, "sh", &configure, nic, &netpolicy]),
        environment: Vec::new(),
        directory: shell::root(),
        boot_limit: boot::BOOT_LIMIT,
        limit: Duration::from_secs(asked.options.number("--limit", super::COMMAND_LIMIT_SECONDS)?),
    };
    let mut client = words(&["sh", "-c", CLIENT, "sh", &netpolicy, "bench"]);
    client.extend_from_slice(&asked.options.words);
    client.extend(words(&["--server", SERVER, "--token"]));
    let client = Client { command: client, waits_for: LISTENS, token_bytes: TOKEN_BYTES };
    let ended = boot::execute_with(&cache, &guest, &order, Some(&client), &mut boot::print)?;
    eprintln!("guest: {}, up after {:.1} s", guest.described(), ended.booted_in.as_secs_f64());
    Ok(ended.code)
}
