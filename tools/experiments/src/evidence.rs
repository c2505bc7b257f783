//! Reads the evidence that a bench wrote, plain or compressed by gzip.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use latency::live::RecordedWindows;
use runs::{Grid, Results};
use session::{Exit, Fault};

use crate::unique::Unique;

/// The maximum size of uncompressed evidence, which is enough for ten thousand runs.
pub(crate) const EVIDENCE_BYTES_MAX: u64 = 256 << 20;

/// The magic number of a gzip file: RFC 1952, 2.3.1.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The contents of an evidence file.
pub(crate) enum Written {
    Results(Box<Results>),
    Grid(Box<Grid>),
    /// Written by `watch --record`.
    Watch(Box<RecordedWindows>),
    /// Written by `compare --record`.
    Compare(Box<latency::judge::RecordedComparison>),
}

/// Reads what a bench wrote with `--json` or printed with `-o json`, where the evidence is one part of the
/// document; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<Written, Fault> {
    let mut bytes = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(EVIDENCE_BYTES_MAX + 1).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(EVIDENCE_BYTES_MAX + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Fault::file(path, error))?;
    of(path, &bytes)
}

/// The maximum number of characters to print of a parse error.
const ERROR_CHARS_MAX: usize = 300;
/// The byte order mark that some editors write.
const MARK: &str = "\u{feff}";

/// Returns whether the bytes begin like evidence, compressed or not, or like any other JSON.
pub(crate) fn is_evidence(bytes: &[u8]) -> bool {
    let text = bytes.strip_prefix(MARK.as_bytes()).unwrap_or(bytes).trim_ascii_start();
    bytes.starts_with(&GZIP_MAGIC) || matches!(text.first(), Some(b'{' | b'['))
}

/// Parses the bytes of a file that [`read`] accepts.
pub(crate) fn of(path: &Path, bytes: &[u8]) -> Result<Written, Fault> {
    let text = unpacked(bytes, EVIDENCE_BYTES_MAX)
        .map_err(|error| Fault::new(Exit::Usage, format!("{}: {error}", path.display())))?;
    written(path, &text)
}

fn written(path: &Path, text: &str) -> Result<Written, Fault> {
    let wrong = |words: String| Fault::new(Exit::Usage, format!("{}: {words}", path.display()));
    // The parser's error quotes text of the file, which may have any length.
    let shortened =
        |error: serde_json::Error| error.to_string().chars().take(ERROR_CHARS_MAX).collect::<String>();
    let no_evidence = |error| wrong(format!("not bench evidence: {}", shortened(error)));
    let text = text.strip_prefix(MARK).unwrap_or(text);
    if latency::judge::RecordedComparison::begins(text) {
        return latency::judge::RecordedComparison::parse(text)
            .map(|read| Written::Compare(Box::new(read)))
            .map_err(wrong);
    }
    if RecordedWindows::begins(text) {
        return RecordedWindows::parse(text)
            .map(|recording| Written::Watch(Box::new(recording)))
            .map_err(wrong);
    }
    let Unique(mut value) = serde_json::from_str(text).map_err(no_evidence)?;
    if !value.is_object() {
        return Err(wrong("JSON, but not bench evidence: expected an object".to_owned()));
    }
    if let Some(data) = value.get_mut("data") {
        value = data.take();
    }
    if value.get("variants").is_some() {
        return serde_json::from_value(value).map(Written::Grid).map_err(no_evidence);
    }
    serde_json::from_value(value).map(Written::Results).map_err(no_evidence)
}

/// Returns the text of a file, decompressed if needed. The limit applies to the decompressed size, because a
/// few bytes can expand to any length.
fn unpacked(mut file: impl BufRead, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    let length = match file.fill_buf()?.starts_with(&GZIP_MAGIC) {
        true => MultiGzDecoder::new(file).take(bytes_max + 1).read_to_string(&mut text),
        false => file.take(bytes_max + 1).read_to_string(&mut text),
    }?;
    if u64::try_from(length).is_ok_and(|length| length <= bytes_max) {
        return Ok(text);
    }
    Err(io::Error::other(format!("the evidence exceeds the limit of {bytes_max} bytes")))
}

#[cfg(test)]
mod test {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &str) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(text.as_bytes()).expect("packs");
        gzip.finish().expect("packs")
    }

    #[test]
    fn a_file_is_read_as_it_is_or_packed_in_one_or_several_parts() {
        assert_eq!(unpacked(&b"{}"[..], 16).expect("reads"), "{}");
        assert_eq!(unpacked(&packed("{}")[..], 16).expect("reads"), "{}");
        let parts = [packed("{\"a\":"), packed("1}")].concat();
        assert_eq!(unpacked(&parts[..], 16).expect("reads"), "{\"a\":1}");
        assert_eq!(unpacked(&b""[..], 16).expect("reads"), "");
    }

    #[test]
    fn what_unpacks_to_more_than_the_limit_is_refused() {
        let (fits, exceeds) = ("a".repeat(1 << 20), "a".repeat((1 << 20) + 1));
        assert!(packed(&exceeds).len() < 2048, "little space on disk");
        assert_eq!(unpacked(&packed(&fits)[..], 1 << 20).expect("fits").len(), 1 << 20);
        for bytes in [packed(&exceeds), exceeds.into_bytes()] {
            let error = unpacked(&bytes[..], 1 << 20).expect_err("is refused").to_string();
            assert!(error.contains("exceeds the limit of 1048576 bytes"), "{error}");
        }
    }

    #[test]
    fn a_packed_file_that_was_cut_short_is_an_error() {
        let whole = packed("{\"evidence\":[]}");
        for length in 3..whole.len() {
            assert!(unpacked(&whole[..length], 64).is_err(), "{length} bytes");
        }
    }
}
