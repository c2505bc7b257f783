//! `madvise(2)`.
#![expect(unsafe_code, reason = "madvise takes an address")]

/// The smallest page size, in bytes. With larger pages the advice may fail, which does no harm.
const PAGE_BYTES: usize = 4096;

/// Advises huge pages for the memory of this vector. If no huge pages are available, the kernel uses small
/// pages.
///
/// Kernel: `mm/madvise.c` `MADV_HUGEPAGE`, since 2.6.38.
pub fn prefer_huge_pages(memory: &mut Vec<u8>) {
    let begin = memory.as_mut_ptr();
    // The allocator's header precedes the first byte, in the same page. The advice includes the header, so
    // that the kernel keeps one area.
    let before = begin.addr() % PAGE_BYTES;
    let length = (before + memory.capacity()).next_multiple_of(PAGE_BYTES);
    // SAFETY: advice about huge pages neither changes the content of any page nor unmaps one; the kernel
    // checks the range.
    let _ = unsafe { libc::madvise(begin.wrapping_sub(before).cast(), length, libc::MADV_HUGEPAGE) };
}
