//! Reads ELF headers to determine whether a library can be preloaded into an executable; accepts any bytes.
//!
//! Kernel: 6.18, `include/uapi/linux/elf.h` `struct elf64_hdr`, `struct elf64_phdr`.

/// The maximum number of program headers that are read. Kernel: `fs/binfmt_elf.c` `load_elf_phdrs()` accepts
/// 64 KiB of program headers.
const PROGRAM_HEADERS_MAX: usize = 65_536 / PROGRAM_HEADER_BYTES;
/// The size of a `struct elf64_phdr`.
const PROGRAM_HEADER_BYTES: usize = 56;

/// Kernel: `PT_INTERP`: the program requests a dynamic linker, which loads libraries.
const PT_INTERP: u32 = 3;
/// Kernel: `PT_NOTE`.
const PT_NOTE: u32 = 4;

/// The ELF number of the machine for which this crate is built. Kernel: `include/uapi/linux/elf-em.h`.
#[cfg(target_arch = "x86_64")]
const OUR_MACHINE: u16 = 62;
/// The ELF number of the machine for which this crate is built.
#[cfg(target_arch = "aarch64")]
const OUR_MACHINE: u16 = 183;

/// An ELF executable, classified by whether a library can be preloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executable {
    /// Not an ELF file.
    NotElf,
    /// An ELF file that is built for another machine, has 32 bits or the other byte order, or is not an
    /// executable.
    Foreign,
    /// A statically linked executable, which has no dynamic linker.
    Static,
    /// A dynamically linked executable that was built by Go, whose runtime makes system calls without the C
    /// library.
    Go,
    /// Any other dynamically linked executable.
    Dynamic,
}

impl Executable {
    /// Parses an executable. Headers that point outside of `bytes` count as absent.
    pub(super) fn read(bytes: &[u8]) -> Self {
        const CLASS_64: u8 = 2;
        const LITTLE_ENDIAN: u8 = 1;
        const EXECUTABLE: u16 = 2;
        const POSITION_INDEPENDENT: u16 = 3;
        if !bytes.starts_with(b"\x7fELF") {
            return Self::NotElf;
        }
        let ours = bytes.get(4) == Some(&CLASS_64)
            && bytes.get(5) == Some(&LITTLE_ENDIAN)
            && matches!(u16_at(bytes, 16), Some(EXECUTABLE | POSITION_INDEPENDENT))
            && u16_at(bytes, 18) == Some(OUR_MACHINE);
        if !ours {
            return Self::Foreign;
        }
        let mut headers = program_headers(bytes);
        if !headers.any(|header| header.kind == PT_INTERP) {
            return Self::Static;
        }
        let notes = program_headers(bytes).filter(|header| header.kind == PT_NOTE);
        let by_go = notes.filter_map(|header| header.content(bytes)).any(names_go);
        if by_go { Self::Go } else { Self::Dynamic }
    }
}

/// A program header: the type of a part of the file, and its place in the file.
struct ProgramHeader {
    kind: u32,
    offset: usize,
    length: usize,
}

impl ProgramHeader {
    fn content<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get(self.offset..self.offset.checked_add(self.length)?)
    }
}

fn program_headers(bytes: &[u8]) -> impl Iterator<Item = ProgramHeader> {
    const TABLE_OFFSET: usize = 32;
    const ENTRY_BYTES: usize = 54;
    const ENTRIES: usize = 56;
    let table = usize_at(bytes, TABLE_OFFSET);
    let whole = u16_at(bytes, ENTRY_BYTES) == u16::try_from(PROGRAM_HEADER_BYTES).ok();
    let count = if whole { usize::from(u16_at(bytes, ENTRIES).unwrap_or(0)) } else { 0 };
    (0..count.min(PROGRAM_HEADERS_MAX)).map_while(move |index| {
        let start = table?.checked_add(index * PROGRAM_HEADER_BYTES)?;
        let header = bytes.get(start..start.checked_add(PROGRAM_HEADER_BYTES)?)?;
        Some(ProgramHeader {
            kind: u32_at(header, 0)?,
            offset: usize_at(header, 8)?,
            length: usize_at(header, 32)?,
        })
    })
}

