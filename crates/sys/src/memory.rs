//! Advice about memory.
#![expect(unsafe_code, reason = "madvise takes an address")]

/// The least page; a larger one makes no difference to advice.
const PAGE_BYTES: usize = 4096;

/// Advises huge pages for the memory of this vector. A kernel without them, or with none free, gives small pages.
///
/// Kernel: `mm/madvise.c` `MADV_HUGEPAGE`, since 2.6.38.
pub fn prefer_huge_pages(memory: &mut Vec<u8>) {
    let begin = memory.as_mut_ptr();
    // The allocator's own note lies before the first byte, in the first page: the area shall be one for the kernel too.
    let before = begin.addr() % PAGE_BYTES;
    let length = (before + memory.capacity()).next_multiple_of(PAGE_BYTES);
    // SAFETY: advice about huge pages changes no content of any page and unmaps none, of any owner; the kernel checks
    // the range itself.
    let _ = unsafe { libc::madvise(begin.wrapping_sub(before).cast(), length, libc::MADV_HUGEPAGE) };
}
