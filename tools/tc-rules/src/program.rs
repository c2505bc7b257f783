//! BPF programs of rules and actions: inline, or pinned.
//!
//! Kernel: 6.18, `include/uapi/linux/filter.h` `struct sock_filter`, `include/uapi/linux/bpf_common.h`.

use crate::lookup::{Lookup, Pinned};
use crate::number::{self, Base};
use crate::words::{Read, Words, keywords, quoted};
use netlink::attr::{Attr, AttrBuf, Malformed};

/// Maximum number of instructions in a classic program: `BPF_MAXINSNS`.
const INSTRUCTIONS_MAX: usize = 4096;

/// Size of an instruction: `struct sock_filter`.
const INSTRUCTION_BYTES: usize = 8;

keywords! {
    /// The sources of a program, in iproute2's order.
    pub(crate) enum Source {
        Bytecode = "bytecode",
        Bc = "bc" exact,
        BytecodeFile = "bytecode-file",
        Bcf = "bcf" exact,
        ObjectFile = "object-file",
        Obj = "obj" exact,
        ObjectPinned = "object-pinned",
        Pinned = "pinned",
        Fd = "fd",
    }
}

/// A program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Program {
    /// None is given.
    #[default]
    None,
    /// A classic program, as its instructions.
    Classic(Vec<Instruction>),
    /// A pinned program, with the name that the kernel stores, such as the program's path.
    Pinned(Pinned, String),
}

/// An instruction of a classic program: `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The opcode.
    pub code: u16,
    /// How many instructions to skip if the condition is true.
    pub jump_true: u8,
    /// How many instructions to skip if the condition is false.
    pub jump_false: u8,
    /// The operand.
    pub operand: u32,
}

/// The numbers of the attributes that name a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) instruction_count: u16,
    pub(crate) instructions: u16,
    pub(crate) descriptor: u16,
    pub(crate) name: u16,
    pub(crate) id: u16,
}

impl Program {
    /// Parses what follows a word that names the source.
    pub(crate) fn parse(source: Source, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
        match source {
            Source::Bytecode | Source::Bc => words.read("`COUNT,CODE JT JF K,...`", classic).map(Self::Classic),
            Source::BytecodeFile | Source::Bcf => {
                Err(words.wrong("programs in files are not supported; `bytecode` takes the program itself"))
            }
            Source::ObjectFile | Source::Obj => Err(words.wrong(
                "programs in object files are not supported; pin the program with bpftool and use `object-pinned`",
            )),
            Source::ObjectPinned | Source::Pinned | Source::Fd => {
                let path = words.value()?;
                let Some(pinned) = lookup.pinned(path) else {
                    return Err(words.wrong(format!("no BPF program is pinned at `{path}`")));
                };
                let name = format!("{}:[*fsobj]", path.rsplit('/').next().unwrap_or(path));
                Ok(Self::Pinned(pinned, name))
            }
        }
    }

    /// Whether a program is given.
    pub const fn is_some(&self) -> bool {
        !matches!(self, Self::None)
    }

    pub(crate) fn encode(&self, numbers: Numbers, out: &mut AttrBuf) {
        match self {
            Self::None => {}
            Self::Classic(instructions) => {
                // The count was checked, or comes from a dump, whose attributes are shorter.
                out.u16(numbers.instruction_count, u16::try_from(instructions.len()).unwrap_or(u16::MAX));
                let bytes: Vec<[u8; INSTRUCTION_BYTES]> =
                    instructions.iter().map(Instruction::bytes).collect();
                out.bytes(numbers.instructions, bytes.as_flattened());
            }
            Self::Pinned(pinned, name) => {
                out.u32(numbers.descriptor, pinned.fd);
                if !name.is_empty() {
                    out.text(numbers.name, name);
                }
            }
        }
    }

    /// Decodes an attribute of a dump, if it describes the program.
    pub(crate) fn take(&mut self, attr: &Attr<'_>, numbers: Numbers) -> Result<(), Malformed> {
        if attr.number == numbers.instructions {
            let (instructions, rest) = attr.payload.as_chunks::<INSTRUCTION_BYTES>();
            if !rest.is_empty() || instructions.len() > INSTRUCTIONS_MAX {
                return Err(Malformed("a program is truncated, or too long"));
            }
            *self = Self::Classic(instructions.iter().map(Instruction::of).collect());
        } else if attr.number == numbers.id || attr.number == numbers.name {
            if !matches!(self, Self::Pinned(..)) {
                *self = Self::Pinned(Pinned { fd: 0, id: 0 }, String::new());
            }
            let Self::Pinned(pinned, name) = self else { return Ok(()) };
            if attr.number == numbers.id {
                pinned.id = attr.u32()?;
            } else {
                attr.text()?.clone_into(name);
            }
        }
        Ok(())
    }

    /// Converts the program to the form that the kernel would dump, without the descriptor that was sent.
    pub(crate) const fn canonicalize(&mut self) {
        if let Self::Pinned(pinned, _) = self {
            pinned.fd = 0;
        }
    }

    /// Formats the program in tc syntax. Returns `None` for a pinned program, whose path the kernel does not
    /// store, and if there is no program.
    pub(crate) fn words(&self) -> Option<String> {
        let Self::Classic(instructions) = self else { return None };
        let mut program = instructions.len().to_string();
        for Instruction { code, jump_true, jump_false, operand } in instructions {
            program.push_str(&format!(",{code} {jump_true} {jump_false} {operand}"));
        }
        quoted(&program).map(|program| format!("bytecode {program}")).filter(|_| !instructions.is_empty())
    }
}

impl Instruction {
    fn bytes(&self) -> [u8; INSTRUCTION_BYTES] {
        let ([a, b], [c, d, e, f]) = (self.code.to_ne_bytes(), self.operand.to_ne_bytes());
        [a, b, self.jump_true, self.jump_false, c, d, e, f]
    }

    fn of(&[a, b, jump_true, jump_false, c, d, e, f]: &[u8; INSTRUCTION_BYTES]) -> Self {
        let (code, operand) = (u16::from_ne_bytes([a, b]), u32::from_ne_bytes([c, d, e, f]));
        Self { code, jump_true, jump_false, operand }
    }
}

/// Parses a classic program: the number of instructions, then each as four decimal numbers separated by
/// blanks.
fn classic(word: &str) -> Option<Vec<Instruction>> {
    let (count, rest) = word.split_once(',')?;
    let count = number::u16(count, Base::Ten).map(usize::from)?;
    let program: Option<Vec<Instruction>> =
        rest.strip_suffix(',').unwrap_or(rest).split(',').map(instruction).collect();
    program.filter(|program| program.len() == count && count <= INSTRUCTIONS_MAX)
}

fn instruction(words: &str) -> Option<Instruction> {
    let mut words = words.split_ascii_whitespace();
    let mut next = || words.next();
    let instruction = Instruction {
        code: number::u16(next()?, Base::Ten)?,
        jump_true: number::u8(next()?, Base::Ten)?,
        jump_false: number::u8(next()?, Base::Ten)?,
        operand: number::u32(next()?, Base::Ten)?,
    };
    next().is_none().then_some(instruction)
}
