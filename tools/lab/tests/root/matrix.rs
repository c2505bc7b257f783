//! Breaks the conditions of IRQ suspension one by one on a real kernel with unmodified memcached, and checks
//! that `doctor` correctly reports whether suspension is engaged, and the cause if not. The tests check
//! counts, not times. On a busy machine a run may have too little data; such a run is repeated a limited
//! number of times, which the error of a failed test states.

use std::collections::BTreeSet;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::{LabOptions, MemcachedOptions};
use model::{
    Cpu, DeliveryMode, DeliveryParams, EmptyPolls, EpollParams, Finding, Host, Nanoseconds, OfferedLoad,
    RxQueue, Threading,
};
use plan::RequestFacts;
use testkit::{Need, test};

use super::stage::{Seen, Stage};

/// Maximum number of attempts at a run that had too few packets, or whose share was between the groups that
/// the rules distinguish.
const ATTEMPTS_MAX: u32 = 6;

/// The pause after the first such run, in case other load ends soon. It doubles after each further run.
const PAUSE_FIRST: Duration = Duration::from_millis(250);

/// The load of the rows: that of the study, and as much as one CPU for the client, in addition to the
/// server's, sustains.
const OFFERED: OfferedLoad = OfferedLoad::PerSecond(60_000.0);

/// A load at which the server mostly sleeps.
const LOW: OfferedLoad = OfferedLoad::PerSecond(1_000.0);

/// The minimum number of answers per second: with fewer, a run shows nothing about delivery under load.
const ANSWERS_MIN: u64 = 10_000;

/// The mode that every row requests.
const MODE: DeliveryMode = DeliveryMode::Suspend { gro_flush: Nanoseconds::from_micros(200) };

/// One case: the broken condition, and the expected findings.
struct Row {
    name: &'static str,
    lab: LabOptions,
    server: MemcachedOptions,
    params: DeliveryParams,
    threaded: Threading,
    load: OfferedLoad,
    /// The allowed verdicts on the server's NAPIs: `doctor` must report one of these rules for each NAPI.
    verdicts: &'static [&'static str],
    /// The rule that names the cause; `None` if nothing is wrong.
    cause: Option<&'static str>,
}

