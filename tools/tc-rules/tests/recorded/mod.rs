//! Shared by the tests of recorded bytes: a device line, hexadecimal, and a line of tc as the bytes of its
//! message.

use model::IfIndex;
use netlink::attr::AttrBuf;
use tc_rules::{Batch, Table};

/// `NLM_F_ACK`, which tc sets on every message.
const ACK: u16 = 0x4;

/// A device with its index at recording time, from a line `NAME INDEX`.
pub(crate) fn device(row: &str) -> (String, IfIndex) {
    let (name, index) = row.split_once(' ').expect("a device");
    (name.to_owned(), IfIndex(index.parse().expect("a number")))
}

/// Decodes hexadecimal digits.
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// The message for a line of a batch file, with sequence number 0.
pub(crate) fn encoded(line: &str, table: &mut Table) -> Result<Vec<u8>, String> {
    let mut batch = Batch::new(line.as_bytes());
    let (_, command) = batch.next_command(table).map_err(|error| error.to_string())?.expect("a command");
    let mut out = AttrBuf::new();
    command.encode(0, ACK, &mut out);
    Ok(out.into_bytes())
}
