//! A line of the journal: whatever is read is written back to the same bytes.

pub(crate) fn run(bytes: &[u8]) {
    if let Ok((seq, record)) = apply::decode_line(bytes) {
        let line = apply::encode_line(seq, &record);
        let again =
            apply::decode_line(line.strip_suffix(b"\n").expect("a line ends")).expect("our own line is read");
        assert_eq!(again, (seq, record));
    }
    // The check sum keeps most inputs out of the decoder behind it, so it is also tried alone.
    let _ = serde_json::from_slice::<apply::Record>(bytes);
}