impl Row {
    fn new(name: &'static str, verdicts: &'static [&'static str], cause: Option<&'static str>) -> Self {
        Self {
            name,
            lab: LabOptions::with_queues(1),
            server: MemcachedOptions::default(),
            params: MODE.params(),
            threaded: Threading::Off,
            load: OFFERED,
            verdicts,
            cause,
        }
    }

    fn queues(self, queues: u32) -> Self {
        Self { lab: LabOptions::with_queues(queues), ..self }
    }

    fn workers(self, threads: u32, napi_ids: Option<u32>) -> Self {
        Self { server: MemcachedOptions { threads, napi_ids, ..self.server }, ..self }
    }

    /// Uses the maximum load, at which the server never waits, so that its own polls find either all packets
    /// or none.
    fn saturated(self) -> Self {
        Self { load: OfferedLoad::Max, ..self }
    }

    fn params(self, change: impl FnOnce(&mut DeliveryParams)) -> Self {
        let mut params = self.params;
        change(&mut params);
        Self { params, ..self }
    }
}

fn rows() -> Vec<Row> {
    let tso = LabOptions { client_tso: true, ..LabOptions::with_queues(1) };
    let no_gro = LabOptions { server_gro: false, ..LabOptions::with_queues(1) };
    let steered = LabOptions { server_rps: [Cpu(0)].into_iter().collect(), ..LabOptions::with_queues(1) };
    vec![
        Row::new("all_conditions_met_is_engaged", &["engaged"], None).saturated(),
        Row {
            lab: tso,
            ..Row::new(
                "tso_at_the_sender_keeps_packets_off_the_napi",
                &["not-engaged"],
                Some("packets-on-no-napi"),
            )
        },
        Row {
            lab: no_gro,
            ..Row::new(
                "gro_off_at_the_server_leaves_it_without_a_napi",
                &["not-engaged"],
                Some("packets-on-no-napi"),
            )
        },
        Row {
            lab: steered,
            ..Row::new(
                "rps_moves_protocol_work_to_another_cpu",
                &["engaged", "partly-engaged", "not-engaged"],
                Some("rps-on"),
            )
        },
        Row::new(
            "four_epolls_on_one_napi_resume_each_other",
            &["engaged", "partly-engaged"],
            Some("napi-shared-by-epolls"),
        )
        .workers(4, None)
        .saturated(),
        Row::new("one_epoll_on_two_napis_flaps", &["partly-engaged"], Some("epoll-mixes-napis")).queues(2),
        Row::new("two_epolls_that_mix_two_napis_flap", &["partly-engaged"], Some("epoll-mixes-napis"))
            .queues(2)
            .workers(2, None),
        Row::new(
            "an_epoll_for_each_napi_on_one_cpu_is_not_enough",
            &["engaged", "partly-engaged"],
            Some("pollers-share-a-cpu"),
        )
        .queues(2)
        .workers(2, Some(2))
        .saturated(),
        Row::new("an_epoll_that_does_not_prefer_is_not_engaged", &["not-engaged"], Some("prefer-off"))
            .params(|params| params.epoll = EpollParams { prefer_busy_poll: false, ..params.epoll }),
        Row::new(
            "without_a_suspend_timeout_it_is_ordinary_busy_polling",
            &["not-engaged"],
            Some("irq-suspend-zero"),
        )
        .params(|params| params.irq_suspend_timeout = Nanoseconds::ZERO)
        .saturated(),
        Row::new(
            "suspension_without_deferral_is_silently_nothing",
            &["not-engaged"],
            Some("suspension-without-deferral"),
        )
        .params(|params| {
            params.defer_hard_irqs = EmptyPolls(0);
            params.gro_flush_timeout = Nanoseconds::ZERO;
        }),
        Row { load: LOW, ..Row::new("at_low_load_deferral_rightly_delivers", &["idle"], None) },
    ]
}

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::Bpf];
    const THREADED: &[Need] =
        &[Need::Root, Need::Memcached, Need::Suspension, Need::Bpf, Need::ThreadPerNapi];
    let mut trials =
        vec![test("matrix/suspension_delivers_by_the_application_and_spares_softirqs", NEEDS, headline)];
    trials.extend(
        rows().into_iter().map(|row| test(format!("matrix/{}", row.name), NEEDS, move || check(&row))),
    );
    trials.push(test("matrix/a_threaded_napi_is_polled_by_its_kthread", THREADED, || {
        // The scheduler decides how many packets the NAPI's thread leaves to the application; check only that
        // the thread polls as well.
        let verdicts = &["not-engaged", "partly-engaged", "engaged"];
        let row = Row::new("threaded", verdicts, Some("napi-threaded"));
        check(&Row { threaded: Threading::On, ..row })
    }));
    trials
}

/// Creates the condition, offers load, and runs `doctor`.
fn check(row: &Row) -> Result<(), Failed> {
    let stage = Stage::new(&row.lab, row.server.clone())?;
    stage.set(&row.params, row.threaded)?;
    let mut last = String::new();
    for attempt in 1..=ATTEMPTS_MAX {
        let seen = drive(&stage, row.load)?;
        let asked = [asked_of(&seen.host)];
        let findings = plan::doctor(&seen.host, Some(&seen.delivered), &asked);
        match judge(row, &seen, &findings) {
            Ok(()) => return Ok(()),
            Err(why) => last = format!("attempt {attempt}: {why}\n{}", described(&seen, &findings)),
        }
        pause_after(attempt);
    }
    Err(format!("{last}\n(the last of {ATTEMPTS_MAX} attempts)").into())
}

fn pause_after(attempt: u32) {
    std::thread::sleep(PAUSE_FIRST * 2_u32.pow(attempt - 1));
}

fn drive(stage: &Stage, load: OfferedLoad) -> Result<Seen, Failed> {
    stage.under(load, 20, 32)
}

