//! A bench with the guest as the server's machine: its kernel, its CPUs, and a NIC whose interrupts its driver
//! masks. The client runs on this machine, in the network namespace that has the other end of that NIC.

use std::time::Duration;

use super::Asked;
use super::boot::{self, Client, Guest as _, Order};
use super::cache::Cache;
use super::outcome::Kind;
use super::qemu::guest;
use crate::release::contents;
use crate::shell::{self, Result};

/// The guest's address, and the port of its `bench serve`.
const SERVER: &str = "192.0.2.1:7100";

/// What the guest runs. $1 is the number of queues, $2 the program `netpolicy`.
const SERVE: &str = "ip addr add 192.0.2.1/24 dev virtio0 && ip link set virtio0 up && \
    ethtool -L virtio0 combined \"$1\" && \
    exec \"$2\" bench serve --listen 192.0.2.1:7100 --token /run/guest/token";

/// What runs here, with the client as its arguments: `machine.sh` has created the bridge.
const CLIENT: &str = "ip link set lo up && ip addr add 192.0.2.2/24 dev joined && exec \"$@\"";

/// The words with which `bench serve` says that it listens.
const LISTENS: &str = "Waiting for clients";

/// How many bytes of the token are random.
const TOKEN_BYTES: usize = 32;

/// Boots the guest and measures it.
pub(super) fn run(asked: Asked) -> Result {
    boot::need_root()?;
    contents::build_programs(&[])?;
    let cache = Cache::open()?;
    let guest = guest(&cache, asked.kind.unwrap_or(Kind::Qemu), &asked.patch_files()?, false)?;
    let own = std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))?;
    let netpolicy = own.with_file_name("netpolicy").to_string_lossy().into_owned();
    let queues = asked.options.number("--queues", 1)?.to_string();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let order = Order {
        command: words(&["sh", "-c", SERVE, "sh", &queues, &netpolicy]),
        environment: Vec::new(),
        directory: shell::root(),
        boot_limit: boot::BOOT_LIMIT,
        limit: Duration::from_secs(asked.options.number("--limit", super::COMMAND_LIMIT_SECONDS)?),
    };
    let mut client = words(&["sh", "-c", CLIENT, "sh", &netpolicy, "bench"]);
    client.extend(asked.options.words);
    client.extend(words(&["--server", SERVER, "--token"]));
    let client = Client { command: client, waits_for: LISTENS, token_bytes: TOKEN_BYTES };
    let ended = boot::execute_with(&cache, &guest, &order, Some(&client), &mut boot::print)?;
    eprintln!("guest: {}, up after {:.1} s", guest.described(), ended.booted_in.as_secs_f64());
    super::pass_on(ended.code)
}
