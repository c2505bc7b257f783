//! Generates the reference pages from the code's tables: settings, keys of policy files, exit codes.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use model::recipe::{Mechanism, RecipeValue, When};
use model::setting::{
    DeviceNapiKnob, Disruption, Facts, HostKnob, IrqKnob, KthreadKnob, NapiKnob, NicKnob, ProcessKnob,
    RxQueueKnob, TxQueueKnob,
};
use model::{DeliveryMode, DeliveryParams, EpollParams, Nanoseconds, PolicyName, Setting, since};
use policy_file::{SectionKind, key_table};
use session::Exit;
use testkit::markdown::{PagePart, cell};

const PARTS: [PagePart; 9] = [
    ("settings.md", "settings", settings),
    ("policy-file.md", "keys", keys),
    ("policy-file.md", "device-settings", device_settings),
    ("exit-codes.md", "exit-codes", exit_codes),
    ("findings.md", "findings", findings),
    ("delivery-modes.md", "modes", delivery_modes),
    ("recipes.md", "values", recipe_values),
    ("recipes.md", "ladders", ladders),
    ("requirements.md", "mechanisms", mechanisms),
];

#[test]
fn the_reference_pages_say_what_the_code_says() {
    testkit::markdown::check_parts(&PARTS, "netpolicy");
}

#[test]
fn a_key_that_the_table_of_settings_names_is_a_key_of_policy_files() {
    let keys: BTreeSet<&str> = key_table().iter().map(|row| row.path).collect();
    for facts in Setting::table() {
        assert!(facts.key.is_none_or(|key| keys.contains(key)), "{}: {:?}", facts.name, facts.key);
    }
}

fn settings() -> String {
    let families: [(&str, Vec<&Facts>); 9] = [
        ("NAPI of a receive queue", NapiKnob::table()),
        ("All NAPIs of a device", DeviceNapiKnob::table()),
        ("Kernel thread of a NAPI", KthreadKnob::table()),
        ("NIC and driver", NicKnob::table()),
        ("Receive queue", RxQueueKnob::table()),
        ("Transmit queue", TxQueueKnob::table()),
        ("Interrupt", IrqKnob::table()),
        ("Process", ProcessKnob::table()),
        ("Host", HostKnob::table()),
    ];
    let listed: usize = families.iter().map(|(_, table)| table.len()).sum();
    assert_eq!(listed, Setting::table().len(), "a family has no table on this page");
    let mut page = String::new();
    let mut listed_meanings = BTreeSet::new();
    for (family, table) in families {
        let _ = writeln!(page, "## {family}");
        let mut repeated = Vec::new();
        for group in table.chunk_by(|one, next| one.interface == next.interface) {
            // The page prints details that all settings of an interface share only once.
            let since = group[0].since;
            let since = group.iter().all(|facts| facts.since == since).then(|| since.to_string());
            let key =
                group.iter().all(|facts| key_of(facts).as_deref() == Some("key")).then(|| "key".to_owned());
            let common = [since.clone(), key.clone()].into_iter().flatten().collect::<Vec<_>>();
            let common = if common.is_empty() { String::new() } else { format!(" ({})", common.join("; ")) };
            let _ = writeln!(page, "\nWritten by {}{common}:\n", cell(&group[0].interface.to_string()));
            for facts in group {
                let disruption = match facts.disruption {
                    Disruption::None => "",
                    Disruption::QueueReset => " †",
                    Disruption::LinkDown => " ‡",
                };
                // If devices and queues have a setting with the same name and meaning, the page prints the
                // meaning only once.
                let mut meaning = cell(&facts.meaning());
                if !listed_meanings.insert((facts.name, meaning.clone())) {
                    repeated.push(format!("`{}`", cell(facts.name)));
                    continue;
                }
                if let Some(values) = facts.irreversible {
                    meaning += &format!(" Not written back: {values}.");
                }
                let values = facts.values().replace(" to ", "–").replace(" or ", "/");
                let own_since = since.is_none().then(|| facts.since.to_string());
                let own_key = if key.is_none() { key_of(facts) } else { None };
                let details = [Some(values), own_since, own_key];
                let details = details.into_iter().flatten().filter(|text| !text.is_empty());
                let details = details.collect::<Vec<_>>().join("; ");
                let details = if details.is_empty() { details } else { format!(" ({details})") };
                let _ = writeln!(page, "- `{}`{disruption}{details}: {}", cell(facts.name), cell(&meaning));
            }
        }
        if !repeated.is_empty() {
            let _ = writeln!(page, "- as for the device: {}", repeated.join(", "));
        }
        page.push('\n');
    }
    page
}

