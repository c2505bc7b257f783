//! Measures how long a transaction takes on a disk, with an in-memory host: `commit_cost DIRECTORY [STEPS]`.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use apply::{Allow, Journal, Knobs, Moment, TransactionOrigin};
use model::{
    Change, DeviceId, IfIndex, Label, Nanoseconds, NapiKnob, NetnsId, Plan, QueueIndex, Reason, RxQueue,
    Setting, Step,
};

const ROUNDS: usize = 50;

/// An in-memory host whose reads and writes take no time.
struct Memory(Vec<Setting>);

impl Knobs for Memory {
    type Error = Infallible;

    fn read(&mut self, like: &[Setting]) -> Result<Vec<Setting>, Infallible> {
        let known = |knob: &Setting| self.0.iter().find(|s| s.same_knob(knob)).cloned();
        Ok(like.iter().map(|knob| known(knob).unwrap_or_else(|| knob.clone())).collect())
    }

    fn write(&mut self, settings: &[Setting]) -> Result<(), Infallible> {
        for setting in settings {
            self.0.retain(|s| !s.same_knob(setting));
            self.0.push(setting.clone());
        }
        Ok(())
    }

    fn is_gone(error: &Infallible) -> bool {
        match *error {}
    }
}

fn plan(steps: u32) -> Plan {
    let device = DeviceId { netns: NetnsId(1), ifindex: IfIndex(2), name: Label::new("eth0") };
    let gro = |index, span| {
        Setting::Napi(
            RxQueue { device, index: QueueIndex(index) },
            NapiKnob::GroFlushTimeout(Nanoseconds(span)),
        )
    };
    let because = || Reason::new("short response times", "commit_cost");
    let step = |index| Step::new(vec![Change::new(gro(index, 0), gro(index, 20_000), because())]);
    Plan { steps: (0..steps).map(step).collect() }
}

fn asked() -> TransactionOrigin {
    let at = Moment { unix_micros: 1_795_233_900_000_000, since_boot: Nanoseconds(1) };
    let command = "commit_cost".to_owned();
    TransactionOrigin { at, command, kernel_release: String::new(), netpolicy: String::new(), deadline: None }
}

#[expect(clippy::print_stdout, reason = "what it is for")]
fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{what:<18} median {:>9.2?}  p95 {:>9.2?}  ({} rounds)", at(50), at(95), times.len());
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: commit_cost DIRECTORY [STEPS]")?;
    let steps = arguments.next().map_or(Ok(16), |text| text.parse())?;
    let journal = Journal::new(directory, "commit_cost");
    let (mut commits, mut keeps, mut roll_backs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (plan, mut host) = (plan(steps), Memory(Vec::new()));
        plan.changes().for_each(|c| host.0.push(c.from().clone()));
        let started = Instant::now();
        let held = apply::commit(plan, &mut host, &journal, &asked(), Allow::default())?;
        commits.push(started.elapsed());
        let name = held.transaction().ok_or("an empty plan")?;
        let started = Instant::now();
        held.keep()?;
        keeps.push(started.elapsed());
        let started = Instant::now();
        journal.roll_back(name, &mut host, asked().at)?;
        roll_backs.push(started.elapsed());
        journal.forget_all_but(0)?;
    }
    report(&format!("commit, {steps} steps"), commits);
    report("keep", keeps);
    report("roll back", roll_backs);
    Ok(())
}
