//! Runs a DNS server under the load of dnsperf, and captures packets at both ends of the wire.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::Failed;
use linux::Netns;
use linux::lab::{CLIENT_DEVICE, Lab, SERVER_ADDRESS, SERVER_DEVICE, ServerProgram};

use crate::operator::{Started, waited_for};

/// The server's port.
pub const PORT: u16 = 5_300;

/// Starts unbound with one thread; it answers for the names in `questions`.
pub fn unbound(lab: &Lab) -> Result<ServerProgram, Failed> {
    let text = format!(
        "server:\n username: \"\"\n chroot: \"\"\n directory: \"/\"\n pidfile: \"\"\n do-daemonize: no\n use-syslog: no\n \
         interface: {SERVER_ADDRESS}@{PORT}\n interface: fd00:53::1@{PORT}\n ip-freebind: yes\n \
         access-control: 0.0.0.0/0 allow\n access-control: ::/0 allow\n num-threads: 1\n \
         local-zone: \"example.\" static\n local-data: \"a.example. A 192.0.2.1\"\n\
         remote-control:\n control-enable: no\n"
    );
    let file = lab.scratch().join("unbound.conf");
    std::fs::write(&file, text)?;
    let mut command = Command::new("unbound");
    command.arg("-c").arg(file);
    Ok(lab.start_program(command, PORT)?)
}

/// Writes a file of questions for dnsperf, and returns its path.
fn questions(directory: &Path) -> Result<String, Failed> {
    let file = directory.join("questions");
    std::fs::write(&file, "a.example A\nnone.example A\n")?;
    Ok(file.display().to_string())
}

/// Returns the command of dnsperf on the client: 4 sockets, up to 50 queries outstanding.
pub fn dnsperf(lab: &Lab, address: &str, more: &[&str]) -> Result<Command, Failed> {
    let mut command = Command::new("dnsperf");
    command.args([
        "-s",
        address,
        "-p",
        &PORT.to_string(),
        "-d",
        &questions(&lab.scratch())?,
        "-c",
        "4",
        "-q",
        "50",
    ]);
    command.args(more);
    Ok(command)
}

/// Captures of all packets that leave the client's and the server's device.
pub struct Captures<'a> {
    lab: &'a Lab,
    _running: [Started; 2],
}

impl<'a> Captures<'a> {
    pub fn start(lab: &'a Lab) -> Result<Self, Failed> {
        let at = |file: &str| lab.scratch().join(file);
        let queries = tcpdump(lab.client(), CLIENT_DEVICE, &at("queries"))?;
        let answers = tcpdump(lab.server(), SERVER_DEVICE, &at("answers"))?;
        Ok(Self { lab, _running: [queries, answers] })
    }

    /// Returns the response times of all queries, in nanoseconds and ascending order, once the captures have
    /// this many.
    pub fn response_times(&self, queries: usize) -> Result<Vec<u64>, Failed> {
        waited_for("all packets", || {
            let found = captured(&self.lab.scratch())?;
            Ok((found.len() >= queries).then_some(found))
        })
    }
}

/// Starts tcpdump on the packets that leave a device, and returns once tcpdump captures.
pub fn tcpdump(netns: &Netns, device: &str, file: &Path) -> Result<Started, Failed> {
    // A new file shows that tcpdump has begun, a previous capture's does not.
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut command = Command::new("tcpdump");
    command.args([
        "-i",
        device,
        "-Q",
        "out",
        "--time-stamp-precision=nano",
        "-s",
        "96",
        "-B",
        "20000",
        "-U",
        "-w",
    ]);
    command.arg(file).args(["udp", "port", &PORT.to_string()]).stderr(Stdio::null());
    let started = Started { child: netns.run(|| command.spawn())?? };
    waited_for("tcpdump", || Ok(std::fs::metadata(file).is_ok_and(|of| of.len() >= 24).then_some(())))?;
    Ok(started)
}

/// Returns, for each answered query, the time from when it leaves the client's device until its answer leaves
/// the server's device.
fn captured(directory: &Path) -> Result<Vec<u64>, Failed> {
    let packets = |file: &str| -> Result<Vec<(u64, Vec<u8>)>, Failed> {
        let bytes = std::fs::read(directory.join(file))?;
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        assert_eq!(word(0), Some(0xa1b2_3c4d), "a capture in nanoseconds");
        let (mut at, mut packets) = (24, Vec::new());
        while let (Some(seconds), Some(nanos), Some(length)) = (word(at), word(at + 4), word(at + 8)) {
            let from = at + 16;
            at = from + length as usize;
            // Skip the headers of Ethernet and of IPv4 without options.
            let Some(datagram) = bytes.get(from + 34..at) else { break };
            packets.push((u64::from(seconds) * 1_000_000_000 + u64::from(nanos), datagram.to_vec()));
        }
        Ok(packets)
    };
    let mut asked: HashMap<([u8; 2], [u8; 2]), u64> = HashMap::new();
    let mut all: Vec<(u64, bool, Vec<u8>)> =
        packets("queries")?.into_iter().map(|(at, datagram)| (at, false, datagram)).collect();
    all.extend(packets("answers")?.into_iter().map(|(at, datagram)| (at, true, datagram)));
    all.sort_unstable();
    let mut took = Vec::new();
    for (at, is_answer, datagram) in all {
        let port = if is_answer { [datagram[2], datagram[3]] } else { [datagram[0], datagram[1]] };
        let key = (port, [datagram[8], datagram[9]]);
        if !is_answer {
            asked.insert(key, at);
        } else if let Some(since) = asked.remove(&key) {
            took.push(at - since);
        }
    }
    took.sort_unstable();
    Ok(took)
}
