//! All findings about the response times of a service, each with its meaning.

/// The findings: the name and the meaning of each.
pub const RULES: &[(&str, &str)] = &[
    ("live-goal-missed", "A `goal` is missed: the percentile's whole interval is beyond it."),
    ("live-goal-met", "A `goal` is met: the percentile's whole interval is within it."),
    ("live-mostly-ring", "More than 60 % of a request's time is the wait in the NIC's ring."),
    ("live-mostly-wakeup", "More than 60 % of a request's time is the wait until the service reads it."),
    ("live-mostly-service", "More than 60 % of a request's time is spent in the application."),
    ("live-loss", "At least 0.1 % of the segments that a service sends are lost."),
    ("live-out-of-order", "At least 0.1 % of the segments that a service receives arrive out of order."),
    ("live-loss-differs", "The network lost more with one candidate than with another."),
    ("live-window-closed", "More than 1 % of reads found the service's receive window closed."),
    ("live-clients-full", "Answers wait for the receive windows of more than 5 % of the connections."),
    ("live-new-connections", "There are more than 0.1 new connections for each request."),
    ("live-queue-slow", "The median response time of one queue is more than twice that of all others."),
    ("live-worker-slow", "The median response time of one thread is more than twice that of all others."),
    (
        "live-hangs",
        "Connections have waited for an answer for more than a second; a problem if most of them have.",
    ),
    (
        "live-answers-unseen",
        "More than 1 % of exchanges were answered on a path that no BPF program observes.",
    ),
    ("policy-expected", "No policy is in force for a service; shows the expected effect of each policy."),
    ("live-mptcp", "Connections use MPTCP, whose answers cannot be observed."),
    ("live-rps", "Receive packet steering is on: packets wait for another CPU between NAPI and TCP."),
    ("live-steered", "Packets changed CPUs between NAPI and TCP: their wait in between is unknown."),
    ("live-no-napi", "Packets have no NAPI id, as over loopback: their wait in a ring is unknown."),
    (
        "live-moderation",
        "The NIC delays interrupts adaptively; the wait in the ring does not include this delay.",
    ),
    (
        "live-moderation-differs",
        "Candidates differ in the NIC's interrupt delay, which no response time includes, so a longer delay appears better than it is.",
    ),
    ("live-uniform-alone", "No window had interrupts enabled, so only estimate U is available."),
    ("live-estimators-disagree", "Estimates U and C differ by more than 30 us and 30 %."),
    (
        "live-stamps-disagree",
        "Estimate T and the polls disagree: requests wait before the ring, or a clock is being slewed.",
    ),
    ("live-threaded", "A kernel thread polls, so p99 is a lower bound."),
    ("live-ksoftirqd", "ksoftirqd polls, and how long packets waited until it ran is unknown."),
    ("live-arrivals-unseen", "More than 1 % of requests arrived unobserved by any BPF program."),
    ("live-polls-lost", "Requests are answered so late that their poll records were overwritten."),
    ("live-events-lost", "More than 1 % of events interrupted the BPF program that counts them."),
    ("live-unsolicited", "More than 5 % of sends are not answers but, for example, pushes or subscriptions."),
    (
        "live-pipelined",
        "More than eight requests are outstanding on a connection: further ones are timed together with an earlier one.",
    ),
    ("live-connections", "There are more connections than can be measured."),
    ("live-few-requests", "There are too few requests for a percentile."),
    ("live-answers-late", "Linux before 6.16: answers are recorded 10 to 25 us late."),
    ("live-nothing-arrived", "No request arrived."),
    ("live-datagrams-unpaired", "More than 1 % of the datagrams are not paired with answers, as with QUIC."),
    ("live-datagrams-dropped", "At least 0.1 % of the datagrams did not fit into a socket's buffer."),
    (
        "live-unanswered",
        "More than 1 % of the datagrams had been waiting for an answer for at least 10 ms when their window ended.",
    ),
    (
        "live-not-measured",
        "A service with a goal cannot be measured; the evidence quotes the kernel's error.",
    ),
];

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use super::RULES;

    #[test]
    fn every_finding_of_response_times_is_listed_once_and_no_other() {
        let sources = [
            include_str!("../measure/live/findings.rs"),
            include_str!("../measure/live/caveats.rs"),
            include_str!("../measure/switchback/network.rs"),
            include_str!("prospect.rs"),
            include_str!("target.rs"),
            include_str!("moderation.rs").split("#[cfg(test)]").next().unwrap_or_default(),
            include_str!("../../../daemon/src/goals.rs"),
        ];
        let words = sources.iter().flat_map(|source| source.split('"'));
        let is_rule = |word: &&str| {
            (word.starts_with("live-") || *word == "policy-expected")
                && word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        };
        let named: BTreeSet<&str> = words.filter(is_rule).collect();
        let listed: BTreeSet<&str> = RULES.iter().map(|(rule, _)| *rule).collect();
        assert_eq!(named, listed);
        assert_eq!(RULES.len(), listed.len());
    }
}
