//! The output of `record`.

use crate::render::count;
use schemars::JsonSchema;
use serde::Serialize;
use session::page::{Page, Report};
use session::recording::Recording;

/// The output of `record`.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct RecordReport {
    /// The recording's file.
    file: String,
    /// The file's size in bytes.
    bytes: usize,
    /// Whether names, addresses and users are pseudonyms.
    redacted: bool,
    /// The number of recorded devices.
    devices: usize,
    receive_queues: usize,
    processes: usize,
    sockets: usize,
    transactions: usize,
    /// The number of parts that could not be read on the host.
    unread: usize,
    /// The parts that were left out.
    left_out: Vec<String>,
}

impl RecordReport {
    pub(crate) fn of(recording: &Recording, file: String, bytes: usize) -> Self {
        let Recording { host, .. } = recording;
        Self {
            file,
            bytes,
            redacted: recording.redacted,
            devices: host.devices.len(),
            receive_queues: host.devices.iter().map(|device| device.rx_queues.len()).sum(),
            processes: host.processes.len(),
            sockets: host.processes.iter().map(|process| process.sockets.len()).sum(),
            transactions: recording.journal.as_ref().map_or(0, |journal| journal.transactions.len()),
            unread: host.unread.len(),
            left_out: recording.made.left_out.clone(),
        }
    }
}

impl Report for RecordReport {
    const KIND: &'static str = "recorded";

    fn page(&self, page: &mut Page) {
        page.line(format!(
            "{}: {} bytes: {}, {}, {}, {}, {}",
            self.file,
            self.bytes,
            count(self.devices, "device"),
            count(self.receive_queues, "receive queue"),
            count(self.processes, "process").replace("processs", "processes"),
            count(self.sockets, "socket"),
            count(self.transactions, "transaction"),
        ));
        if self.unread > 0 {
            page.line(format!(
                "not read on this host: {}; netpolicy show lists them",
                count(self.unread, "part")
            ));
        }
        self.left_out.iter().for_each(|what| page.line(format!("left out: {what}")));
        page.line(match self.redacted {
            true => "names, addresses and users are pseudonyms",
            false => "names, addresses and users are in it; without --with-names, they are pseudonyms",
        });
    }
}
