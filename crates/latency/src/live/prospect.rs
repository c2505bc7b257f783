//! The effects that policies are expected to have on a service that has no policy.

use crate::measure::expectation::{Expected, Experience, Load, RECORDED_ON};
use crate::measure::live::{Percentiles, Summary};
use model::{Finding, Host, NapiId, Severity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use session::quoted;

use crate::judge::Tuned;
use crate::live::cost::Cost;

/// The rule of the finding about a prospect.
const RULE: &str = "policy-expected";

/// The effects that policies are expected to have on a service that has no policy, according to its load.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Prospect {
    /// The measured load of the service.
    pub load: Load,
    /// The expected effects, based on recorded comparisons of other services. The policy with the largest
    /// saving of CPU time comes first.
    pub expected: Vec<Expected>,
    /// Why no effect can be expected; `None` if one can.
    pub unknown: Option<String>,
}

impl Prospect {
    /// Determines the expected effects on a service. Returns `None` if its NAPIs already have settings, or if
    /// no packets arrived.
    pub fn of(summary: &Summary, cost: Cost, host: &Host) -> Option<Self> {
        if summary.requests == 0 {
            return None;
        }
        let napis: Vec<_> = summary.napis.iter().filter_map(|part| host.napi(NapiId(part.id?))).collect();
        let is_set = |napi: &model::host::Napi| {
            napi.gro_flush_timeout.is_some_and(|span| !span.is_zero())
                || napi.irq_suspend_timeout.is_some_and(|span| !span.is_zero())
        };
        if napis.iter().any(|(_, napi)| is_set(napi)) {
            return None;
        }
        let load = load(summary, cost);
        let known = |expected, unknown| Some(Self { load, expected, unknown });
        let Some((device, _)) = napis.first() else {
            return known(Vec::new(), Some("its packets name no NAPI".to_owned()));
        };
        if device.kind != RECORDED_ON {
            let kind = if device.kind.is_empty() { "a NIC" } else { &device.kind };
            let words =
                format!("comparisons were recorded on {RECORDED_ON} only, and {} is {kind}", device.id);
            return known(Vec::new(), Some(words));
        }
        let expected = Experience::recorded().expected(&load);
        let unknown = expected.is_empty().then(|| "no recorded comparison has a similar load".to_owned());
        known(expected, unknown)
    }

    /// Formats one line per policy: `power: CPU per request -35 to -3 %, p50 +60 to +420 %`.
    pub fn lines(&self) -> Vec<String> {
        self.expected.iter().map(line).collect()
    }

    /// Formats the load: `4945 requests/s on 16 connections, 1.1 packets per poll, 28 % of the CPU time in
    /// delivery`.
    pub fn load_words(&self) -> String {
        let Load { rate, connections, packets_per_poll, delivery_share, .. } = self.load;
        let connections = session::count(usize::try_from(connections).unwrap_or(usize::MAX), "connection");
        let mut words = vec![format!("{rate:.0} requests/s on {connections}")];
        words.extend(packets_per_poll.map(|packets| format!("{packets:.1} packets per poll")));
        words.extend(
            delivery_share.map(|share| format!("{:.0} % of the CPU time in delivery", share * 100.0)),
        );
        words.join(", ")
    }

    /// Describes how certain the expectation is.
    pub fn certainty(&self) -> Option<String> {
        let first = self.expected.first()?;
        Some(format!(
            "the effect is expected to be in these ranges for nine of ten services, by {} recorded comparisons on {RECORDED_ON}; the nearest load differs by a factor of {:.1}",
            first.records, first.nearest
        ))
    }

    /// Summarises the prospect in a few lines: `expected with power: CPU per request -35 to -3 %, …`.
    pub fn said(&self) -> Vec<String> {
        let lines = self.expected.iter().map(|one| format!("expected with {}", line(one)));
        let unknown = self.unknown.iter().map(|why| format!("the gain from a policy is unknown: {why}"));
        let last = (!self.expected.is_empty()).then(|| self.certainty()).flatten();
        lines.chain(unknown).chain(last).collect()
    }

