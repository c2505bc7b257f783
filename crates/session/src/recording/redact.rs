//! Redacts a recording according to the type of each field.
//!
//! A serialiser sees the type and field of every text. It keeps numbers and the variants of enums. What it
//! does with a text depends on the [`class`] of the field. In a field without a specific class, it keeps only
//! netpolicy's own words and numbers, and replaces names with pseudonyms. So a new field cannot reveal a
//! name.

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::{Error, Map, Number, Value};

use model::host::Device;
use model::{DeviceCondition, Patterns, Target};

use super::pseudonyms::{NameOf, Pseudonyms, is_common_pattern};
use super::{NotARecording, Recording};

/// Returns the recording with pseudonyms instead of names, addresses and users.
///
/// # Errors
/// If the result is not a valid recording, which would be a bug.
pub fn redacted(recording: &Recording, pseudonyms: &mut Pseudonyms) -> Result<Recording, NotARecording> {
    let mut recording = recording.clone();
    recording.redacted = true;
    for tool in &mut recording.doctor.others {
        // The line from another tool's file is free text. A separate field has the settings in it.
        tool.line = "…".to_owned();
    }
    if let Ok(policy) = &mut recording.policy {
        let devices = &recording.host.devices;
        policy.intents.iter_mut().for_each(|intent| name_exactly(&mut intent.target, devices, pseudonyms));
    }
    // A text may contain a name that only a later field reveals, so a first pass collects all names.
    let damaged = |error: Error| NotARecording::Damaged(error.to_string());
    let mut redact = || recording.serialize(Redactor { names: pseudonyms, at: ("", "") }).map_err(damaged);
    redact()?;
    let value = redact()?;
    let mut redacted: Recording = serde_json::from_value(value).map_err(damaged)?;
    if let Err(mistakes) = policy_file::recipes(&redacted.recipe_files) {
        let count = redacted.recipe_files.len();
        redacted.made.left_out.push(format!("the {count} recipe files of the site: {mistakes}"));
        redacted.recipe_files.clear();
    }
    Ok(redacted)
}

/// Replaces patterns for names and MAC addresses of devices with the devices that they match, because a
/// pseudonym would not match the pattern.
fn name_exactly(target: &mut Target, devices: &[Device], pseudonyms: &mut Pseudonyms) {
    let Target::Devices(_, selector) = target else { return };
    for condition in selector.meets.iter_mut().chain(&mut selector.not) {
        let (patterns, names): (_, Vec<String>) = match condition {
            DeviceCondition::Name(patterns) => {
                let names: Vec<String> = devices.iter().map(|device| device.id.name.to_string()).collect();
                let is_alike = |name: &String| {
                    let is = pseudonyms.name(NameOf::Device, name);
                    patterns.meet(name) == patterns.meet(&is)
                };
                let is_public = patterns.iter().all(|glob| is_common_pattern(glob.as_str()));
                if is_public && names.iter().all(is_alike) {
                    continue;
                }
                (patterns, names)
            }
            DeviceCondition::Mac(patterns) => {
                (patterns, devices.iter().filter_map(|device| device.link.mac.clone()).collect())
            }
            DeviceCondition::Driver(_)
            | DeviceCondition::Pci(_)
            | DeviceCondition::Carries(_)
            | DeviceCondition::Speed(_) => continue,
        };
        let matched: Vec<&String> = names.iter().filter(|name| patterns.meet(name)).collect();
        // If the pattern matches no device, replace it with one that matches no pseudonym.
        let none = "none".to_owned();
        let matched = if matched.is_empty() { vec![&none] } else { matched };
        if let Ok(exact) = Patterns::of(matched) {
            *patterns = exact;
        }
    }
}

/// What to do with the texts of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Keep the text: it is one of a fixed set, a number in words, or a name given by a driver or the kernel.
    Keep,
    Name(NameOf),
    Path,
    Mac,
    /// The number is a uid.
    User,
    /// The numbers are a secret.
    Secret,
    /// The numbers are a MAC address.
    MacBytes,
    /// The text is an identifier without meaning.
    Opaque,
    /// The text is a file and line, or a command.
    Words,
}

