//! Values that a BPF program wrote, read field by field in the order of its header.

/// A reader of one value. Past the end it reads zeros: the length was checked against the header's when the value
/// was taken from its map.
#[derive(Debug)]
pub(super) struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    /// Reads this value.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_first_chunk().map_or(([0; N], &[][..]), |(head, rest)| (*head, rest));
        self.0 = rest;
        head
    }

    /// The next field, a `__u8`.
    pub(super) fn u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.take())
    }

    /// The next field, a `__u16`.
    pub(super) fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    /// The next field, a `__u32`.
    pub(super) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    /// The next field, a `__u64`.
    pub(super) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    /// The next field, a `char[16]` that ends at its first zero: the name of a device or a task.
    pub(super) fn name(&mut self) -> String {
        let bytes: [u8; 16] = self.take();
        let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}
