//! The keys of scenarios: what each accepts and changes.
//!
//! Scenario files, `--set` and `--sweep` all use [`KEYS`], so they cannot disagree.

use model::{Arrivals, DeliveryMode, EmptyPolls, KernelVersion, Nanoseconds, OfferedLoad};

use super::check::CPUS_MAX;
use super::{Costs, Processing, SPAN_MAX, Scenario, Waits};

/// A key of a scenario; those of `[costs]` are [`Costs::PARAMETERS`].
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// `section.key`.
    pub path: &'static str,
    /// The meaning.
    pub meaning: &'static str,
    /// The values that the key accepts.
    pub takes: Takes,
}

/// The values that a key accepts. Text values are always given as text; numbers may be given as numbers.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// A whole number.
    Whole {
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
        /// Sets the value.
        set: fn(&mut Scenario, u32),
    },
    /// A number.
    Number {
        /// The minimum.
        min: f64,
        /// The maximum.
        max: f64,
        /// Sets the value.
        set: fn(&mut Scenario, f64),
    },
    /// `true` or `false`.
    Switch(fn(&mut Scenario, bool)),
    /// A span with its unit.
    Span(fn(&mut Scenario, Nanoseconds)),
    /// A word or a list in its own syntax; the error describes valid values.
    Word(fn(&mut Scenario, &str) -> Result<(), String>),
}

/// The error for a refused key or value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such key.
    #[error("`{0}` is not a key of a scenario")]
    NoKey(String),
    /// The value is invalid.
    #[error("{0}")]
    Value(String),
}

const fn whole(min: u32, max: u32, set: fn(&mut Scenario, u32)) -> Takes {
    Takes::Whole { min, max, set }
}