/// Returns the class of a field, by its type and name as serde spells them.
fn class((of, field): (&str, &str)) -> Class {
    match (of, field) {
        ("DeviceId", "name")
        | ("Target", "device" | "devices")
        | ("NapiDelivered", "device")
        | ("DeviceCondition", "name") => Class::Name(NameOf::Device),
        ("ProcessId" | "ThreadId", "comm") => Class::Name(NameOf::Process),
        ("Peer", "name") => Class::Name(NameOf::Device),
        ("Target", "service") | ("Judgement", "service") => Class::Name(NameOf::Service),
        ("Process", "container") => Class::Name(NameOf::Container),
        ("Match", "unit" | "cgroup" | "pod" | "container") => Class::Name(NameOf::Container),
        ("Match", "exe") | ("Process", "exe") => Class::Path,
        ("Options", "netns") | ("Peer", "netns") => Class::Name(NameOf::Namespace),
        ("Options" | "RecordedJournal", _) | ("RecordedUnreadable", "script") => Class::Path,
        ("Made", "host") => Class::Name(NameOf::Host),
        ("DeviceLink" | "DeviceCondition", "mac") => Class::Mac,
        ("Process" | "Match", "uid") => Class::User,
        ("Rss", "key") | ("NicKnob" | "NicRequest", "rss-key") => Class::Secret,
        ("EtherFlow", "destination") => Class::MacBytes,
        ("Recording" | "Begin", "boot_id") => Class::Opaque,
        ("ConflictingTool", "device") => Class::Name(NameOf::Device),
        ("ConflictingTool", "place") => Class::Path,
        ("Recording" | "Made" | "Begin" | "TransactionOrigin", "kind" | "netpolicy" | "replaces")
        | ("Device", "kind" | "private_flags" | "offloads" | "offloads_requested")
        | ("DeviceLink" | "DeviceCondition", "pci" | "driver" | "kind")
        | ("NicKnob" | "NicRequest", "private-flag")
        | ("Qdiscs", _)
        | ("RecordedTransaction" | "RecordedUnreadable" | "Applied", "transaction" | "name")
        | ("Finding", "rule")
        | ("IdleState", "name")
        | ("Topology", "online" | "isolated")
        | ("CpuInfo", "siblings" | "llc")
        | ("Host", "kernel" | "sysctls" | "rps_default_mask" | "netns") => Class::Keep,
        _ => Class::Words,
    }
}

/// Serialises to JSON with pseudonyms. `at` is the type and field of the value, as serde spells them.
struct Redactor<'a> {
    names: &'a mut Pseudonyms,
    at: (&'static str, &'static str),
}

impl Redactor<'_> {
    fn text(self, text: &str) -> String {
        match class(self.at) {
            Class::Keep => text.to_owned(),
            Class::Name(of) => self.names.name(of, text),
            Class::Path => self.names.path(text),
            Class::Mac => self.names.mac(text),
            Class::Opaque => self.names.opaque(text),
            Class::User | Class::Secret | Class::MacBytes | Class::Words => self.names.text(text),
        }
    }

    fn nested(&mut self) -> Redactor<'_> {
        Redactor { names: self.names, at: self.at }
    }
}

/// The serialised parts of a list, map or structure, and the variant that contains them.
struct Parts<'a, T> {
    redactor: Redactor<'a>,
    parts: T,
    key: Option<String>,
    variant: Option<&'static str>,
}

impl<'a, T: Default> Parts<'a, T> {
    fn new(redactor: Redactor<'a>, variant: Option<&'static str>) -> Self {
        Self { redactor, parts: T::default(), key: None, variant }
    }
}

impl<T> Parts<'_, T> {
    fn value(&mut self, value: &(impl Serialize + ?Sized)) -> Result<Value, Error> {
        value.serialize(self.redactor.nested())
    }

    fn field(&mut self, name: &'static str, value: &(impl Serialize + ?Sized)) -> Result<Value, Error> {
        let at = (self.redactor.at.0, name);
        value.serialize(Redactor { names: self.redactor.names, at })
    }
}

