//! The messages between the two machines of a bench: one JSON document per line.
//!
//! Every request except [`Request::Alive`] has one reply. The client sends the first message.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use model::{
    CounterRates, CpuSet, CpuUse, Delivered, EpollBatch, Evidence, MachineDescription, Nanoseconds,
    PolicyName,
};
use serde::{Deserialize, Serialize};
use session::{Exit, Fault, HostState};

/// The version of these messages, which must be the same on both machines.
pub const PROTOCOL: u32 = 3;

/// How often the client sends a keep-alive.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(2);

/// If the client is silent for this long, the server's machine restores itself. If the server's machine is
/// silent for this long, the client gives up.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Maximum time that a configuration may be in force.
pub(crate) const WITHIN_MAX: Nanoseconds = Nanoseconds::from_millis(7_200_000);

/// A request of the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The first message.
    Hello(Hello),
    /// Prepare for a bench. The reply is [`Reply::Prepared`].
    Prepare(Prepare),
    /// Start a server and apply a configuration to it and to the device. The reply is [`Reply::Applied`].
    Apply(Apply),
    /// The measured window opens.
    Open,
    /// The measured window closes. The reply is [`Reply::Counted`].
    Close,
    /// Stop the server; the settings stay in force.
    Stop,
    /// Restore the host, compare it with its previous state, and stop the server.
    Restore,
    /// Keep-alive. There is no reply.
    Alive,
}

/// A reply of the server's machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reply {
    /// The reply to a [`Request::Hello`] of the same version.
    Hello(Hello),
    /// The machine is ready.
    Prepared {
        /// The address of the machine's servers.
        address: IpAddr,
        /// The description.
        machine: Box<MachineDescription>,
    },
    /// The configuration is in force.
    Applied(Applied),
    /// Done.
    Done,
    /// The counts of the window.
    Counted(Box<Counted>),
    /// The request failed.
    Failed(Failure),
}

/// The version of one end, and what it supports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The version of netpolicy.
    pub netpolicy: String,
    /// `uname -r`.
    pub kernel: String,
    /// The benches that can run across machines.
    pub benches: Vec<String>,
}

/// The benches that can run across machines.
const BENCHES: [&str; 8] =
    ["memcached", "tcp-rr", "tcp-stream", "udp-rr", "udp-stream", "threaded", "storage", "policies"];

impl Hello {
    /// Returns the description of this program on this machine.
    pub fn own() -> Self {
        Self {
            protocol: PROTOCOL,
            netpolicy: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            benches: BENCHES.map(str::to_owned).to_vec(),
        }
    }

    /// Checks that the other end has the same version.
    ///
    /// # Errors
    /// [`Exit::Unsupported`], with both versions, if it does not.
    pub(crate) fn check(&self, whose: &str) -> Result<(), Fault> {
        let own = Self::own();
        if (self.protocol, &self.netpolicy) == (own.protocol, &own.netpolicy) {
            return Ok(());
        }
        let of = |hello: &Self| format!("netpolicy {} (protocol {})", hello.netpolicy, hello.protocol);
        let words = format!("{whose} has {}, and this machine has {}", of(self), of(&own));
        Err(Fault::new(Exit::Unsupported, words).hint("install the same version on both machines"))
    }
}

/// The parameters of a bench.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepare {
    /// The address of the server; `None` for the address that ssh connected to.
    pub address: Option<IpAddr>,
    /// The server's port; `None` for a free one.
    pub port: Option<u16>,
    /// The server's CPUs; `None` for all that netpolicy may use on the server's machine.
    pub cpus: Option<CpuSet>,
    /// Whether to count polls, and the events that `epoll_wait` returns.
    pub counted: bool,
    /// The CPUs for pinned kernel threads of NAPIs; `None` for the server's.
    pub kthread_cpus: Option<CpuSet>,
    /// Background work during a run.
    pub background: Option<Hogs>,
    /// The file of the bench on storage.
    pub storage: Option<Storage>,
}

/// Background work during a run: threads that only compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hogs {
    /// The number of threads that compute in the background.
    pub threads: u32,
    /// The CPU use of each of these threads, in percent.
    pub duty: u32,
    /// The CPUs on which these threads may run; `None` for the server's.
    pub cpus: Option<CpuSet>,
}

/// A file for the server to read and write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// An existing file or block device; `None` for a temporary file.
    pub file: Option<PathBuf>,
    /// The directory of the temporary file.
    pub directory: PathBuf,
    /// The size.
    pub bytes: u64,
    /// Whether the bench writes to the file.
    pub writable: bool,
}

/// The maximum number of servers at the same time: one for each kind of workload.
pub(crate) const SERVICES_MAX: usize = 2;

/// Servers, with the settings to apply to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The settings.
    pub wanted: Wanted,
    /// The servers.
    pub services: Vec<Served>,
    /// The number of threads of each server.
    pub threads: u32,
    /// How long the configuration may be in force. If the client has not restored the host by then, a guard
    /// process does.
    pub within: Nanoseconds,
}

/// The settings of servers and their device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Wanted {
    /// A configuration, by name.
    Configuration(String),
    /// A tuning of `bench policies`, by name.
    Tuning(String),
}