    /// Creates a finding about a service, with the results of earlier searches for it on this host. Returns
    /// `None` if no effect is expected. `selected` is how a command selects the service: `redis`, `--port
    /// 6379`.
    pub fn finding(&self, name: &str, selected: &str, earlier: &[Tuned], now: u64) -> Option<Finding> {
        let known =
            earlier.iter().filter(|trial| trial.service == name || selected.ends_with(&trial.service));
        let known: Vec<String> = known.filter_map(|trial| of_trial(trial, now)).collect();
        let mut evidence = vec![self.load_words()];
        evidence.extend(known.iter().cloned());
        evidence.extend(self.lines().into_iter().skip(1));
        evidence.extend(self.certainty());
        let (best, words) = match self.expected.first() {
            Some(best) if best.is_gain() => {
                (best, format!("no policy is in force for the process: expected with {}", line(best)))
            }
            Some(best) => (
                best,
                format!("no policy is in force for the process, and a gain is not certain: {}", line(best)),
            ),
            None if known.is_empty() => return None,
            None => {
                let summary =
                    "no policy is in force for the process, and there is a result of a search on this host"
                        .to_owned();
                let remedy = Some(format!("netpolicy tune {} --goal cpu", quoted(name)));
                return Some(finding(name, summary, evidence, remedy));
            }
        };
        Some(finding(
            name,
            words,
            evidence,
            Some(format!("netpolicy compare {selected} --b {}", best.policy)),
        ))
    }
}

fn finding(name: &str, summary: String, evidence: Vec<String>, remedy: Option<String>) -> Finding {
    let (rule, object) = (RULE.to_owned(), name.to_owned());
    Finding { rule, severity: Severity::Note, object, summary, evidence, remedy }
}

fn line(expected: &Expected) -> String {
    let percent = |share: f64| format!("{:+.0}", share * 100.0);
    let Expected { policy, cpu, p50, .. } = expected;
    format!(
        "{policy}: CPU per request {} to {} %, p50 {} to {} %",
        percent(cpu.low),
        percent(cpu.high),
        percent(p50.low),
        percent(p50.high)
    )
}

/// Formats the result of an earlier search: `a search 3 days ago: defer50, cpu -24 %`.
fn of_trial(trial: &Tuned, now: u64) -> Option<String> {
    let ago = super::text::ago(now.saturating_sub(trial.at));
    let Some(winner) = &trial.winner else {
        return Some(format!("a search for {} on this host {ago} found no better setting", trial.goal));
    };
    let change = trial.candidates.iter().find(|one| one.candidate == *winner)?.change?;
    Some(format!("a search on this host {ago}: {winner}, {} {:+.0} %", trial.goal, change * 100.0))
}

fn load(summary: &Summary, cost: Cost) -> Load {
    let (mut packets, mut polls) = (0, 0);
    for napi in &summary.napis {
        packets += napi.packets.total();
        polls += napi.polls.total();
    }
    let delivery_share =
        cost.service.zip(cost.delivery).map(|(service, delivery)| delivery / (service + delivery));
    Load {
        rate: summary.rate,
        connections: summary.connections,
        packets_per_poll: (polls > 0).then(|| count(packets) / count(polls)),
        switches: cost.switches,
        delivery_share: delivery_share.filter(|share| share.is_finite()),
        spread: spread(&summary.response),
    }
}

/// Returns the 90th percentile divided by the median.
fn spread(response: &Percentiles) -> Option<f64> {
    let (p50, p90) = response.p50.zip(response.p90)?;
    (p50.interval.estimate > 0.0).then(|| p90.interval.estimate / p50.interval.estimate)
}

#[expect(clippy::cast_precision_loss, reason = "counts of one watch, below 2^53")]
const fn count(number: u64) -> f64 {
    number as f64
}