/// All keys except those of `[costs]`.
pub const KEYS: &[Key] = &[
    Key {
        path: "hardware.cpus",
        meaning: "CPUs for IRQs and threads",
        takes: whole(1, CPUS_MAX, |s, n| s.hardware.cpus = n),
    },
    Key {
        path: "hardware.llc-cpus",
        meaning: "CPUs that share a last-level cache",
        takes: whole(1, CPUS_MAX, |s, n| s.hardware.llc_cpus = n),
    },
    Key {
        path: "hardware.smt",
        meaning: "whether CPUs n and n + cpus/2 are hyper-threads of one core",
        takes: Takes::Switch(|s, b| s.hardware.smt = b),
    },
    Key {
        path: "hardware.node-cpus",
        meaning: "CPUs of a NUMA node",
        takes: whole(1, CPUS_MAX, |s, n| s.hardware.node_cpus = n),
    },
    Key {
        path: "hardware.node-distance",
        meaning: "distance between nodes; above 10 if there are several",
        takes: whole(10, 255, |s, n| s.hardware.node_distance = n),
    },
    Key { path: "hardware.queues", meaning: "RX queues", takes: whole(1, 256, |s, n| s.hardware.queues = n) },
    Key {
        path: "hardware.ring",
        meaning: "descriptors of an RX ring",
        takes: whole(1, 65_536, |s, n| s.hardware.ring = n),
    },
    Key {
        path: "hardware.adaptive",
        meaning: "whether net_dim moderates interrupts",
        takes: Takes::Switch(|s, b| s.hardware.coalescing.adaptive = b),
    },
    Key {
        path: "hardware.rx-usecs",
        meaning: "microseconds until the RX interrupt",
        takes: whole(0, 10_000, |s, n| s.hardware.coalescing.rx_usecs = n),
    },
    Key {
        path: "hardware.rx-frames",
        meaning: "packets until the RX interrupt",
        takes: whole(1, 65_536, |s, n| s.hardware.coalescing.rx_frames = n),
    },
    Key {
        path: "hardware.rx-cqe",
        meaning: "whether the RX timer restarts at every packet",
        takes: Takes::Switch(|s, b| s.hardware.coalescing.rx_cqe = b),
    },
    Key {
        path: "hardware.tx-usecs",
        meaning: "microseconds between TX interrupts",
        takes: whole(0, 10_000, |s, n| s.hardware.coalescing.tx_usecs = n),
    },
    Key {
        path: "hardware.tx-irq",
        meaning: "whether transmit completions interrupt",
        takes: Takes::Switch(|s, b| s.hardware.coalescing.tx_irq = b),
    },
    Key {
        path: "hardware.frame-bytes",
        meaning: "bytes of a message in one frame",
        takes: whole(64, 16_777_216, |s, n| s.hardware.frame_bytes = n),
    },
    Key {
        path: "hardware.link-gbps",
        meaning: "bandwidth of the link; answers share it, requests never wait for each other",
        takes: Takes::Number { min: 0.01, max: 10_000.0, set: |s, n| s.hardware.link_gbps = n },
    },
    Key { path: "hardware.kernel", meaning: "kernel version", takes: Takes::Word(kernel) },
    Key {
        path: "application.threads",
        meaning: "threads, each with its own epoll",
        takes: whole(1, 1024, |s, n| s.application.threads = n),
    },
    Key {
        path: "application.max-events",
        meaning: "initial maximum number of events per epoll_wait",
        takes: whole(1, 65_536, |s, n| s.application.max_events = n),
    },
    Key {
        path: "application.max-events-limit",
        meaning: "the maximum to which max-events doubles",
        takes: whole(1, 65_536, |s, n| s.application.max_events_limit = n),
    },
    Key { path: "application.waits", meaning: "how a thread waits for events", takes: Takes::Word(waits) },
    Key {
        path: "application.request-bytes",
        meaning: "bytes of a request",
        takes: whole(1, 16_777_216, |s, n| s.application.request_bytes = n),
    },
    Key {
        path: "application.response-bytes",
        meaning: "bytes of an answer",
        takes: whole(1, 16_777_216, |s, n| s.application.response_bytes = n),
    },
    Key {
        path: "clients.connections",
        meaning: "connections, each with at most one outstanding request",
        takes: whole(1, 4_000_000, |s, n| s.clients.connections = n),
    },
    Key {
        path: "clients.threads",
        meaning: "threads of the clients' host; 0 if the clients' work takes no time",
        takes: whole(0, 128, |s, n| s.clients.threads = n),
    },
    Key {
        path: "clients.queues",
        meaning: "RX queues of the clients' host, if that host has threads",
        takes: whole(1, 128, |s, n| s.clients.queues = n),
    },
    Key { path: "clients.load", meaning: "requests per second", takes: Takes::Word(load) },
    Key {
        path: "clients.arrivals",
        meaning: "distribution of the gaps between a connection's requests",
        takes: Takes::Word(arrivals),
    },
    Key {
        path: "clients.from-due",
        meaning: "whether response times count from the time when a request was due",
        takes: Takes::Switch(|s, b| s.clients.from_due = b),
    },
    Key {
        path: "clients.acks",
        meaning: "whether answers are acknowledged by separate packets",
        takes: Takes::Switch(|s, b| s.clients.acks = b),
    },
    Key { path: "delivery.mode", meaning: "delivery mode", takes: Takes::Word(mode) },
    Key { path: "delivery.processing", meaning: "what polls the NAPI", takes: Takes::Word(processing) },
    Key {
        path: "delivery.defer-hard-irqs",
        meaning: "empty polls before the IRQ is armed",
        takes: whole(0, 1_000_000, |s, n| s.delivery.params.defer_hard_irqs = EmptyPolls(n)),
    },
    Key {
        path: "delivery.gro-flush-timeout",
        meaning: "duration of the NAPI's timer",
        takes: Takes::Span(|s, t| s.delivery.params.gro_flush_timeout = t),
    },
    Key {
        path: "delivery.irq-suspend-timeout",
        meaning: "duration of the timer while IRQs are suspended",
        takes: Takes::Span(|s, t| s.delivery.params.irq_suspend_timeout = t),
    },
    Key {
        path: "delivery.busy-poll-usecs",
        meaning: "for how long epoll_wait busy-polls",
        takes: whole(0, 10_000_000, |s, n| s.delivery.params.epoll.busy_poll_usecs = n),
    },
    Key {
        path: "delivery.busy-poll-budget",
        meaning: "maximum number of packets of one busy poll",
        takes: whole(1, 65_535, |s, n| {
            s.delivery.params.epoll.busy_poll_budget = u16::try_from(n).unwrap_or(u16::MAX)
        }),
    },
    Key {
        path: "delivery.prefer-busy-poll",
        meaning: "whether epoll prefers busy polling to IRQs",
        takes: Takes::Switch(|s, b| s.delivery.params.epoll.prefer_busy_poll = b),
    },
    Key {
        path: "layout.irq-cpus",
        meaning: "CPUs of the queues' IRQs: queue i uses the i-th one",
        takes: Takes::Word(irq_cpus),
    },
    Key { path: "layout.thread-cpus", meaning: "CPUs that threads may use", takes: Takes::Word(thread_cpus) },
    Key {
        path: "layout.pinned",
        meaning: "whether thread i is pinned to the i-th of these CPUs",
        takes: Takes::Switch(|s, b| s.layout.pinned = b),
    },
    Key {
        path: "layout.by-napi",
        meaning: "whether connections belong to the thread of their queue (further threads idle); if not, an epoll that suspends IRQs or busy-polls serves one queue only, and packets of other queues wait for timeouts",
        takes: Takes::Switch(|s, b| s.layout.by_napi = b),
    },
    Key {
        path: "layout.even-queues",
        meaning: "whether connections are spread over queues evenly",
        takes: Takes::Switch(|s, b| s.layout.even_queues = b),
    },
    Key {
        path: "layout.even-threads",
        meaning: "whether connections are spread over threads evenly",
        takes: Takes::Switch(|s, b| s.layout.even_threads = b),
    },
];

