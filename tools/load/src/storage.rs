//! The protocol between the storage client and server: a header of 16 bytes in each direction,
//! followed by the data of the operation, if any.

use model::StorageWorkload;

/// Length of a header, in bytes, in each direction.
pub const HEADER_BYTES: usize = 16;

/// A storage operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Whether the operation writes; the data follow the header.
    pub writes: bool,
    /// Offset, in bytes: a multiple of [`StorageWorkload::ALIGNMENT`].
    pub offset: u64,
    /// Length, in bytes: a multiple of [`StorageWorkload::ALIGNMENT`], at most
    /// [`StorageWorkload::BYTES_MAX`].
    pub bytes: u32,
}

/// The error for bytes that are not an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAnOperation {
    /// The header announces neither a read nor a write.
    Kind(u8),
    /// The length is zero, too long or not aligned.
    Length(u32),
    /// The offset is not aligned, or the end is beyond any file.
    Offset(u64),
}

impl std::fmt::Display for NotAnOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "an operation of kind {kind} (only r and w are known)"),
            Self::Length(bytes) => write!(f, "an operation of {bytes} bytes"),
            Self::Offset(offset) => write!(f, "an operation at offset {offset}"),
        }
    }
}

impl std::error::Error for NotAnOperation {}

impl Operation {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = if self.writes { b'w' } else { b'r' };
        header[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        header[8..].copy_from_slice(&self.offset.to_le_bytes());
        header
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// [`NotAnOperation`]; the start of the next operation is then unknown.
    pub fn decode(header: &[u8; HEADER_BYTES]) -> Result<Self, NotAnOperation> {
        let [kind, _, _, _, b0, b1, b2, b3, o0, o1, o2, o3, o4, o5, o6, o7] = *header;
        let bytes = u32::from_le_bytes([b0, b1, b2, b3]);
        let offset = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let writes = match kind {
            b'w' => true,
            b'r' => false,
            other => return Err(NotAnOperation::Kind(other)),
        };
        if bytes == 0
            || bytes > StorageWorkload::BYTES_MAX
            || !bytes.is_multiple_of(StorageWorkload::ALIGNMENT)
        {
            return Err(NotAnOperation::Length(bytes));
        }
        let end = offset.checked_add(bytes.into()).filter(|&end| i64::try_from(end).is_ok());
        if end.is_none() || !offset.is_multiple_of(StorageWorkload::ALIGNMENT.into()) {
            return Err(NotAnOperation::Offset(offset));
        }
        Ok(Self { writes, offset, bytes })
    }

    /// How many bytes follow the header in the request.
    pub const fn request_data_bytes(&self) -> u32 {
        if self.writes { self.bytes } else { 0 }
    }

    /// Length of the answer, including its header. The answer to a failed read has the same length.
    pub const fn answer_bytes(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "16")]
        let header = HEADER_BYTES as u32;
        header + if self.writes { 0 } else { self.bytes }
    }
}

/// The header of an answer: its first byte is 0, or the kernel's error number (255 for larger
/// ones).
pub fn answer(errno: Option<i32>) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0] = errno.map_or(0, |errno| u8::try_from(errno).unwrap_or(u8::MAX).max(1));
    header
}

/// Describes the error that the first byte of a failed answer encodes.
pub(crate) fn refusal(first: u8) -> String {
    format!("the server's storage: {}", std::io::Error::from_raw_os_error(first.into()))
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_operation_survives_its_header(writes: bool, place in 0_u64..1 << 40, pages in 1_u32..=256) {
            let operation = Operation { writes, offset: place * 4096, bytes: pages * 4096 };
            prop_assert_eq!(Operation::decode(&operation.encode()), Ok(operation));
        }

        #[test]
        fn any_header_is_an_operation_that_can_be_done_or_refused(header: [u8; HEADER_BYTES]) {
            if let Ok(operation) = Operation::decode(&header) {
                prop_assert!(operation.bytes <= StorageWorkload::BYTES_MAX);
                prop_assert!(operation.offset.checked_add(operation.bytes.into()).is_some());
            }
        }
    }

    #[test]
    fn headers_that_ask_for_the_impossible_are_refused() {
        let header = |kind: u8, bytes: u32, offset: u64| {
            let mut header = Operation { writes: false, offset, bytes }.encode();
            header[0] = kind;
            Operation::decode(&header)
        };
        assert_eq!(header(b'x', 4096, 0), Err(NotAnOperation::Kind(b'x')));
        assert_eq!(header(b'r', 0, 0), Err(NotAnOperation::Length(0)));
        assert_eq!(header(b'w', 4097, 0), Err(NotAnOperation::Length(4097)));
        assert_eq!(header(b'r', 2 << 20, 0), Err(NotAnOperation::Length(2 << 20)));
        assert_eq!(header(b'r', 4096, 100), Err(NotAnOperation::Offset(100)));
        assert_eq!(header(b'r', 4096, u64::MAX - 4095), Err(NotAnOperation::Offset(u64::MAX - 4095)));
    }

    #[test]
    fn failure_is_never_taken_for_success() {
        assert_eq!(answer(None)[0], 0);
        assert_eq!([answer(Some(5))[0], answer(Some(0))[0], answer(Some(512))[0]], [5, 1, 255]);
    }
}
