//! Structures that BPF programs and user space share. They are read and written by field offset.
//!
//! A test in each module compares the name, offset and type of every member with the compiled object. Another
//! test checks that no structure of a shared header is missing.

/// A memory layout, which must be the same in the BPF program and in Rust.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A number with this size in bytes.
    Number(usize),
    /// An array of this many elements.
    Array(Box<Shape>, usize),
    /// A structure with this size in bytes, and the name, offset and layout of each member.
    Struct(usize, Vec<(String, usize, Shape)>),
}

/// The type of a field: a number or an array of numbers, in native byte order, which BPF uses, too.
pub(super) trait Field: Sized {
    /// Parses the field; missing bytes count as zero.
    fn take(bytes: &[u8]) -> Self;
    /// Writes the field.
    fn put(&self, bytes: &mut [u8]);
    /// The field's layout.
    #[cfg(test)]
    fn shape() -> Shape;
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Field for $number {
            fn take(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or(0, |bytes| Self::from_ne_bytes(*bytes))
            }
            fn put(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
            #[cfg(test)]
            fn shape() -> Shape {
                Shape::Number(size_of::<Self>())
            }
        }
    )* };
}
numbers!(u8, u16, u32, u64);

impl<T: Field, const N: usize> Field for [T; N] {
    fn take(bytes: &[u8]) -> Self {
        let size = size_of::<T>();
        std::array::from_fn(|at| T::take(bytes.get(at * size..).unwrap_or_default()))
    }
    fn put(&self, bytes: &mut [u8]) {
        for (one, bytes) in self.iter().zip(bytes.chunks_exact_mut(size_of::<T>())) {
            one.put(bytes);
        }
    }
    #[cfg(test)]
    fn shape() -> Shape {
        Shape::Array(Box::new(T::shape()), N)
    }
}

/// A structure in C layout.
pub(super) trait Mirrored: Field {
    /// The structure's size in bytes.
    const BYTES: usize = size_of::<Self>();

    /// The structure's name in the header.
    #[cfg(test)]
    const NAME: &'static str;

    /// Parses a structure from a map's value.
    fn of(bytes: &[u8]) -> Self {
        Self::take(bytes)
    }

    /// Encodes the structure as a map's value.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::BYTES];
        self.put(&mut bytes);
        bytes
    }
}

/// Defines structures in C layout, and functions that parse and encode them.
macro_rules! mirrored {
    ($($(#[$meta:meta])* struct $name:ident = $c:literal { $($field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type),* }

        impl $crate::mirrored::Field for $name {
            fn take(bytes: &[u8]) -> Self {
                Self { $($field: <$type as $crate::mirrored::Field>::take(
                    bytes.get(std::mem::offset_of!($name, $field)..).unwrap_or_default()
                )),* }
            }
            fn put(&self, bytes: &mut [u8]) {
                $({
                    let at = std::mem::offset_of!($name, $field);
                    $crate::mirrored::Field::put(&self.$field, &mut bytes[at..at + size_of::<$type>()]);
                })*
            }
            #[cfg(test)]
            fn shape() -> $crate::mirrored::Shape {
                $crate::mirrored::Shape::Struct(size_of::<$name>(), vec![$((
                    stringify!($field).to_owned(),
                    std::mem::offset_of!($name, $field),
                    <$type as $crate::mirrored::Field>::shape(),
                )),*])
            }
        }

        impl $crate::mirrored::Mirrored for $name {
            #[cfg(test)]
            const NAME: &'static str = $c;
        }
    )* };
}
pub(super) use mirrored;

/// Reads a NUL-terminated `char` array, such as the name of a device or a task.
pub(super) fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Defines a test that compares structures with those in the compiled object.
#[cfg(test)]
macro_rules! same_as_compiled {
    ($object:expr, $($name:ident),* $(,)?) => {
        #[test]
        fn every_member_is_laid_out_as_the_compiled_programs_have_it() {
            let wrong: Vec<String> = [$($crate::mirrored::difference::<$name>($object)),*].into_iter().flatten().collect();
            assert!(wrong.is_empty(), "{wrong:#?}");
        }
    };
}
#[cfg(test)]
pub(super) use same_as_compiled;

/// Compares a structure with the one of the same name in a compiled object. Returns the difference, or `None`
/// if they match.
#[cfg(test)]
pub(super) fn difference<T: Mirrored>(object: &[u8]) -> Option<String> {
    use libbpf_rs::btf::{Btf, types};
    let btf = Btf::from_raw("object", object).expect("an object").expect("type information (BTF)");
    let Some(found) = btf.type_by_name::<types::Struct<'_>>(T::NAME) else {
        return Some(format!("no struct {}", T::NAME));
    };
    let (there, here) = (compiled::structure(&btf, &found), T::shape());
    (there != here).then(|| format!("struct {} is {there:?} in C and {here:?} in Rust", T::NAME))
}

