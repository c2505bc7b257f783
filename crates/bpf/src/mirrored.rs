//! Structures that a BPF program and we share, read and written by the place of each field.
//!
//! A test of each room compares names, places and sizes with those that the compiler put into the object.

/// A field's name, its place and its size, in bytes.
#[cfg(test)]
pub(super) type FieldPlace = (&'static str, usize, usize);

/// What a field may be: numbers, and arrays of them. In the byte order of this machine, as BPF has it.
pub(super) trait Field: Sized {
    /// Reads it; zeros for bytes that are not there.
    fn take(bytes: &[u8]) -> Self;
    /// Writes it over as many bytes.
    fn put(&self, bytes: &mut [u8]);
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
}

/// A structure as C lays it out.
pub(super) trait Mirrored: Field {
    /// How many bytes it has.
    const BYTES: usize = size_of::<Self>();

    /// Reads it from a map's value.
    fn of(bytes: &[u8]) -> Self {
        Self::take(bytes)
    }

    /// The bytes of a map's value.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::BYTES];
        self.put(&mut bytes);
        bytes
    }
}

/// Defines structures as C lays them out, with a reader and a writer of their bytes.
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
        }

        impl $crate::mirrored::Mirrored for $name {}

        #[cfg(test)]
        impl $name {
            /// Its name in the header.
            pub(super) const NAME: &'static str = $c;
            /// Its fields.
            pub(super) const FIELDS: &'static [$crate::mirrored::FieldPlace] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>())),*];
        }
    )* };
}
pub(super) use mirrored;

/// A `char` array that ends at its first zero: the name of a device or a task.
pub(super) fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A test that the structures of a room are as its compiled object has them.
#[cfg(test)]
macro_rules! same_as_compiled {
    ($object:expr, $($name:ident),* $(,)?) => {
        #[test]
        fn every_field_is_where_the_compiled_programs_have_it() {
            let mut wrong: Vec<String> = Vec::new();
            $(wrong.extend($crate::mirrored::difference($object, $name::NAME, size_of::<$name>(), $name::FIELDS));)*
            assert!(wrong.is_empty(), "{wrong:#?}");
        }
    };
}
#[cfg(test)]
pub(super) use same_as_compiled;

/// What differs between a structure here and that of the same name in a compiled object.
#[cfg(test)]
pub(super) fn difference(object: &[u8], name: &str, size: usize, fields: &[FieldPlace]) -> Vec<String> {
    use libbpf_rs::btf::{Btf, HasSize, types};
    let btf = Btf::from_raw("object", object).expect("an object").expect("which describes its types");
    let Some(found) = btf.type_by_name::<types::Struct<'_>>(name) else {
        return vec![format!("no struct {name}")];
    };
    let mut wrong = Vec::new();
    if found.size() != size {
        wrong.push(format!("struct {name} has {} bytes there and {size} here", found.size()));
    }
    let theirs: Vec<(String, usize)> = found
        .iter()
        .map(|member| {
            let bits = match member.attr {
                types::MemberAttr::Normal { offset } | types::MemberAttr::BitField { offset, .. } => offset,
            };
            let name = member.name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            (name, usize::try_from(bits / 8).expect("few"))
        })
        .collect();
    let ours: Vec<(String, usize)> = fields.iter().map(|(name, at, _)| ((*name).to_owned(), *at)).collect();
    if ours != theirs {
        wrong.push(format!("struct {name} is {theirs:?} there and {ours:?} here"));
    }
    wrong
}