/// Returns how the page names a setting's key in policy files: `key` if the key has the setting's name.
fn key_of(facts: &Facts) -> Option<String> {
    let key = facts.key?;
    let named = key.strip_prefix("settings.") == Some(facts.name);
    Some(if named { "key".to_owned() } else { format!("key `{key}`") })
}

fn keys() -> String {
    const EXCEPT: &str = "match.not.";
    let mut page = String::new();
    let table = key_table();
    let paths: BTreeSet<&str> = table.iter().map(|row| row.path).collect();
    let sections: [(&str, &[SectionKind]); 4] = [
        ("Keys of device and service sections", &SectionKind::OF_TRAFFIC),
        ("Keys of device sections", &[SectionKind::Device]),
        ("Keys of service sections", &[SectionKind::Service]),
        ("Keys of `[daemon]`", &[SectionKind::Daemon]),
    ];
    let mut listed = 0;
    for (heading, of) in sections {
        let _ = writeln!(page, "### {heading}\n");
        let mut conditions = Vec::new();
        for row in table.iter().filter(|row| row.of == of && !row.path.starts_with("settings.")) {
            listed += 1;
            let path = row.path;
            if let Some(condition) = path.strip_prefix(EXCEPT) {
                assert!(paths.contains(&*format!("match.{condition}")), "`{path}` has no key without `not`");
                conditions.push(format!("`{condition}`"));
                continue;
            }
            let takes = if row.takes.contains("(#patterns)") {
                "[patterns](#patterns)".to_owned()
            } else {
                cell(&row.takes)
            };
            // The settings page describes each setting; this page only links to that description.
            let mut meaning = cell(row.meaning);
            if let Some(facts) = Setting::facts_of_key(path) {
                let setting = format!("[`{}`](settings.md).", facts.name);
                meaning = meaning.replacen(&cell(&facts.meaning()), &setting, 1);
            }
            let _ = writeln!(page, "- `{path}` ({takes}): {meaning}");
        }
        if !conditions.is_empty() {
            let conditions = conditions.join(", ");
            let _ =
                writeln!(page, "- `{EXCEPT}KEY` (as `match.KEY`; {conditions}): Leaves out such devices.");
        }
        page.push('\n');
    }
    let of_settings = paths.iter().filter(|path| path.starts_with("settings.")).count();
    assert_eq!(listed + of_settings, table.len(), "a key's section has no heading on this page");
    page
}

/// Describes the keys below `settings` that accept other values than the setting itself. `settings.md` has
/// the other keys.
fn device_settings() -> String {
    let mut page = String::new();
    for row in key_table() {
        let takes_value = || Setting::facts_of_key(row.path).is_some_and(|facts| facts.asks.is_none());
        if let Some(key) = row.path.strip_prefix("settings.")
            && !takes_value()
        {
            let _ = writeln!(page, "- `{key}`: {}", cell(&row.takes).replace(" to ", "–"));
        }
    }
    page
}

fn exit_codes() -> String {
    let mut page = "| code | meaning | state of the host |\n|---|---|---|\n".to_owned();
    for exit in Exit::ALL {
        let _ = writeln!(page, "| {} | {} | {} |", exit.code(), cell(exit.meaning()), cell(exit.host()));
    }
    page
}

fn mechanisms() -> String {
    let mut page = String::new();
    for mechanism in netpolicy::support::MECHANISMS {
        let since = mechanism.since.map(|since| format!(" ({since})")).unwrap_or_default();
        let needs = mechanism.needed().join(", ");
        let needs = if needs.is_empty() { needs } else { format!("; needs {needs}") };
        let (name, meaning) = (mechanism.name, mechanism.meaning);
        let _ = writeln!(page, "- `{name}`{since}: {}{}", cell(meaning), cell(&needs));
    }
    page
}

