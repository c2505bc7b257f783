//! `madvise(2)`.
#![expect(unsafe_code, reason = "madvise takes an address")]

/// The smallest page size; larger pages make no difference for advice.
const PAGE_BYTES: usize = 4096;

/// Advises huge pages for the memory of this vector. If no huge pages are available, the kernel uses small
/// pages.
///
/// Kernel: `mm/madvise.c` `MADV_HUGEPAGE`, since 2.6.38.
pub fn prefer_huge_pages(memory: &mut Vec<u8>) {
    let begin = memory.as_mut_ptr();
    // The allocator's header is before the first byte, in the first page: include it, so that the kernel sees
    // one area.
    let before = begin.addr() % PAGE_BYTES;
    let length = (before + memory.capacity()).next_multiple_of(PAGE_BYTES);
    // SAFETY: advice about huge pages neither changes the content of any page nor unmaps one; the kernel
    // checks the range.
    let _ = unsafe { libc::madvise(begin.wrapping_sub(before).cast(), length, libc::MADV_HUGEPAGE) };
}
