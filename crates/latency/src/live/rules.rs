//! All findings on the response times of a service, with their meaning.

/// The findings: the word that each has, and what it means.
pub const RULES: &[(&str, &str)] = &[
    ("live-goal-missed", "A `goal` of the policy files is missed, by the whole interval of the percentile."),
    ("live-goal-met", "A `goal` is met, by the whole interval."),
    (
        "live-mostly-ring",
        "More than 60 % of a request's time is the wait in the ring of the NIC: delivery decides.",
    ),
    ("live-mostly-wakeup", "More than 60 % is the wait to be read: the service is busy, or has no CPU."),
    ("live-mostly-service", "More than 60 % is the application's own: no policy of delivery helps."),
    ("live-queue-slow", "The median of one queue is more than twice that of all others."),
    ("live-worker-slow", "The median of one thread is more than twice that of all others."),
    (
        "live-hangs",
        "Connections have waited for an answer for more than a second; a problem if they are most.",
    ),
    ("live-answers-unseen", "More than 1 % of exchanges were answered by a way that no BPF program sees."),
    ("live-mptcp", "Connections speak MPTCP, whose answers cannot be seen: they are not measured."),
    ("live-rps", "Receive packet steering is on: packets wait for another CPU between NAPI and TCP."),
    (
        "live-steered",
        "Packets changed CPUs between NAPI and TCP: how long they waited on the way is not known.",
    ),
    ("live-no-napi", "Packets name no NAPI, as over loopback: how long they were in a ring is not known."),
    (
        "live-moderation",
        "The NIC delays interrupts by times of its own choosing, which are not in the wait in the ring.",
    ),
    (
        "live-moderation-differs",
        "Candidates differ in how long the NIC delays its interrupts, which no response time includes: more delay looks better than it is.",
    ),
    ("live-uniform-alone", "No window had interrupts enabled: estimate U is all there is."),
    ("live-estimators-disagree", "U and C are more than 30 us and 30 % apart."),
    (
        "live-stamps-disagree",
        "The clients' stamps and the polls say different response times: requests wait before the ring, or a clock is being slewed.",
    ),
    ("live-threaded", "A kernel thread polls: p99 is a lower bound."),
    ("live-ksoftirqd", "ksoftirqd polls: how long packets waited until it had the CPU is not known."),
    ("live-arrivals-unseen", "More than 1 % of requests came without a BPF program that saw them."),
    ("live-polls-lost", "Requests are answered so late that their polls were forgotten."),
    (
        "live-events-lost",
        "More than 1 % of events interrupted the BPF program that counts them, and are in no count.",
    ),
    ("live-unsolicited", "More than 5 % of sends answer nothing: pushes, subscriptions."),
    (
        "live-pipelined",
        "More than eight requests are under way on a connection: the others are timed with one before them.",
    ),
    ("live-connections", "There are more connections than can be measured."),
    ("live-few-requests", "There were too few requests for a percentile."),
    ("live-answers-late", "Linux before 6.16: answers are noted 10 to 25 us late."),
    ("live-nothing-arrived", "No request came by TCP; UDP and QUIC cannot be measured."),
    (
        "live-not-measured",
        "A service that has a goal cannot be measured; the evidence has the kernel's words.",
    ),
];

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use super::RULES;

    #[test]
    fn every_finding_of_response_times_is_listed_once_and_no_other() {
        let sources = [
            include_str!("../../../measure/src/live/findings.rs"),
            include_str!("../../../measure/src/live/caveats.rs"),
            include_str!("target.rs"),
            include_str!("moderation.rs").split("#[cfg(test)]").next().unwrap_or_default(),
            include_str!("../../../daemon/src/goals.rs"),
        ];
        let words = sources.iter().flat_map(|source| source.split('"'));
        let is_rule = |word: &&str| {
            word.starts_with("live-") && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        };
        let named: BTreeSet<&str> = words.filter(is_rule).collect();
        let listed: BTreeSet<&str> = RULES.iter().map(|(rule, _)| *rule).collect();
        assert_eq!(named, listed);
        assert_eq!(RULES.len(), listed.len());
    }
}