fn findings() -> String {
    let mut page = String::new();
    for (family, rules) in plan::doctor::RULES {
        let _ = writeln!(page, "## {family}\n");
        for rule in rules {
            let _ = writeln!(page, "- `{}`: {}", rule.id, cell(rule.doc));
        }
        page.push('\n');
    }
    page.push_str("## response times\n\nOf services of the policy files, also in the daemon's findings and in [`netpolicy watch`](watch.md).\n\n");
    for (rule, meaning) in latency::live::RULES {
        let _ = writeln!(page, "- `{rule}`: {}", cell(meaning));
    }
    page.push_str("\n## goals that are met\n\nOf the daemon, for services with [`on_missed = \"search\"`](daemon.md#goals-that-are-met).\n\n");
    for (rule, meaning) in daemon::SEARCH_RULES {
        let _ = writeln!(page, "- `{rule}`: {}", cell(meaning));
    }
    page.push_str("\n## standing proofs\n\nOf the daemon, for services with a [`holdback`](daemon.md#standing-proof).\n\n");
    for (rule, meaning) in daemon::PROOF_RULES {
        let _ = writeln!(page, "- `{rule}`: {}", cell(meaning));
    }
    page
}

fn delivery_modes() -> String {
    let mut page = String::from(
        "| mode | what happens | defer-hard-irqs / gro-flush-timeout / irq-suspend-timeout | epoll usecs / budget / prefer | needs |\n\
         |---|---|---|---|---|\n",
    );
    for (mode, name) in DeliveryMode::EACH.into_iter().zip(DeliveryMode::names()) {
        let DeliveryParams { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, epoll, epoll_wait_cap } =
            mode.params();
        let flush = if mode.time().is_some() { "X µs".to_owned() } else { in_prose(gro_flush_timeout) };
        let EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, events_only } = epoll;
        let mut busy =
            numbers(&format!("{busy_poll_usecs} / {busy_poll_budget} / {}", u8::from(prefer_busy_poll)));
        if events_only {
            busy += ", events only";
        }
        match epoll_wait_cap {
            None => {}
            Some(Nanoseconds::ZERO) => busy += "`epoll_wait` never sleeps",
            Some(most) => busy += &format!(", and `epoll_wait` sleeps {} at most", in_prose(most)),
        }
        let other = match mode {
            DeliveryMode::Interrupt => format!(" (`{}`)", DeliveryMode::BASE),
            _ => String::new(),
        };
        let (happens, needs) = (happens_with(mode), needed_by(mode));
        let timeouts = numbers(&format!("{defer_hard_irqs} / {flush} / {}", in_prose(irq_suspend_timeout)));
        let _ = writeln!(page, "| `{name}`{other} | {happens} | {timeouts} | {busy} | {needs} |");
    }
    page
}

/// Returns a table cell with numbers; empty if all numbers are zero.
fn numbers(text: &str) -> String {
    if text == "0 / 0 / 0" { String::new() } else { text.to_owned() }
}

/// Formats a duration for prose: `20 ms`.
fn in_prose(span: Nanoseconds) -> String {
    let text = span.to_string().replace("us", "µs");
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    format!("{number} {unit}").trim_end().to_owned()
}