impl Scenario {
    /// Sets the value of a key, given as text.
    ///
    /// # Errors
    /// [`Refused`] says whether the key or the value is wrong, and which values are valid.
    pub fn set(&mut self, path: &str, text: &str) -> Result<(), Refused> {
        let value = |message: String| Refused::Value(message);
        let no_key = || Refused::NoKey(path.chars().take(NAMED_CHARS_MAX).collect());
        if text.len() > VALUE_BYTES_MAX {
            let bytes = text.len();
            return Err(value(format!(
                "this value has {bytes} bytes; at most {VALUE_BYTES_MAX} are allowed"
            )));
        }
        if let Some(name) = path.strip_prefix("costs.") {
            let parameter = Costs::PARAMETERS.iter().find(|parameter| parameter.name == name);
            let parameter = parameter.ok_or_else(no_key)?;
            let number = number(text, parameter.min, parameter.max)
                .map_err(|e| value(format!("{e} {}: {}", parameter.unit, parameter.meaning.trim())))?;
            self.costs.set(name, number);
            return Ok(());
        }
        let key = KEYS.iter().find(|key| key.path == path).ok_or_else(no_key)?;
        match key.takes {
            Takes::Whole { min, max, set } => match text.parse::<u32>() {
                Ok(n) if (min..=max).contains(&n) => set(self, n),
                _ => return Err(value(format!("`{text}` is not a whole number from {min} to {max}"))),
            },
            Takes::Number { min, max, set } => set(self, number(text, min, max).map_err(value)?),
            Takes::Switch(set) => match text {
                "true" => set(self, true),
                "false" => set(self, false),
                _ => return Err(value(format!("`{text}` is neither true nor false"))),
            },
            Takes::Span(set) => match text.parse::<Nanoseconds>() {
                Ok(span) if span <= SPAN_MAX => set(self, span),
                Ok(_) => return Err(value(format!("`{text}` is longer than {SPAN_MAX}"))),
                Err(error) => return Err(value(error.to_string())),
            },
            Takes::Word(set) => set(self, text).map_err(value)?,
        }
        Ok(())
    }

    /// Sets several keys in any order: a delivery mode sets other values first, and the explicit keys then
    /// override them.
    ///
    /// # Errors
    /// The index of the first refused setting, and the reason.
    pub fn set_all<'a>(
        &mut self,
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), (usize, Refused)> {
        let (modes, others): (Vec<_>, Vec<_>) =
            given.into_iter().enumerate().partition(|(_, (path, _))| *path == MODE);
        for (place, (path, text)) in modes.into_iter().chain(others) {
            self.set(path, text).map_err(|refused| (place, refused))?;
        }
        Ok(())
    }

    /// Whether a key or a parameter of this path exists.
    pub fn has_key(path: &str) -> bool {
        match path.strip_prefix("costs.") {
            Some(name) => Costs::PARAMETERS.iter().any(|parameter| parameter.name == name),
            None => KEYS.iter().any(|key| key.path == path),
        }
    }
}

/// The key that sets other keys of its section.
const MODE: &str = "delivery.mode";
/// Maximum length of a value, in bytes: a list of 128 individual CPUs takes 402.
const VALUE_BYTES_MAX: usize = 512;
/// Maximum number of characters of an unknown key that are quoted.
const NAMED_CHARS_MAX: usize = 80;

fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(format!("`{text}` is not a number from {min} to {max}")),
    }
}

fn kernel(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    let parts: Option<(u32, u32)> =
        text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = parts.ok_or_else(|| format!("`{text}` is not a kernel version, as in 6.12"))?;
    scenario.hardware.kernel = KernelVersion { major, minor, patch: 0 };
    Ok(())
}

