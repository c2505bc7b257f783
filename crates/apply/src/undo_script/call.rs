//! A line of the script, and the shell functions that a line may need.

use model::{DeviceId, NetnsId};

/// A line of the script, and the shell functions that it calls.
pub(super) struct Call {
    pub(super) needs: Vec<Part>,
    pub(super) line: String,
}

impl Call {
    /// Creates a call that runs in a network namespace. `of` is inserted between the description of the
    /// change and its two values.
    pub(super) fn in_netns(
        needs: &[Part],
        words: &ShellWords,
        netns: NetnsId,
        function: &str,
        of: &str,
    ) -> Self {
        let ShellWords { what, set, old } = words;
        let needs = [&[Part::Device, Part::Netns], needs].concat();
        Self { needs, line: format!("in_netns {netns} {function} {what} {of} {set} {old}") }
    }

    /// Creates a call that can run in any namespace.
    pub(super) fn anywhere(needs: &[Part], words: &ShellWords, function: &str, of: &str) -> Self {
        let ShellWords { what, set, old } = words;
        Self { needs: needs.to_vec(), line: format!("{function} {what} {of} {set} {old}") }
    }

    /// Creates a call of the shell function `device_file`, which writes a device's file in sysfs.
    pub(super) fn device_file(words: &ShellWords, device: DeviceId, which: &str, file: &str) -> Self {
        let needs = [Part::File, Part::DeviceFile];
        Self::in_netns(&needs, words, device.netns, "device_file", &format!("{which} {file}"))
    }
}

/// The description of a change and its two values, each as one shell word.
pub(super) struct ShellWords {
    pub(super) what: String,
    /// The value that the transaction set.
    pub(super) set: String,
    /// The value before the transaction.
    pub(super) old: String,
}

/// Puts a text on one line: a newline in a name would end a comment in the script.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if model::is_misleading(c) { '?' } else { c }).collect()
}

/// Quotes a text as one shell word.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", one_line(text).replace('\'', r"'\''"))
}

/// The shell functions that a script may need, in the order in which the script defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    File,
    Device,
    DeviceFile,
    MaskFile,
    Netns,
    Napi,
    Kthread,
    Started,
    Thread,
    Held,
    Epoll,
    Ring,
    Socket,
    Nic,
    Ethtool,
    PacketSize,
    Irqbalance,
    Steer,
    Qdisc,
}

impl Part {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::File => include_str!("file.sh"),
            Self::Device => include_str!("device.sh"),
            Self::DeviceFile => include_str!("device_file.sh"),
            Self::MaskFile => include_str!("mask_file.sh"),
            Self::Netns => include_str!("netns.sh"),
            Self::Napi => include_str!("napi.sh"),
            Self::Kthread => include_str!("kthread.sh"),
            Self::Started => include_str!("started.sh"),
            Self::Thread => include_str!("thread.sh"),
            Self::Held => include_str!("held.sh"),
            Self::Epoll => include_str!("epoll.sh"),
            Self::Ring => include_str!("ring.sh"),
            Self::Socket => include_str!("socket.sh"),
            Self::Nic => include_str!("nic.sh"),
            Self::Ethtool => include_str!("ethtool.sh"),
            Self::PacketSize => include_str!("packet_size.sh"),
            Self::Irqbalance => include_str!("irqbalance.sh"),
            Self::Steer => include_str!("steer.sh"),
            Self::Qdisc => include_str!("qdisc.sh"),
        }
    }
}