/// Describes the effect of a delivery mode.
fn happens_with(mode: DeliveryMode) -> String {
    let usecs = mode.params().epoll.busy_poll_usecs;
    match mode {
        DeliveryMode::Interrupt => "every batch begins with an interrupt".to_owned(),
        DeliveryMode::Defer { .. } => "the IRQ stays masked; a timer of X µs polls".to_owned(),
        DeliveryMode::NapiBusy => format!("`epoll_wait` polls for up to {usecs} µs before it sleeps"),
        DeliveryMode::FullBusy => {
            "`epoll_wait` polls all the time; one CPU for each thread that has connections".to_owned()
        }
        DeliveryMode::Suspend { .. } => "the IRQ stays masked while `epoll_wait` finds events".to_owned(),
        DeliveryMode::EventBusy => {
            format!("`epoll_wait` checks for events for up to {usecs} µs before it sleeps, and polls no NAPI")
        }
        DeliveryMode::UserBusy => {
            "the application calls `epoll_wait` again and again; one CPU for each thread".to_owned()
        }
        DeliveryMode::Threaded => {
            "a kernel thread polls; the scheduler sees, places and limits it".to_owned()
        }
        DeliveryMode::ThreadedBusy => "a kernel thread polls all the time; one CPU for each queue".to_owned(),
    }
}

/// Describes the requirements of a delivery mode: the first kernel with it, and how to start it.
fn needed_by(mode: DeliveryMode) -> String {
    match mode {
        DeliveryMode::Interrupt => String::new(),
        DeliveryMode::Defer { .. } => {
            format!("Linux {}; per queue {}", since::DEVICE_DEFER_HARD_IRQS, since::NAPI_SET)
        }
        DeliveryMode::NapiBusy => format!("Linux {}", since::EPOLL_PARAMS),
        DeliveryMode::FullBusy => format!("Linux {}, `netpolicy run`", since::EPOLL_PARAMS),
        DeliveryMode::Suspend { .. } => format!("Linux {}", since::NAPI_SET),
        DeliveryMode::EventBusy => "[a patched kernel](../../kernel/README.md)".to_owned(),
        DeliveryMode::UserBusy => "`netpolicy run`".to_owned(),
        DeliveryMode::Threaded => {
            format!("Linux {}; per queue {}", since::NAPI_THREADS, since::QUEUE_THREADS)
        }
        DeliveryMode::ThreadedBusy => format!("Linux {}", since::BUSY_THREADS),
    }
}

fn recipe_values() -> String {
    let recipes = policy_file::recipes(&[]).expect("the built-in recipes are valid");
    let policies = PolicyName::ALL;
    let columns = policies.map(|policy| format!("`{policy}`")).join(" | ");
    let mut page = format!("| mechanism | {columns} |\n|---|{}\n", "---|".repeat(policies.len()));
    // Adjacent mechanisms with equal values share a row.
    let mut rows: Vec<(Vec<String>, [String; PolicyName::ALL.len()])> = Vec::new();
    for mechanism in Mechanism::all() {
        let values = policies.map(|policy| match recipes.of(policy, mechanism).map(|entry| &entry.value) {
            None | Some(RecipeValue::Keep) => String::new(),
            Some(value @ (RecipeValue::Delivery(_) | RecipeValue::Layout(_) | RecipeValue::ByQueue)) => {
                format!("`{value}`")
            }
            Some(value) => value.to_string(),
        });
        if values.iter().all(String::is_empty) {
            continue;
        }
        let facts = Setting::facts_of_key(&format!("settings.{mechanism}"));
        let is_proposed = facts.is_some_and(|facts| facts.disruption != Disruption::None);
        let name = format!("`{mechanism}`{}", if is_proposed { " †" } else { "" });
        match rows.last_mut() {
            Some((names, same)) if *same == values => names.push(name),
            _ => rows.push((vec![name], values)),
        }
    }
    for (names, values) in rows {
        let _ = writeln!(page, "| {} | {} |", names.join(", "), values.join(" | "));
    }
    page
}

fn ladders() -> String {
    let recipes = policy_file::recipes(&[]).expect("the built-in recipes are valid");
    let own_interrupts = When { own_interrupts: Some(true), ..When::default() };
    let mut page = String::new();
    for (policy, ladder) in &recipes.ladders {
        let rungs = ladder.iter().map(|rung| match &rung.when {
            when if *when == When::default() => format!("`{}`", rung.mode),
            when if *when == own_interrupts => format!("`{}` †", rung.mode),
            when => format!("`{}` ({when})", rung.mode),
        });
        let _ = writeln!(page, "- `{policy}`: {}", rungs.collect::<Vec<_>>().join(", "));
    }
    page
}