fn within(variant: Option<&'static str>, value: Value) -> Value {
    match variant {
        Some(variant) => Value::Object(Map::from_iter([(variant.to_owned(), value)])),
        None => value,
    }
}

impl Parts<'_, Vec<Value>> {
    fn list(mut self) -> Result<Value, Error> {
        let class = class(self.redactor.at);
        if matches!(class, Class::Secret | Class::MacBytes) {
            let bytes: Option<Vec<u8>> = self
                .parts
                .iter()
                .map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
                .collect();
            let bytes = bytes.ok_or_else(|| Error::custom("a secret is a list of bytes"))?;
            let bytes = match class {
                Class::MacBytes => self.redactor.names.mac_bytes(&bytes),
                _ => self.redactor.names.secret(&bytes),
            };
            self.parts = bytes.into_iter().map(Value::from).collect();
        }
        Ok(within(self.variant, Value::Array(self.parts)))
    }
}

macro_rules! numbers {
    ($($name:ident($type:ty)),+) => {$(
        fn $name(self, number: $type) -> Result<Value, Error> {
            Ok(Value::from(number))
        }
    )+};
}

impl<'a> Serializer for Redactor<'a> {
    type Ok = Value;
    type Error = Error;
    type SerializeSeq = Parts<'a, Vec<Value>>;
    type SerializeTuple = Parts<'a, Vec<Value>>;
    type SerializeTupleStruct = Parts<'a, Vec<Value>>;
    type SerializeTupleVariant = Parts<'a, Vec<Value>>;
    type SerializeMap = Parts<'a, Map<String, Value>>;
    type SerializeStruct = Parts<'a, Map<String, Value>>;
    type SerializeStructVariant = Parts<'a, Map<String, Value>>;

    numbers!(
        serialize_bool(bool),
        serialize_i8(i8),
        serialize_i16(i16),
        serialize_i32(i32),
        serialize_i64(i64)
    );
    numbers!(
        serialize_u8(u8),
        serialize_u16(u16),
        serialize_u64(u64),
        serialize_f32(f32),
        serialize_f64(f64)
    );

    fn serialize_u32(self, number: u32) -> Result<Value, Error> {
        let is_user = class(self.at) == Class::User;
        Ok(Value::from(if is_user { self.names.user(number) } else { number }))
    }

    fn serialize_i128(self, number: i128) -> Result<Value, Error> {
        Number::from_i128(number).map(Value::Number).ok_or_else(|| Error::custom("a number is too large"))
    }

    fn serialize_u128(self, number: u128) -> Result<Value, Error> {
        Number::from_u128(number).map(Value::Number).ok_or_else(|| Error::custom("a number is too large"))
    }

