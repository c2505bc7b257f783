//! Formats errors, for all programs.

use std::error::Error;

use crate::page::Style;
use model::legible::shortened;

use crate::{Exit, Fault, HostState};

/// The maximum number of causes to print.
const CAUSES_MAX: usize = 16;

/// Formats the causes from the outermost to the innermost, the hint, and the state of the host.
pub fn words(fault: &Fault, colour: bool) -> String {
    let mut text = Style::Bad.paint("error: ", colour);
    let mut shown = printable(&fault.cause.to_string());
    text.push_str(&shown);
    let mut source = fault.cause.source();
    for _ in 0..CAUSES_MAX {
        let Some(cause) = source else { break };
        let words = printable(&cause.to_string());
        // Many errors repeat the message of their source.
        if !shown.contains(&words) {
            text.push_str("\n  because ");
            text.push_str(&words);
            shown = words;
        }
        source = Error::source(cause);
    }
    if let Some(hint) = &fault.hint {
        text.push('\n');
        text.push_str(&Style::Strong.paint("hint: ", colour));
        text.push_str(&printable(hint));
    }
    if let Some(state) = state(fault, colour) {
        text.push('\n');
        text.push_str(&state);
    }
    text
}

/// The maximum length of a line, because input that is quoted from a command line or a file may have any
/// length.
const LINE_CHARS_MAX: usize = 2000;

/// Sanitises a text for output. Replaces characters that could control a terminal, because any user can
/// choose names of devices and processes. Removes the error numbers that the library appends to the kernel's
/// messages, and the middle of texts that are too long.
pub fn printable(text: &str) -> String {
    let said = without_numbers(text).replace(|c: char| model::is_misleading(c) && c != '\n', "\u{fffd}");
    if said.len() <= LINE_CHARS_MAX {
        return said;
    }
    said.split('\n').map(|line| shortened(line, LINE_CHARS_MAX)).collect::<Vec<_>>().join("\n")
}

fn without_numbers(text: &str) -> String {
    const BEFORE: &str = " (os error ";
    let mut parts = text.split(BEFORE);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|digit| digit.is_ascii_digit()) => {
                shown.push_str(rest)
            }
            _ => shown.extend([BEFORE, part]),
        }
    }
    shown
}

fn state(fault: &Fault, colour: bool) -> Option<String> {
    Some(match &fault.host {
        HostState::Unchanged if fault.exit == Exit::Usage => "Nothing was touched.".to_owned(),
        HostState::Unchanged => "Nothing was changed.".to_owned(),
        HostState::LeftOut => "This part was skipped.".to_owned(),
        HostState::Done => "The request itself had been completed before.".to_owned(),
        HostState::Unknown => "Whether anything was changed is unknown.".to_owned(),
        HostState::Restored => "The host was restored.".to_owned(),
        HostState::NotRestored { stuck, undo } => {
            let mut text = Style::Bad.paint("NOT restored:", colour);
            for setting in stuck {
                text.push_str("\n  ");
                text.push_str(&printable(setting));
            }
            if let Some(undo) = undo {
                text.push_str("\nTo restore the remaining settings by hand, read and run ");
                text.push_str(&undo.display().to_string());
            }
            text
        }
    })
}

#[cfg(test)]
mod test {
    use linux::KernelError;

    use super::*;

    #[test]
    fn the_kernels_words_go_without_the_librarys_numbers() {
        let error = std::io::Error::from_raw_os_error(2);
        assert_eq!(printable(&format!("a: {error}; b")), "a: No such file or directory; b");
        assert_eq!(printable("x (os error y) z"), "x (os error y) z", "not the library's");
    }

    #[test]
    fn a_line_too_long_to_be_read_has_both_ends() {
        let long = "x".repeat(1 << 20);
        let said = printable(&format!("there is no device `{long}`\nand no other"));
        assert_eq!(said.chars().count(), LINE_CHARS_MAX + "\nand no other".len());
        assert!(said.starts_with("there is no device `x") && said.ends_with("x`\nand no other"));
        let policy = policy_file::parse("a.toml", &format!("[device.eth0]\n{long} = 1\n"));
        let mistakes = policy.expect_err("wrong").to_string();
        assert!(mistakes.len() < 4000, "{} bytes", mistakes.len());
    }

    #[test]
    fn a_fault_says_the_object_the_setting_the_kernels_words_and_the_hosts_state() {
        let cause =
            KernelError::io("eth0 rx-4: irq-suspend-timeout 20ms", &std::io::Error::from_raw_os_error(1));
        let fault = Fault::failed(cause).hint("run it as root").leaving(HostState::NotRestored {
            stuck: vec!["eth0 rx-3: defer-hard-irqs 0: gone: the device was removed".to_owned()],
            undo: Some("/var/lib/netpolicy/7/undo.sh".into()),
        });
        insta::assert_snapshot!(words(&fault, false));
    }
}