fn waits(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    scenario.application.waits = match text.split_once(':') {
        None if text == "sleep" => Waits::Sleep,
        None if text == "user-spin" => Waits::UserSpin,
        Some(("event-spin", usecs)) => match usecs.parse() {
            Ok(usecs) => Waits::EventSpin(usecs),
            Err(_) => return Err(format!("`{usecs}` is not a number of microseconds")),
        },
        _ => {
            return Err(format!("`{text}` is not a way to wait: use sleep, user-spin or event-spin:USECS"));
        }
    };
    Ok(())
}

/// The lowest and the highest number of requests per second in a scenario.
const LOADS: (f64, f64) = (1.0, OfferedLoad::PER_SECOND_MAX);

fn load(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    let load = text.parse::<OfferedLoad>().map_err(|error| error.to_string())?;
    if let OfferedLoad::PerSecond(rate) = load
        && !(LOADS.0..=LOADS.1).contains(&rate)
    {
        return Err(format!("`{text}` is not a load from {} to {:.0} requests per second", LOADS.0, LOADS.1));
    }
    scenario.clients.load = load;
    Ok(())
}

fn arrivals(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    scenario.clients.arrivals = text.parse::<Arrivals>().map_err(|error| error.to_string())?;
    Ok(())
}

fn mode(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    let mode: DeliveryMode =
        text.parse().map_err(|error: model::delivery::NotADeliveryMode| error.to_string())?;
    scenario.deliver(mode);
    Ok(())
}

fn processing(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    scenario.delivery.processing = match text {
        "softirq" => Processing::Softirq,
        "kthread" => Processing::Kthread,
        "workqueue" => Processing::Workqueue,
        "busy-kthread" => Processing::BusyKthread,
        _ => return Err(format!("`{text}` is not one of softirq, kthread, workqueue, busy-kthread")),
    };
    Ok(())
}

fn irq_cpus(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    scenario.layout.irq_cpus = cpu_list(text)?;
    Ok(())
}

fn thread_cpus(scenario: &mut Scenario, text: &str) -> Result<(), String> {
    scenario.layout.thread_cpus = cpu_list(text)?;
    Ok(())
}

fn cpu_list(text: &str) -> Result<Vec<u32>, String> {
    let cpus: model::CpuSet =
        text.parse().map_err(|_| format!("`{text}` is not a list of CPUs, as in 0-3,8"))?;
    Ok(cpus.iter().map(|cpu| cpu.0).collect())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let mut scenario = Scenario::default();
        let wrong = |s: &mut Scenario, path: &str, text: &str| s.set(path, text).expect_err(path).to_string();
        assert_eq!(wrong(&mut scenario, "hardware.queues", "0"), "`0` is not a whole number from 1 to 256");
        assert!(wrong(&mut scenario, "costs.irq", "-1").contains("from 0.3 to 10 us: "));
        assert!(wrong(&mut scenario, "delivery.mode", "suspend0").contains("suspend20"));
        assert_eq!(
            wrong(&mut scenario, "hardware.cores", "8"),
            "`hardware.cores` is not a key of a scenario"
        );
        assert!(wrong(&mut scenario, "hardware.kernel", &"6".repeat(10_000)).contains("10000 bytes"));
        assert!(wrong(&mut scenario, &"k".repeat(10_000), "1").len() < 200);
        assert_eq!(scenario, Scenario::default());
    }

    #[test]
    fn keys_beside_a_delivery_mode_change_it_in_any_order() {
        let of = |given: [(&'static str, &'static str); 2]| {
            let mut scenario = Scenario::default();
            scenario.set_all(given).map(|()| scenario)
        };
        let (mode, span) = (("delivery.mode", "suspend20"), ("delivery.gro-flush-timeout", "70us"));
        let scenario = of([mode, span]).expect("is taken");
        assert_eq!(scenario.delivery.params.gro_flush_timeout, Nanoseconds(70_000));
        assert_eq!(of([span, mode]), Ok(scenario));
        let (place, _) = of([("delivery.gro-flush-timeout", "x"), mode]).expect_err("no span");
        assert_eq!(place, 0);
    }

    #[test]
    fn every_key_says_what_it_means() {
        for key in KEYS {
            assert!(!key.meaning.is_empty() && key.path.contains('.'), "{key:?}");
            assert!(Scenario::has_key(key.path) && !Scenario::has_key(&format!("{}s", key.path)), "{key:?}");
        }
    }
}