    fn serialize_char(self, character: char) -> Result<Value, Error> {
        self.serialize_str(character.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, text: &str) -> Result<Value, Error> {
        Ok(Value::String(self.text(text)))
    }

    /// The types that are serialised through `Display` are values of the model with their own syntax, such as
    /// CPUs, modes and scheduling classes.
    fn collect_str<T: std::fmt::Display + ?Sized>(self, value: &T) -> Result<Value, Error> {
        let text = value.to_string();
        let is_value = class(self.at) == Class::Words && !self.names.has_address(&text);
        if is_value { Ok(Value::String(text)) } else { self.serialize_str(&text) }
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<Value, Error> {
        bytes.serialize(self)
    }

    fn serialize_none(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, Error> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<Value, Error> {
        Ok(Value::from(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, Error> {
        // The content of a `Result` belongs to the same field. Any other variant determines the class of its
        // content.
        let at = if name == "Result" { self.at } else { (name, variant) };
        Ok(within(Some(variant), value.serialize(Redactor { names: self.names, at })?))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, Error> {
        Ok(Parts::new(self, None))
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, Error> {
        Ok(Parts::new(self, None))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, Error> {
        Ok(Parts::new(self, None))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, Error> {
        Ok(Parts::new(Redactor { names: self.names, at: (name, variant) }, Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, Error> {
        Ok(Parts::new(self, None))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Self::SerializeStruct, Error> {
        Ok(Parts::new(Redactor { names: self.names, at: (name, "") }, None))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, Error> {
        Ok(Parts::new(Redactor { names: self.names, at: (name, "") }, Some(variant)))
    }

    fn is_human_readable(&self) -> bool {
        true
    }
}

macro_rules! list {
    ($($trait:ident: $add:ident),+) => {$(
        impl $trait for Parts<'_, Vec<Value>> {
            type Ok = Value;
            type Error = Error;

            fn $add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                let value = self.value(value)?;
                self.parts.push(value);
                Ok(())
            }

            fn end(self) -> Result<Value, Error> {
                self.list()
            }
        }
    )+};
}

list!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

macro_rules! structure {
    ($($trait:ident),+) => {$(
        impl $trait for Parts<'_, Map<String, Value>> {
            type Ok = Value;
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Error> {
                let value = self.field(name, value)?;
                self.parts.insert(name.to_owned(), value);
                Ok(())
            }

            fn end(self) -> Result<Value, Error> {
                Ok(within(self.variant, Value::Object(self.parts)))
            }
        }
    )+};
}

structure!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for Parts<'_, Map<String, Value>> {
    type Ok = Value;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.key = Some(match self.value(key)? {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(is) => is.to_string(),
            _ => return Err(Error::custom("a key is text or a number")),
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        let value = self.value(value)?;
        let key = self.key.take().ok_or_else(|| Error::custom("a value without a key"))?;
        self.parts.insert(key, value);
        Ok(())
    }

    fn end(self) -> Result<Value, Error> {
        Ok(Value::Object(self.parts))
    }
}

#[cfg(test)]
mod test {
    use super::super::pseudonyms::KEY_BYTES;
    use super::*;

    #[test]
    fn users_homes_slices_containers_and_hosts_in_texts_do_not_survive() {
        const ID: &str = "3f1c9d0e7ab2446688aa00cc22ee44ff3f1c9d0e7ab2446688aa00cc22ee44ff";
        let text = include_str!("../../../netpolicy/tests/hosts/recording.json");
        let mut recording = Recording::parse(text.as_bytes()).expect("a recording");
        recording.made.host = "cache".to_owned();
        recording.host.processes[0].uid = 54_321;
        recording.host.processes[0].exe = "/home/rosalind/bin/worker".to_owned();
        let texts = [
            "user-54321.slice: user@54321.service of uid 54321, user 54321 (uid=54321, user: 54321)",
            "/run/user/54321/bus and /sys/fs/cgroup/user.slice/user-54321.slice/session-3.scope",
            "/home/54321/bin/worker, its group (gid 54321) can write to it, Uid:\t54321",
            "/home/rosalind/policy.toml: the user rosalind, rosalind@cache, backup@cache.service",
            &format!("cri-containerd-{ID}.scope, docker-{ID}, {}", &ID[..12]),
            &format!("/kubepods.slice/kubepods-pod{}.slice/{ID}", &ID[..32]),
        ];
        let texts = texts.map(str::to_owned);
        recording.log = texts.to_vec();
        recording.doctor.said = texts.to_vec();
        recording.last_measured = texts.to_vec();
        recording.proofs = Err(texts[0].clone());
        recording
            .host
            .unread
            .extend(texts.iter().map(|text| model::host::Unread { what: text.clone(), why: text.clone() }));
        let redacted = redacted(&recording, &mut Pseudonyms::new([3; KEY_BYTES])).expect("redacted");
        let text = redacted.to_text();
        for name in ["54321", "rosalind", "\"cache\"", "@cache", &ID[..12], &ID[..8]] {
            let around = text.find(name).map(|at| &text[at.saturating_sub(60)..at + 60]);
            assert_eq!(around, None, "{name}");
        }
        let user = redacted.host.processes[0].uid;
        assert!(
            redacted.log[0].starts_with(&format!("user-{user}.slice: user@{user}.")),
            "{}",
            redacted.log[0]
        );
        assert!(redacted.log[1].starts_with("/run/"), "{}", redacted.log[1]);
    }
}
