//! Checks whether the values of a run's evidence are physically possible.

use model::{Distribution, Evidence};

use crate::scenario_file::Metric;

/// Tolerance for rounding when shares are checked.
const ROUNDING: f64 = 1e-6;

/// Describes an impossible value in a run that counts; `None` if there is none.
pub(super) fn unsound(run: &Evidence) -> Option<String> {
    if !Metric::Qps.can_be(run.throughput) {
        return Some(format!("a throughput of {} was not measured", brief(run.throughput)));
    }
    if let Some(wrong) = unsound_spans(&run.latency) {
        return Some(format!("response times: {wrong}"));
    }
    let cpu = run.cpu?;
    let shares = [
        ("user", cpu.user),
        ("system", cpu.system),
        ("softirq", cpu.softirq),
        ("irq", cpu.irq),
        ("idle", cpu.idle),
        ("steal", cpu.steal),
    ];
    let beyond = |share: &f64| !(-ROUNDING..=1.0 + ROUNDING).contains(share);
    if let Some((name, share)) = shares.iter().find(|(_, share)| beyond(share)) {
        return Some(format!("CPU time: {name} is {}, which is not a share", brief(*share)));
    }
    let all: f64 = shares.iter().map(|(_, share)| share).sum();
    beyond(&all).then(|| format!("CPU time: the shares add up to {}", brief(all)))
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53, or refused")]
fn unsound_spans(spans: &Distribution) -> Option<String> {
    if spans.count == 0 {
        return Some("there are none".to_owned());
    }
    let (min, max) = (spans.min.0 as f64, spans.max.0 as f64);
    // The mean is exact, but the histogram may round the minimum and the maximum.
    if !(min * 0.99..=max * 1.01).contains(&spans.avg) || !Metric::Avg.can_be(spans.avg / 1000.0) {
        return Some(format!("their mean is {} ns, from {} to {}", brief(spans.avg), spans.min, spans.max));
    }
    let ascending = [
        ("min", spans.min),
        ("p50", spans.p50),
        ("p90", spans.p90),
        ("p95", spans.p95),
        ("p99", spans.p99),
        ("p999", spans.p999),
        ("max", spans.max),
    ];
    let wrong = ascending.windows(2).find(|pair| pair[0].1 > pair[1].1)?;
    Some(format!("{} is {}, and {} only {}", wrong[0].0, wrong[0].1, wrong[1].0, wrong[1].1))
}

/// Formats a number with few digits, however large it is.
fn brief(number: f64) -> String {
    if number == 0.0 || (1e-6..1e15).contains(&number.abs()) {
        number.to_string()
    } else {
        format!("{number:e}")
    }
}
