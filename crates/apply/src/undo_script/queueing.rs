//! Qdiscs, in the syntax of `tc qdisc`.

use model::qdisc::{Qdisc, QdiscOption, Qdiscs};

/// Returns the arguments of the tc commands that set up qdiscs, without the device: `replace root fq limit
/// 100`. Deletes an existing qdisc first, because a qdisc of the same kind would keep options that are not
/// given. Empty for a configuration that cannot be recorded completely.
pub(super) fn commands(qdiscs: &Qdiscs) -> Vec<String> {
    let del = || "del root".to_owned();
    match qdiscs {
        Qdiscs::Default(_) => vec![del()],
        Qdiscs::Whole(qdisc) => vec![del(), format!("replace root {}", words(qdisc))],
        Qdiscs::PerQueue { handle, queues } => {
            let root = format!("replace root {}mq", handle.map_or_else(String::new, handle_words));
            let queues = (1..)
                .zip(queues)
                .map(|(at, qdisc): (u32, _)| format!("replace parent @:{at:x} {}", words(qdisc)));
            [del(), root].into_iter().chain(queues).collect()
        }
        Qdiscs::Other(_) => Vec::new(),
    }
}

fn handle_words(handle: u16) -> String {
    format!("handle {handle:x}: ")
}

fn words(qdisc: &Qdisc) -> String {
    let mut words = format!("{}{}", qdisc.handle.map_or_else(String::new, handle_words), qdisc.kind);
    for (option, value) in &qdisc.options {
        words.push(' ');
        words.push_str(&option_words(qdisc.kind, *option, *value));
    }
    words
}

/// Formats an option with its unit, or as the keyword that switches it on or off.
fn option_words(kind: model::QdiscKind, option: QdiscOption, value: u32) -> String {
    let switch = |on: &str, off: &str| if value != 0 { on } else { off }.to_owned();
    match option {
        QdiscOption::Pacing => switch("pacing", "nopacing"),
        QdiscOption::HorizonDrop => switch("horizon_drop", "horizon_cap"),
        QdiscOption::Ecn => switch("ecn", "noecn"),
        QdiscOption::BucketsLog => format!("buckets {}", 1_u64.checked_shl(value).unwrap_or(0)),
        // The value is in bytes per second; tc expects bits.
        QdiscOption::Maxrate | QdiscOption::LowRateThreshold => {
            format!("{option} {}bit", u64::from(value) * 8)
        }
        QdiscOption::RefillDelay | QdiscOption::Horizon | QdiscOption::OffloadHorizon => {
            format!("{option} {value}us")
        }
        // The kernel truncates these options to units of 1024 ns, so the value that it reports is slightly
        // too small. Adding one microsecond makes the kernel truncate to the original value.
        QdiscOption::Target | QdiscOption::Interval => format!("{option} {}us", u64::from(value) + 1),
        QdiscOption::CeThreshold if kind == model::QdiscKind::FqCodel => {
            format!("{option} {}us", u64::from(value) + 1)
        }
        QdiscOption::CeThreshold => format!("{option} {value}us"),
        QdiscOption::Limit
        | QdiscOption::FlowLimit
        | QdiscOption::Quantum
        | QdiscOption::InitialQuantum
        | QdiscOption::OrphanMask
        | QdiscOption::TimerSlack
        | QdiscOption::Flows
        | QdiscOption::DropBatch
        | QdiscOption::MemoryLimit => format!("{option} {value}"),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use model::QdiscKind;

    #[test]
    fn disciplines_become_commands_that_bring_them_back() {
        let mut fq = Qdisc::of(QdiscKind::Fq);
        fq.options.extend([(QdiscOption::Maxrate, 125_000), (QdiscOption::Pacing, 0)]);
        let mut codel = Qdisc { handle: Some(0x10), ..Qdisc::of(QdiscKind::FqCodel) };
        codel.options.insert(QdiscOption::Target, 1_999);
        let both = Qdiscs::PerQueue { handle: Some(1), queues: vec![fq, codel] };
        assert_eq!(
            commands(&both),
            [
                "del root",
                "replace root handle 1: mq",
                "replace parent @:1 fq nopacing maxrate 1000000bit",
                "replace parent @:2 handle 10: fq_codel target 2000us",
            ]
        );
        assert_eq!(both.kinds(), "mq fq fq_codel");
        let default = Qdiscs::Default(vec!["pfifo_fast".to_owned()]);
        assert_eq!(
            (default.kinds(), commands(&default)),
            ("default pfifo_fast".to_owned(), vec!["del root".to_owned()])
        );
        assert!(commands(&Qdiscs::Other("htb".to_owned())).is_empty());
    }
}