fn asked_of(host: &Host) -> RequestFacts {
    let queues: Vec<RxQueue> =
        host.devices.iter().flat_map(|device| &device.rx_queues).map(|queue| queue.id).collect();
    let processes = host.processes.iter().map(|process| process.id).collect();
    RequestFacts { origin: "matrix".to_owned(), mode: MODE, queues, processes, goal: None, wake_within: None }
}

const ENGAGEMENT: [&str; 4] = ["engaged", "partly-engaged", "idle", "not-engaged"];

/// The causes that `doctor` can name.
const CAUSES: [&str; 8] = [
    "packets-on-no-napi",
    "rps-on",
    "epoll-mixes-napis",
    "prefer-off",
    "irq-suspend-zero",
    "suspension-without-deferral",
    "napi-threaded",
    "napi-shared-by-epolls",
];

fn judge(row: &Row, seen: &Seen, findings: &[Finding]) -> Result<(), String> {
    let found: BTreeSet<&str> = findings.iter().map(|finding| finding.rule.as_str()).collect();
    if row.load != LOW && seen.answered < ANSWERS_MIN {
        return Err("the load was too low".to_owned());
    }
    if seen.delivered.lost > 0 {
        return Err("not every poll was counted".to_owned());
    }
    let verdicts: Vec<&str> =
        findings.iter().map(|f| f.rule.as_str()).filter(|rule| ENGAGEMENT.contains(rule)).collect();
    if verdicts.is_empty() != row.verdicts.is_empty()
        || !verdicts.iter().all(|verdict| row.verdicts.contains(verdict))
    {
        return Err(format!("doctor reported {verdicts:?} where one of {:?} is right", row.verdicts));
    }
    match row.cause {
        Some(cause) if !found.contains(cause) => Err(format!("doctor did not find {cause}")),
        None => match CAUSES.iter().find(|cause| found.contains(*cause)) {
            Some(cause) => Err(format!("doctor found {cause} although no condition is broken")),
            None => Ok(()),
        },
        Some(_) => Ok(()),
    }
}

fn described(seen: &Seen, findings: &[Finding]) -> String {
    let mut lines = vec![format!("{} requests, backlog {:?}", seen.answered, seen.delivered.backlog)];
    lines.extend(seen.delivered.napis.iter().map(|napi| format!("{napi:?}")));
    lines.extend(findings.iter().map(|f| format!("{} {}: {}: {}", f.severity, f.rule, f.object, f.summary)));
    lines.join("\n")
}

/// Checks the README's claim: under load, unmodified memcached delivers its packets itself (nine of ten on a
/// quiet machine, most of them on a busy one), and the softirq polls of its NAPI *per request* drop (more
/// than tenfold on a quiet machine, to a third on a busy one). The polls are compared per request because the
/// two runs answer different numbers of requests. Each connection has one outstanding request, so that the
/// client does not cause the batching.
fn headline() -> Result<(), Failed> {
    let mut last = String::new();
    for attempt in 1..=ATTEMPTS_MAX {
        let stage = Stage::new(&LabOptions::with_queues(1), MemcachedOptions::default())?;
        let base = stage.under(OfferedLoad::Max, 64, 1)?;
        stage.set(&MODE.params(), Threading::Off)?;
        let suspended = stage.under(OfferedLoad::Max, 64, 1)?;
        let (before, after) = (base.sums(), suspended.sums());
        // Checks polls before / requests before >= 3 * polls after / requests after, in integers.
        let spared = before.softirq_polls * suspended.answered >= 3 * after.softirq_polls * base.answered;
        let delivered = after.by_application * 2 >= after.packets;
        let loaded = base.answered.min(suspended.answered) >= ANSWERS_MIN;
        assert_eq!(before.by_application, 0, "no application polls without the setting");
        last = format!(
            "attempt {attempt}: {} requests with {before:?}, then {} requests with {after:?}",
            base.answered, suspended.answered
        );
        if spared && delivered && loaded {
            return Ok(());
        }
        pause_after(attempt);
    }
    Err(format!("{last}\n(the last of {ATTEMPTS_MAX} attempts)").into())
}
