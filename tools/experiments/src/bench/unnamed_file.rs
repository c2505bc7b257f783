//! Creates the bench's temporary file, which has no name.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use session::{Exit, Fault};

/// Size of a write when filling the bench's own file.
const FILL_BYTES: usize = 1 << 20;

/// The maximum size of the bench's own file.
const FILE_BYTES_MAX: u64 = 16 << 30;

/// Creates an unnamed file and fills it with data, because reading a hole would not access the disk.
pub(crate) fn file_of_our_own(dir: &Path, bytes: u64) -> Result<File, Fault> {
    if bytes > FILE_BYTES_MAX {
        let why = format!("a file of {bytes} bytes; at most {FILE_BYTES_MAX}");
        return Err(Fault::new(Exit::Usage, why));
    }
    let path = dir.join(format!("netpolicy-bench-{}", std::process::id()));
    let failed = |error| Fault::file(&path, error);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    let block = vec![0x5a_u8; FILL_BYTES];
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(FILL_BYTES);
        file.write_all(&block[..length]).map_err(failed)?;
        left -= length as u64;
    }
    file.sync_all().map_err(failed)?;
    Ok(file)
}