/// A server, and the policy that suits its workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// The server.
    pub service: Service,
    /// The policy that suits the server's workload; only [`Wanted::Tuning`] depends on it.
    pub first: PolicyName,
}

/// A kind of server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Service {
    /// The distribution's memcached.
    Memcached {
        /// Maximum number of connections.
        connections: u32,
    },
    /// netpolicy's own server.
    Exchange {
        /// Over UDP.
        udp: bool,
        /// Size of a request in bytes.
        request: u32,
        /// Size of an answer in bytes.
        answer: u32,
        /// How many consecutive connections a server thread gets.
        in_a_row: u32,
    },
    /// netpolicy's own server of [`Prepare::storage`].
    Storage {
        /// How many consecutive connections a server thread gets.
        in_a_row: u32,
    },
    /// A service that already runs on the machine, and is neither started nor stopped.
    Running {
        /// The service's name, or the port on which it listens.
        name: String,
    },
}

/// Describes a configuration that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Applied {
    /// The addresses of the servers, in the order of [`Apply::services`].
    pub addresses: Vec<SocketAddr>,
    /// The servers and their versions.
    pub server: String,
    /// The applied settings, for display; only for [`Wanted::Tuning`].
    pub settings: Option<String>,
}

/// The counts of a window on one machine. A count that could not be read is missing, not zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// The CPUs' time in the window, by kind.
    pub cpu: Option<CpuUse>,
    /// The kernel's counters.
    pub counters: Option<CounterRates>,
    /// The server's packets, by the context that delivered them.
    pub delivered: Option<Delivered>,
    /// The interrupts of the server's NAPIs; `None` if they have none.
    pub interrupts: Option<u64>,
    /// The events that the server's `epoll_wait` calls returned.
    pub epolls: Option<EpollBatch>,
    /// The CPU cycles of the server's process.
    pub cycles: Option<u64>,
    /// The CPU time of the window, if it was requested.
    pub cost: Option<Cost>,
}

/// CPU time of a window, by two methods: see [`model::CpuPerAnswer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Time of all CPUs that is neither idle nor stolen.
    pub machine: Option<Nanoseconds>,
    /// Run time of the tasks involved.
    pub tasks: Option<Nanoseconds>,
}

impl Counted {
    /// Adds the counts of the server's machine to the evidence of the run.
    pub(crate) fn add_to(self, evidence: &mut Evidence) {
        let answers = evidence.throughput * evidence.window.as_secs_f64();
        (evidence.cpu, evidence.counters) = (self.cpu, self.counters);
        if let Some(delivered) = self.delivered {
            if let Some(rates) = &mut evidence.counters {
                rates.napi_polls = per_second(delivered.total().polls, &delivered);
            }
            let interrupts: u64 = delivered.napis.iter().map(|napi| napi.interrupt.polls).sum();
            let counted = !delivered.timers_hidden && evidence.throughput > 0.0;
            let interrupts = per_second(interrupts, &delivered).filter(|_| counted);
            evidence.interrupts_per_request = interrupts.map(|rate| rate / evidence.throughput);
            evidence.delivered = Some(delivered);
        }
        if let Some(interrupts) = self.interrupts
            && answers > 0.0
        {
            // Interrupts are counted throughout the window, while polls are only sampled.
            evidence.interrupts_per_request = Some(as_float(interrupts) / answers);
        }
        evidence.epoll_batch = self.epolls;
        evidence.cpu_per_answer = self.cost.and_then(|cost| cost.per_answer(answers));
        if let Some(cycles) = self.cycles
            && answers > 0.0
        {
            evidence.cycles_per_request = Some(as_float(cycles) / answers);
        }
    }
}

