//! The physical parameters of the model: each with its name, unit, meaning, plausible bounds and default.

/// A parameter, as described to people and to the search that fits it.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The key in a scenario's `[costs]`.
    pub name: &'static str,
    /// The unit.
    pub unit: &'static str,
    /// The meaning.
    pub meaning: &'static str,
    /// The lowest plausible value.
    pub min: f64,
    /// The highest plausible value.
    pub max: f64,
}

macro_rules! parameters {
    ($($(#[doc = $doc:literal])* $field:ident, $name:literal, $unit:literal, $default:literal, $min:literal, $max:literal;)*) => {
        /// The physical parameters. Times are in microseconds.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Costs {
            $($(#[doc = $doc])* pub $field: f64,)*
        }

        impl Default for Costs {
            /// The study's fit to twelve rows of measurements on the machine of the IRQ-suspension document.
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Costs {
            /// The lowest costs of clients, which are used if no client was measured.
            pub const CLIENTS: &'static [(&'static str, f64)] = &[
                ("client-rtt", 1.0),
                ("client-jitter", 0.0),
                ("client-slow-base", 0.0),
                ("client-slow-load", 0.0),
                ("ack-delay", 1.0),
            ];

            /// All parameters, in the order of the stations.
            pub const PARAMETERS: &'static [Parameter] = &[
                $(Parameter { name: $name, unit: $unit, meaning: concat!($($doc),*), min: $min, max: $max },)*
            ];

            /// The value of the parameter with this name; `None` if there is no such parameter.
            pub fn get(&self, name: &str) -> Option<f64> {
                match name { $($name => Some(self.$field),)* _ => None }
            }

            /// Sets the parameter with this name; `false` if there is no such parameter.
            pub fn set(&mut self, name: &str, value: f64) -> bool {
                match name { $($name => self.$field = value,)* _ => return false }
                true
            }
        }
    };
}

parameters! {
    /// Client and wire: the round-trip time without the server's part.
    client_rtt, "client-rtt", "us", 29.4, 1.0, 400.0;
    /// Client: mean of the exponential delay of an answer on its way back.
    client_jitter, "client-jitter", "us", 6.3, 0.0, 100.0;
    /// Client: share of answers read late, at no load.
    client_slow_base, "client-slow-base", "share", 0.029, 0.0, 0.2;
    /// Client: growth of the share of late answers per million answers a second.
    client_slow_load, "client-slow-load", "share/M", 0.169, 0.0, 0.5;
    /// Client: mean delay of a late answer.
    client_slow, "client-slow", "us", 87.0, 0.0, 300.0;
    /// Client: standard deviation of a late answer's delay, relative to the mean.
    client_slow_spread, "client-slow-spread", "share", 0.2, 0.0, 0.5;
    /// Client: probability that a late answer is delayed again, relative to that of the first delay.
    client_slow_again, "client-slow-again", "share", 0.0, 0.0, 1.0;
    /// Clients' host (`clients.threads`): time from reading an answer to sendmsg of the next request.
    client_request, "client-request", "us", 0.0, 0.0, 50.0;
    /// Client: time from the transmission of an answer to the arrival of its pure ACK.
    ack_delay, "ack-delay", "us", 7.9, 1.0, 100.0;
    /// NIC interrupt, with entry to and exit from the softirq.
    irq, "irq", "us", 3.38, 0.3, 10.0;
    /// Interrupt of a NAPI's hrtimer, with entry to and exit from the softirq.
    timer, "timer", "us", 0.55, 0.1, 5.0;
    /// Fixed part of a call of the driver's poll.
    poll, "poll", "us", 0.37, 0.05, 3.0;
    /// Softirq: work for a packet with data, up to the socket.
    packet, "packet", "us", 1.92, 0.3, 10.0;
    /// Softirq: share of the work for a packet with data that precedes the delivery to sockets: driver, GRO
    /// and IP.
    before_socket, "before-socket", "share", 0.5, 0.0, 1.0;
    /// Softirq: additional work for the first packet of a poll (cold caches).
    packet_first, "packet-first", "us", 0.0, 0.0, 3.0;
    /// Softirq: work for a pure ACK.
    ack, "ack", "us", 1.54, 0.2, 8.0;
    /// Softirq: additional work if the packet's thread last ran on another CPU.
    packet_remote, "packet-remote", "us", 0.21, 0.0, 3.0;
    /// Factor on a packet's work, except for its bytes, in a NAPI thread.
    packet_in_thread, "packet-in-thread", "factor", 1.0, 0.8, 2.0;
    /// Application: work per request, from read to sendmsg.
    request, "request", "us", 2.81, 0.3, 50.0;
    /// Application: share of the work per request that varies, exponentially distributed.
    request_spread, "request-spread", "share", 0.5, 0.0, 1.0;
    /// Application: additional work if the packet was handled on another CPU.
    request_remote, "request-remote", "us", 0.33, 0.0, 5.0;
    /// Application: additional work when a batch no longer fits the caches.
    locality, "locality", "us", 0.91, 0.0, 5.0;
    /// Softirq: additional work for a packet of a connection whose data has left the caches.
    packet_cold, "packet-cold", "us", 0.0, 0.0, 4.0;
    /// Requests of a thread after which 63 % of a connection's data has left the caches.
    locality_batch, "locality-batch", "requests", 115.0, 5.0, 1000.0;
    /// Application: additional work for each softirq that interrupts it.
    preempted, "preempted", "us", 0.67, 0.0, 5.0;
    /// Application: additional work for each packet of a softirq that interrupts it.
    preempted_packet, "preempted-packet", "us", 0.0, 0.0, 1.0;
    /// A call of epoll_wait.
    epoll, "epoll", "us", 1.12, 0.1, 5.0;
    /// Level-triggered rescan, per event of the last batch.
    epoll_rescan, "epoll-rescan", "us", 0.05, 0.0, 0.5;
    /// Putting a thread to sleep.
    sleep, "sleep", "us", 1.50, 0.1, 5.0;
    /// Switching to a woken thread.
    switch_in, "switch-in", "us", 1.13, 0.1, 5.0;
    /// try_to_wake_up, on the waking CPU.
    wake, "wake", "us", 0.74, 0.1, 5.0;
    /// Inter-processor interrupt of a remote wake-up: half on each CPU, more between caches and nodes.
    ipi, "ipi", "us", 0.60, 0.0, 5.0;
    /// Leaving the idle state; not counted as busy.
    idle_exit, "idle-exit", "us", 0.72, 0.0, 50.0;
    /// Busy polling: an iteration without a packet.
    busy_poll, "busy-poll", "us", 1.22, 0.1, 5.0;
    /// Resuming IRQs when epoll_wait finds no event: entry to and exit from the softirq.
    resume, "resume", "us", 0.65, 0.05, 5.0;
    /// Time from sendmsg to the transmit completion.
    transmit, "transmit", "us", 1.5, 0.1, 20.0;
    /// Workqueue NAPI: additional work when a worker begins a work item.
    workqueue_wake, "workqueue-wake", "us", 0.8, 0.0, 10.0;
    /// Workqueue NAPI: share of polls with a full budget after which another worker continues.
    workqueue_requeue, "workqueue-requeue", "share", 0.0, 0.0, 1.0;
    /// Softirq: work per kilobyte beyond the first packet.
    copy_in, "copy-in", "us/KB", 0.10, 0.0, 2.0;
    /// Application: copies per kilobyte beyond the first packet.
    copy_out, "copy-out", "us/KB", 0.10, 0.0, 2.0;
    /// Growth of remote costs with the square of the machine's busy share.
    contention, "contention", "factor", 0.0, 0.0, 20.0;
    /// Factor on all work while the SMT sibling is busy (the default: twice 1024/1178, after `smt_gain` in
    /// kernels before 4.20).
    smt_slowdown, "smt-slowdown", "factor", 1.74, 1.0, 2.0;
    /// Probability that a wake-up from another LLC group moves the thread to that group.
    wake_pull, "wake-pull", "share", 0.5, 0.0, 1.0;
    /// Factor on remote costs between CPUs that share no last-level cache.
    remote_llc, "remote-llc", "factor", 1.0, 1.0, 10.0;
    /// How often idle CPUs look for threads in an LLC group that runs more; at zero, no group is overloaded.
    group_moves, "group-moves", "1/s", 0.0, 0.0, 1000.0;
    /// How often a running thread moves to a CPU that looks idle while a kernel task waits for its CPU.
    thread_moves, "thread-moves", "1/s", 0.0, 0.0, 1000.0;
    /// How often a thread moves from a CPU that spends much time in interrupts to one that does not.
    active_balance, "active-balance", "1/s", 0.0, 0.0, 1000.0;
    /// Rate of short kernel tasks per CPU.
    housekeeping, "housekeeping", "1/s", 0.0, 0.0, 1000.0;
    /// Duration of a short kernel task.
    housekeeping_span, "housekeeping-span", "us", 20.0, 1.0, 500.0;
    /// Time slice of a thread while others wait.
    slice, "slice", "us", 3000.0, 100.0, 20000.0;
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_parameter_is_found_by_its_name_and_its_default_is_plausible() {
        let mut costs = Costs::default();
        for parameter in Costs::PARAMETERS {
            let value = costs.get(parameter.name).expect("named");
            assert!((parameter.min..=parameter.max).contains(&value), "{}", parameter.name);
            assert!(costs.set(parameter.name, parameter.min));
            assert_eq!(costs.get(parameter.name), Some(parameter.min));
        }
    }
}