/// Whether a note's name is `Go`. Go's linker writes its build id in such a note (cmd/link, `elfbuildinfo`),
/// as the only note of its segment.
fn names_go(note: &[u8]) -> bool {
    const NAME_BYTES: u32 = 4;
    u32_at(note, 0) == Some(NAME_BYTES) && note.get(12..16) == Some(b"Go\0\0")
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u16::from_le_bytes(*chunk))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn usize_at(bytes: &[u8], offset: usize) -> Option<usize> {
    let value = bytes.get(offset..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))?;
    usize::try_from(value).ok()
}

#[cfg(test)]
mod test {
    use super::*;
    use proptest::prelude::*;

    /// Returns an executable for this machine with these segments, each with 16 bytes of content.
    fn executable(segments: &[(u32, &[u8; 16])]) -> Vec<u8> {
        let headers_end = 64 + segments.len() * PROGRAM_HEADER_BYTES;
        let mut bytes = vec![0; headers_end];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16..18].copy_from_slice(&3_u16.to_le_bytes());
        bytes[18..20].copy_from_slice(&OUR_MACHINE.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&u16::try_from(segments.len()).expect("few").to_le_bytes());
        for (index, (kind, content)) in segments.iter().enumerate() {
            let (header, offset) = (64 + index * PROGRAM_HEADER_BYTES, bytes.len());
            bytes[header..header + 4].copy_from_slice(&kind.to_le_bytes());
            bytes[header + 8..header + 16].copy_from_slice(&(offset as u64).to_le_bytes());
            bytes[header + 32..header + 40].copy_from_slice(&16_u64.to_le_bytes());
            bytes.extend_from_slice(*content);
        }
        bytes
    }

    const GO_NOTE: &[u8; 16] = b"\x04\0\0\0\0\0\0\0\x04\0\0\0Go\0\0";
    const GNU_NOTE: &[u8; 16] = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";

    #[test]
    fn an_executable_with_a_dynamic_linker_can_be_preloaded() {
        assert_eq!(
            Executable::read(&executable(&[
                (6, GNU_NOTE),
                (PT_INTERP, b"/lib64/ld.so\0\0\0\0"),
                (PT_NOTE, GNU_NOTE)
            ])),
            Executable::Dynamic
        );
        let own = std::fs::read("/proc/self/exe").expect("this test");
        assert_eq!(Executable::read(&own), Executable::Dynamic);
    }

    #[test]
    fn programs_that_cannot_preload_are_classified() {
        assert_eq!(Executable::read(&executable(&[(1, GNU_NOTE)])), Executable::Static);
        let of_go = executable(&[(PT_INTERP, GNU_NOTE), (PT_NOTE, GO_NOTE)]);
        assert_eq!(Executable::read(&of_go), Executable::Go);
        let mut narrow = executable(&[(PT_INTERP, GNU_NOTE)]);
        narrow[4] = 1;
        assert_eq!(Executable::read(&narrow), Executable::Foreign);
        let mut foreign = executable(&[(PT_INTERP, GNU_NOTE)]);
        foreign[18] ^= 0xff;
        assert_eq!(Executable::read(&foreign), Executable::Foreign);
        assert_eq!(Executable::read(b"#!/bin/sh\n"), Executable::NotElf);
    }

    proptest! {
        #[test]
        fn no_executable_upsets_the_reader(cut in 0_usize..300, at in 0_usize..300, with in any::<u8>(), wide in any::<u64>(), field in prop::sample::select(vec![32_usize, 72, 96])) {
            let mut bytes = executable(&[(PT_INTERP, GNU_NOTE), (PT_NOTE, GO_NOTE)]);
            bytes[field..field + 8].copy_from_slice(&wide.to_le_bytes());
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            bytes.truncate(cut);
            let _ = Executable::read(&bytes);
        }
    }
}