/// Reads the layouts of the types in an object's BTF.
#[cfg(test)]
mod compiled {
    use libbpf_rs::btf::types::{Array, Enum, Int, MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, BtfType, HasSize, TypeId};

    use super::Shape;

    pub(super) fn structure(btf: &Btf<'_>, found: &Struct<'_>) -> Shape {
        let members = found.iter().map(|member| {
            let MemberAttr::Normal { offset } = member.attr else { panic!("bit fields cannot be mirrored") };
            let name = member.name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            (name, usize::try_from(offset / 8).expect("few"), shape(btf, member.ty))
        });
        Shape::Struct(found.size(), members.collect())
    }

    fn shape(btf: &Btf<'_>, id: TypeId) -> Shape {
        let found: BtfType<'_> = btf.type_by_id(id).expect("a type of this object");
        let found = found.skip_mods_and_typedefs();
        if let Ok(number) = Int::try_from(found) {
            Shape::Number(usize::from(number.bits) / 8)
        } else if let Ok(number) = Enum::try_from(found) {
            Shape::Number(number.size())
        } else if let Ok(array) = Array::try_from(found) {
            Shape::Array(Box::new(shape(btf, array.contained_type().type_id())), array.capacity())
        } else if let Ok(inner) = Struct::try_from(found) {
            structure(btf, &inner)
        } else {
            panic!("{:?} is not mirrored", found.kind())
        }
    }
}

#[cfg(test)]
mod test {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    const LIVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/live.bpf.o"));
    const WIRE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wire.bpf.o"));

    mirrored! {
        struct Swapped = "live_key" { is_worker: u32, id: u32 }

        struct PaddedAtTheEnd = "wire_gate" { opens: u64, closes: u32 }

        struct SmallerElements = "live_part" {
            requests: u64,
            ring_ns: u64,
            wakeup_ns: u64,
            service_ns: u64,
            polls: [u32; 8],
            packets: [u64; 4],
            total: [u32; 296],
        }

        struct SameElements = "live_part" {
            requests: u64,
            ring_ns: u64,
            wakeup_ns: u64,
            service_ns: u64,
            polls: [u64; 4],
            packets: [u64; 4],
            total: [u32; 296],
        }
    }

    #[test]
    fn two_members_of_one_size_that_are_swapped_are_refused() {
        assert!(difference::<Swapped>(LIVE).is_some());
    }

    #[test]
    fn a_last_u32_with_padding_is_no_u64() {
        assert_eq!(
            (PaddedAtTheEnd::BYTES, PaddedAtTheEnd::NAME),
            (16, "wire_gate"),
            "everything else is unchanged"
        );
        assert!(difference::<PaddedAtTheEnd>(WIRE).is_some());
    }

    #[test]
    fn two_u32_are_no_u64_in_an_array_as_long() {
        assert_eq!(SmallerElements::BYTES, SameElements::BYTES);
        assert_eq!(difference::<SameElements>(LIVE), None);
        assert!(difference::<SmallerElements>(LIVE).is_some());
    }

    #[test]
    fn every_structure_of_a_shared_header_is_mirrored_beside_it() {
        let rooms = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let (mut structures, mut missing) = (0, Vec::new());
        for room in entries(&rooms).iter().filter(|entry| entry.is_dir()) {
            let name = room.file_name().expect("a name").to_string_lossy();
            let header = fs::read_to_string(room.join(format!("{name}.h"))).expect("a room has a header");
            let rust: String = entries(room)
                .iter()
                .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
                .map(|file| fs::read_to_string(file).expect("a source"))
                .collect();
            for structure in
                header.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"))
            {
                structures += 1;
                if !rust.contains(&format!("= \"{structure}\" {{")) {
                    missing.push(format!("struct {structure} of {name}.h"));
                }
            }
        }
        assert!(structures > 20, "{structures} found");
        assert!(missing.is_empty(), "{missing:#?}");
    }

    fn entries(directory: &Path) -> Vec<PathBuf> {
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
    }
}
