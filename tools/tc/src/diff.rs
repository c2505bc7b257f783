//! `tc diff`, `tc load --check`: compares the kernel's rules with a file.

use std::collections::BTreeSet;
use std::time::Instant;

use linux::Netns;
use session::{Exit, Fault};
use tc_rules::kernel::{Devices, dump};
use tc_rules::{Command, Expected, Hook, NoPercpu, Terse, cookie};

use super::file::BatchFile;
use super::survey::Survey;
use super::swap::Places;
use crate::report::DiffReport;
use cli::Context;

/// Compares, and reports what is missing, different and extra.
pub(crate) fn run(
    file: &BatchFile,
    swap: Option<u16>,
    percpu: NoPercpu,
    context: &Context,
) -> Result<Exit, Fault> {
    let began = Instant::now();
    let netns = context.session.netns()?;
    let mut devices = Devices::of(&netns);
    let places = match swap {
        Some(priority) => Places::in_force(&netns, priority, file, &mut devices)?,
        None => Places::default(),
    };
    let mut survey = Survey::default();
    let first = first_with_cookies(file, &mut devices)?;
    let (expected, ahead) = std::thread::scope(|scope| {
        let netns = &netns;
        let ahead = first.map(|hook| scope.spawn(move || Ahead::look(netns, hook)));
        let expected = expected(file, &mut devices, &mut survey, &places, percpu, |_| true);
        let ahead = ahead.map(|ahead| ahead.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        (expected, ahead)
    });
    let mut expected = expected?;
    survey.refused(&file.name(), context)?;
    let mut ahead = ahead.transpose()?;
    let mut report = DiffReport { file: file.name(), not_compared: survey.for_tc, ..DiffReport::default() };
    for hook in expected.groups().map(|group| group.hook).collect::<BTreeSet<Hook>>() {
        let ahead = ahead.take_if(|ahead| ahead.hook == hook);
        match_rules(&netns, hook, ahead, &mut devices, &mut expected, &mut report)?;
    }
    if let Some(words) = survey.left_out() {
        context.console.say(&words);
    }
    report.settle(&expected);
    report.seconds = began.elapsed().as_secs_f64();
    context.console.report(&report)?;
    Ok(if report.differs() { Exit::Pending } else { Exit::Done })
}

/// A terse dump of a hook, taken while the file is read, so that the kernel and netpolicy work in parallel.
pub(super) struct Ahead {
    hook: Hook,
    watch: dump::Watch,
    /// `None` if the dump is incomplete.
    rules: Option<Vec<Terse>>,
}

impl Ahead {
    fn look(netns: &Netns, hook: Hook) -> Result<Self, Fault> {
        let watch = dump::Watch::open(netns)?;
        Ok(Self { hook, watch, rules: terse(netns, hook) })
    }
}

/// The maximum number of rules of a terse dump to keep while the file is read: about 150 MB.
const TERSE_MAX: usize = 1 << 21;

/// A terse dump of a hook; `None` if it is incomplete.
fn terse(netns: &Netns, hook: Hook) -> Option<Vec<Terse>> {
    let (mut rules, mut all) = (Vec::new(), true);
    let dumped = dump::terse(netns, hook, |rule| match rule {
        Some(rule) if rules.len() < TERSE_MAX => rules.push(*rule),
        Some(_) => all = false,
        None => (rules, all) = (Vec::new(), true),
    });
    (dumped.is_ok() && all).then_some(rules)
}

/// The hook of the file's first rule, if that rule may have been loaded with a cookie.
fn first_with_cookies(file: &BatchFile, devices: &mut Devices<'_>) -> Result<Option<Hook>, Fault> {
    let mut first = None;
    let take = |_, command: &mut Command, _| {
        first = command.rule().map(|rule| cookie::has_terse_dump(rule).then_some(rule.hook));
        Ok(first.is_none())
    };
    file.each(devices, take, |_| Ok(()))?;
    Ok(first.flatten())
}

/// Returns the rules that the kernel should have according to a file, with the requested kind of counters.
/// Wrong lines add no rule, and are recorded in the survey.
pub(super) fn expected(
    file: &BatchFile,
    devices: &mut Devices<'_>,
    survey: &mut Survey,
    places: &Places,
    percpu: NoPercpu,
    asked: impl Fn(u32) -> bool,
) -> Result<Expected, Fault> {
    let (mut expected, mut mistakes) = (Expected::default(), Survey::default());
    mistakes.listings = file.each(
        devices,
        |line, command, _| {
            survey.note(line, command);
            places.put(command);
            if let Command::Filter(rule) = command {
                percpu.apply(rule);
            }
            if let Some(rule) = command.rule().filter(|_| asked(line)) {
                expected.apply(rule, line);
            }
            Ok(true)
        },
        |mistake| {
            mistakes.mistake(mistake);
            Ok(())
        },
    )?;
    survey.append(mistakes, 0);
    Ok(expected)
}

/// The maximum number of dumps of a hook whose rules keep changing during the dump.
const LOOKS_MAX: usize = 8;

/// The maximum number of rules without a known cookie to query individually; with more, all are dumped.
const UNMANAGED_MAX: usize = 1000;

/// Dumps the rules of a hook, and removes them from the list of missing ones. A hook that does not exist has
/// no rules. If rules change during the dump, the dump is repeated; if they keep changing, the report says
/// so.
pub(super) fn match_rules(
    netns: &Netns,
    hook: Hook,
    ahead: Option<Ahead>,
    devices: &mut Devices<'_>,
    expected: &mut Expected,
    report: &mut DiffReport,
) -> Result<(), Fault> {
    let (watch, mut dumped) = match ahead {
        Some(Ahead { watch, rules, .. }) => (watch, Some(rules)),
        None => (dump::Watch::open(netns)?, None),
    };
    expected.mark();
    let before = report.counts();
    for _ in 0..LOOKS_MAX {
        if expected.may_have_cookies(hook)
            && let Some(rules) = dumped.take().unwrap_or_else(|| terse(netns, hook))
        {
            expected.back_to_mark();
            report.count_again(before);
            if match_by_cookie(netns, &rules, devices, expected, report)? {
                if !watch.has_changed()? {
                    return Ok(());
                }
                continue;
            }
        }
        let dumped = dump::rules(netns, hook, |dumped| match dumped {
            dump::Dumped::Begin => {
                expected.back_to_mark();
                report.count_again(before);
            }
            dump::Dumped::Rule(rule) => report.count(rule, expected.match_rule(rule), devices),
            dump::Dumped::Unknown => report.unknown += 1,
        });
        match dumped {
            Err(error) if !error.is_absent() => return Err(error.into()),
            _ => {}
        }
        if !watch.has_changed()? {
            return Ok(());
        }
    }
    report.changing = true;
    Ok(())
}

/// Matches dumped rules by their cookies, and compares in full only rules without a known cookie. Returns
/// false if there are too many rules without one.
fn match_by_cookie(
    netns: &Netns,
    rules: &[Terse],
    devices: &mut Devices<'_>,
    expected: &mut Expected,
    report: &mut DiffReport,
) -> Result<bool, Fault> {
    let mut unmanaged = Vec::new();
    for rule in rules {
        match expected.match_by_cookie(rule) {
            Some(found) => report.count_by_cookie(rule.offload, found),
            None if unmanaged.len() < UNMANAGED_MAX => unmanaged.push(rule),
            None => return Ok(false),
        }
    }
    for unmanaged in unmanaged {
        match dump::whole(netns, unmanaged) {
            Ok(Some(rule)) => report.count(&rule, expected.match_rule(&rule), devices),
            Ok(None) => report.unknown += 1,
            // The rule was removed during the comparison. The caller notices such changes.
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
