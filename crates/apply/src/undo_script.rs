//! Undoes a transaction without netpolicy, by means of a shell script that is easy to read.
//!
//! The script does what [`crate::undo`] does, with the tools of a common distribution. This is the only
//! module of this crate that knows each knob; it has one file per family of knobs.

mod call;
mod irq;
mod kthread;
mod napi;
mod nic;
mod process;
mod queue;
mod queueing;

use std::collections::BTreeSet;
use std::fmt::Write;

use model::{Change, DeviceId, HostKnob, Setting};

use call::{Call, Part, ShellWords, one_line, quoted};

use crate::knobs::{ObjectCookies, device_cookie_name};
use crate::record::Begin;
use crate::transaction_name::TransactionName;

/// Returns the script that undoes a transaction. Names of devices and processes, and the command, are quoted:
/// other users choose them, and they must not become commands in a script that root runs.
pub fn undo_script(name: TransactionName, begin: &Begin) -> String {
    let asked = &begin.asked;
    let mut parts = BTreeSet::new();
    let mut body = String::new();
    for step in begin.plan.steps.iter().rev() {
        for change in step.changes().iter().rev() {
            let because = one_line(&change.because().to_string());
            let Call { needs, line } = call(change, &begin.object_cookies);
            parts.extend(needs);
            let _infallible = write!(body, "\n# {}: {because}\n{line}\n", one_line(&change.to_string()));
        }
    }
    let parts: Vec<&str> = parts.into_iter().map(Part::text).collect();
    format!(
        "#!/bin/sh\n\
         # Undoes the netpolicy transaction {name}.\n\
         #\n\
         #   begun    {at}\n\
         #   by       {command}\n\
         #   with     netpolicy {netpolicy} on Linux {kernel}\n\
         {HEAD}\n\
         transaction={quoted_name}\n\
         boot={boot}\n\
         {SETUP}\n\
         {parts}\n\
         {CALLED}\n\
         # The last change first.\n\
         {body}\n\
         {END}",
        at = asked.at,
        command = one_line(&asked.command),
        netpolicy = one_line(&asked.netpolicy),
        kernel = one_line(&asked.kernel_release),
        quoted_name = quoted(&name.to_string()),
        boot = quoted(&begin.boot_id),
        parts = parts.join("\n"),
    )
}

/// Returns the line of the script that undoes a change. The module of each knob family defines how a shell
/// writes the knob; the table of knobs defines how the value is formatted.
fn call(change: &Change, object_cookies: &ObjectCookies) -> Call {
    let words = ShellWords {
        what: quoted(&format!("{}: {}", change.to().object(), change.to().knob())),
        set: quoted(&change.to().for_tools()),
        old: quoted(&change.from().for_tools()),
    };
    match change.from() {
        Setting::Napi(queue, knob) => napi::call(&words, *queue, &which(queue.device, object_cookies), knob),
        Setting::DeviceNapis(device, knob) => {
            Call::device_file(&words, *device, &which(*device, object_cookies), knob.facts().name)
        }
        Setting::Kthread(queue, knob) => {
            kthread::call(&words, *queue, &which(queue.device, object_cookies), knob)
        }
        Setting::Nic(device, knob) => nic::call(&words, *device, &which(*device, object_cookies), knob),
        Setting::RxQueue(queue, knob) => {
            queue::rx(&words, *queue, &which(queue.device, object_cookies), knob)
        }
        Setting::TxQueue(queue, knob) => {
            queue::tx(&words, *queue, &which(queue.device, object_cookies), knob)
        }
        Setting::Irq(number, knob) => irq::call(&words, *number, knob),
        Setting::Process(knob) => process::call(&words, knob),
        Setting::Host(HostKnob::Sysctl(number, _)) => {
            Call::anywhere(&[Part::File], &words, "file", &format!("/proc/sys/net/core/{number}"))
        }
    }
}

/// Returns the script's argument that identifies a device: its index, followed by its cookie if one was
/// recorded.
fn which(device: DeviceId, object_cookies: &ObjectCookies) -> String {
    match object_cookies.get(&device_cookie_name(device)).and_then(|number| number.parse::<u64>().ok()) {
        Some(number) => format!("{}:{number}", device.ifindex),
        None => device.ifindex.to_string(),
    }
}

/// Returns the boot id that a script's text contains, if any.
pub(crate) fn boot_of(script: &str) -> Option<&str> {
    script.lines().find_map(|line| line.strip_prefix("boot='")?.strip_suffix('\''))
}

const HEAD: &str = include_str!("undo_script/head.sh");
const SETUP: &str = include_str!("undo_script/setup.sh");
const CALLED: &str = include_str!("undo_script/called.sh");
const END: &str = include_str!("undo_script/end.sh");