impl Cost {
    /// Returns the CPU time per answer; `None` if there were no answers.
    pub(crate) fn per_answer(self, answers: f64) -> Option<model::CpuPerAnswer> {
        let micros = |span: Nanoseconds| span.as_secs_f64() * 1e6 / answers;
        (answers > 0.0).then(|| model::CpuPerAnswer {
            machine_us: self.machine.map(micros),
            tasks_us: self.tasks.map(micros),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of one run, below 2^53")]
const fn as_float(count: u64) -> f64 {
    count as f64
}

fn per_second(polls: u64, delivered: &Delivered) -> Option<f64> {
    let seconds = delivered.interval.as_secs_f64();
    (seconds > 0.0).then(|| as_float(polls) / seconds)
}

/// A failure on the server's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The exit code of the failure on the server's machine.
    pub exit: u8,
    /// The error with its causes.
    pub cause: String,
    /// A hint for the operator.
    pub hint: Option<String>,
    /// The settings that were not restored; `None` if there are none.
    pub stuck: Option<Stuck>,
    /// Whether settings were written, and all of them were restored.
    pub restored: bool,
}

/// Settings that were not restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stuck {
    /// Each setting with the reason, one per line.
    pub settings: Vec<String>,
    /// The script that restores them, on the server's machine.
    pub undo: Option<PathBuf>,
}

impl From<&Fault> for Failure {
    fn from(fault: &Fault) -> Self {
        let mut cause = fault.cause.to_string();
        let mut source = fault.cause.source();
        while let Some(deeper) = source {
            cause = format!("{cause}: {deeper}");
            source = deeper.source();
        }
        let stuck = match &fault.host {
            HostState::NotRestored { stuck, undo } => {
                Some(Stuck { settings: stuck.clone(), undo: undo.clone() })
            }
            _ => None,
        };
        let restored = fault.host == HostState::Restored;
        Self { exit: fault.exit.code(), cause, hint: fault.hint.clone(), stuck, restored }
    }
}

impl Failure {
    /// Converts the server's failure into a fault of the local command that names the server.
    pub(crate) fn into_fault(self, server: &str) -> Fault {
        let exit = Exit::of(self.exit).filter(|exit| *exit != Exit::Done).unwrap_or(Exit::Failed);
        let host = match self.stuck {
            Some(Stuck { settings, undo }) => HostState::NotRestored {
                stuck: settings.into_iter().map(|setting| format!("on {server}: {setting}")).collect(),
                undo,
            },
            None if self.restored => HostState::Restored,
            None => HostState::Unchanged,
        };
        let fault = Fault::new(exit, format!("{server}: {}", self.cause)).leaving(host);
        match self.hint {
            Some(hint) => fault.hint(format!("on {server}: {hint}")),
            None => fault,
        }
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::super::line::{Lines, MESSAGE_BYTES_MAX, NotAMessage, encode};
    use super::*;

    fn requests() -> Vec<Request> {
        let service = Service::Exchange { udp: false, request: 1, answer: 5, in_a_row: 1 };
        let within = Nanoseconds::from_millis(5_000);
        vec![
            Request::Hello(Hello::own()),
            Request::Apply(Apply {
                wanted: Wanted::Tuning("delivery suspend20".to_owned()),
                services: vec![Served { service, first: PolicyName::Bulk }],
                threads: 2,
                within,
            }),
            Request::Open,
            Request::Close,
            Request::Alive,
            Request::Restore,
        ]
    }

    #[test]
    fn messages_survive_any_cut_of_the_stream() {
        let sent = requests();
        let bytes: Vec<u8> = sent.iter().flat_map(|request| encode(request).expect("short")).collect();
        for size in [1, 7, bytes.len()] {
            let (mut lines, mut received) = (Lines::default(), Vec::new());
            for part in bytes.chunks(size) {
                lines.push(part);
                while let Some(request) = lines.next_message::<Request>().expect("a message") {
                    received.push(request);
                }
            }
            assert_eq!(received, sent, "in parts of {size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused_before_it_fills_the_memory() {
        let mut lines = Lines::default();
        let part = vec![b' '; 1 << 20];
        let mut pushed = 0;
        let error = loop {
            lines.push(&part);
            pushed += part.len();
            match lines.next_message::<Request>() {
                Ok(found) => assert!(found.is_none() && pushed <= MESSAGE_BYTES_MAX),
                Err(error) => break error,
            }
        };
        assert_eq!(error, NotAMessage::TooLong);
    }

    #[test]
    fn another_version_is_refused_with_both() {
        assert!(Hello::own().check("HOST").is_ok());
        let other = Hello { netpolicy: "9.9.9".to_owned(), ..Hello::own() };
        let fault = other.check("HOST").expect_err("another version");
        assert_eq!(fault.exit, Exit::Unsupported);
        let words = fault.cause.to_string();
        assert!(words.contains("HOST has netpolicy 9.9.9") && words.contains("this machine has"), "{words}");
    }

    #[test]
    fn a_failure_keeps_exit_code_hint_and_the_state_of_the_host() {
        let stuck = HostState::NotRestored { stuck: vec!["eth0 rx-0".to_owned()], undo: None };
        let fault = Fault::new(Exit::NotRestored, "no").hint("look").leaving(stuck);
        let back = Failure::from(&fault).into_fault("HOST");
        assert_eq!((back.exit, back.hint.as_deref()), (Exit::NotRestored, Some("on HOST: look")));
        let named = |stuck: &[String]| stuck == ["on HOST: eth0 rx-0"];
        assert!(matches!(back.host, HostState::NotRestored { stuck, .. } if named(&stuck)));
        let done = Failure { exit: 0, ..Failure::from(&fault) };
        assert_eq!(done.into_fault("HOST").exit, Exit::Failed, "a failure never counts as success");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic_and_what_it_takes_it_takes_again(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            cut in 0_usize..200,
            request in proptest::sample::select(requests()),
            damage in proptest::option::of((0_usize..200, any::<u8>())),
        ) {
            let mut line = encode(&request).expect("short");
            if let Some((at, byte)) = damage {
                let at = at % line.len();
                line[at] = byte;
            }
            line.extend(bytes);
            let mut lines = Lines::default();
            for part in [&line[..cut.min(line.len())], &line[cut.min(line.len())..]] {
                lines.push(part);
                while let Ok(Some(request)) = lines.next_message::<Request>() {
                    let again = encode(&request).expect("short");
                    prop_assert_eq!(serde_json::from_slice::<Request>(&again).expect("a message"), request);
                }
            }
        }
    }
}
