//! Parses text into a [`PolicyFile`]. Every text gives either a file or its mistakes.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use model::live::PartOfSecond;
use model::nic::NicRequest;
use model::steering::NotSteering;
use model::{
    Carries, CpuSet, DeliveryMode, FlagName, Glob, Growth, Holdback, Layout, Nanoseconds, OnMissed,
    OnReversed, Patterns, PolicyName, QdiscKind, SpeedBound,
};
use toml::Spanned;
use toml::de::{DeInteger, DeString, DeTable, DeValue};

use crate::key::{KEYS, KeyType, PolicyKey, SectionKind};
use crate::mistake::{LineIndex, Mistake, Mistakes};
use crate::nearest::nearest;
use crate::value::Value;

/// A parsed policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFile {
    /// The file's name, for messages.
    pub name: String,
    /// The text.
    pub text: String,
    /// The positions at which its lines start.
    pub lines: LineIndex,
    /// The sections, in the order of the text.
    pub sections: Vec<Section>,
}

/// A section: `[device.NAME]`, `[service.NAME]`, or `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The section's kind.
    pub kind: SectionKind,
    /// The section's name; empty for `[daemon]`.
    pub name: String,
    /// The position of the section's name in the text, in bytes.
    pub at: Range<usize>,
    /// The values, in the order of the text.
    pub asks: Vec<KeyValue>,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// Key and value.
    pub value: Value,
    /// The position of the value in the text, in bytes.
    pub at: Range<usize>,
}

/// The largest policy file, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// Checks that a device can have this name.
///
/// # Errors
/// If the kernel would reject the name. The error is a sentence. Kernel: 6.18, `net/core/dev.c`
/// `dev_valid_name()`.
pub fn device_name(text: &str) -> Result<(), String> {
    let never = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    let shown = text.replace(char::is_control, "\u{fffd}");
    if text.is_empty() {
        return Err(EMPTY_NAME.to_owned());
    }
    if text.len() > DEVICE_NAME_BYTES_MAX {
        return Err(format!(
            "`{shown}` is not a device name: the kernel's names have at most {DEVICE_NAME_BYTES_MAX} bytes"
        ));
    }
    if text == "." || text == ".." || text.contains(never) {
        return Err(format!("`{shown}` is not a device name: the kernel's names have no spaces, `/` or `:`"));
    }
    Ok(())
}

const EMPTY_NAME: &str = "the name is empty";

/// The longest device name, in bytes. Kernel: `include/uapi/linux/if.h` `IFNAMSIZ`, without the terminating
/// NUL.
const DEVICE_NAME_BYTES_MAX: usize = 15;

/// Parses a policy file.
///
/// # Errors
/// If the text has mistakes: all of them, each with its place.
pub fn parse(name: &str, text: &str) -> Result<PolicyFile, Mistakes> {
    let mut reader = Reader { name, text, lines: LineIndex::of(text), mistakes: Vec::new() };
    if text.len() > FILE_BYTES_MAX {
        reader.wrong(0..0, format!("the file is larger than {FILE_BYTES_MAX} bytes"), None);
        return Err(Mistakes(reader.mistakes));
    }
    let (table, broken) = DeTable::parse_recoverable(text);
    let mut within: Option<Range<usize>> = None;
    for error in &broken {
        let at = error.span().unwrap_or(0..0);
        if error.message() != DUPLICATE {
            reader.wrong(at, error.message(), None);
            continue;
        }
        // If a section occurs twice, so may its keys; report only the section.
        if within.as_ref().is_some_and(|section| section.contains(&at.start)) {
            continue;
        }
        let word = text.get(at.clone()).unwrap_or_default();
        if let Some(section) = section_at(text, at.start) {
            reader.wrong(
                at,
                format!("the file already has a section for `{word}`"),
                Some("write its keys under the first one".to_owned()),
            );
            within = Some(section);
        } else {
            reader.wrong(at, format!("`{word}` is given twice in this section"), None);
        }
    }
    // Invalid TOML is not evaluated, because the parser may recover in a way that the author did not mean.
    let mut sections = if broken.is_empty() { reader.file(table.get_ref()) } else { Vec::new() };
    if !reader.mistakes.is_empty() {
        reader.mistakes.sort_by_key(|m| (m.line, m.column));
        return Err(Mistakes(reader.mistakes));
    }
    for section in &mut sections {
        section.asks.sort_by_key(|asked| asked.at.start);
    }
    sections.sort_by_key(|section| section.at.start);
    Ok(PolicyFile { name: name.to_owned(), text: text.to_owned(), lines: reader.lines, sections })
}

/// The TOML parser's message for a duplicate key or section.
const DUPLICATE: &str = "duplicate key";

/// Returns the range of bytes from the header that contains this position to the next header; `None` if no
/// header contains the position.
fn section_at(text: &str, at: usize) -> Option<Range<usize>> {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let header = text[start..at].trim_start().starts_with('[');
    let end = text[at..].find("\n[").map_or(text.len(), |next| at + next);
    header.then_some(start..end)
}

/// Parses a setting from a command line: `rx-usecs=8`, `rx-gro=off`, `rps_cpus=0-3`.
///
/// # Errors
/// If the setting is invalid. The error is one line that says what is wrong, and names the most similar
/// setting or the text to write instead.
pub fn setting(text: &str) -> Result<NicRequest, String> {
    let Some((name, given)) = text.split_once('=') else {
        return Err(format!("`{text}` has no value: write NAME=VALUE, as in rx-usecs=8"));
    };
    let valid = names(SectionKind::Device, Some("settings"));
    let path = format!("settings.{name}");
    let Some(key) = KEYS.iter().find(|key| key.path == path) else {
        let help =
            did_you_mean(name, valid.iter().copied()).map_or_else(String::new, |help| format!("; {help}"));
        return Err(format!("`{name}` is not a setting of a device: expected {}{help}", valid.join(", ")));
    };
    let toml = match (&key.takes, given) {
        (KeyType::Switch(_), "on" | "true") => "true".to_owned(),
        (KeyType::Switch(_), "off" | "false") => "false".to_owned(),
        (KeyType::Number { .. } | KeyType::Switch(_), _) => given.to_owned(),
        _ => crate::spelling::toml_string(given),
    };
    let value = DeValue::parse(&toml).map_err(|_| format!("`{name}` takes {}", key.takes.example()))?;
    match value_of(key, value.get_ref()) {
        Ok(Value::Nic(request)) => Ok(request),
        Ok(_) => Err(format!("`{name}` is not a setting of a device")),
        Err((message, help)) => {
            Err(help.map_or_else(|| message.clone(), |help| format!("{message}; {help}")))
        }
    }
}

/// Parses a text, and collects its mistakes.
struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    lines: LineIndex,
    mistakes: Vec<Mistake>,
}

type Name<'i> = Spanned<DeString<'i>>;
type Raw<'i> = Spanned<DeValue<'i>>;

impl Reader<'_> {
    fn wrong(&mut self, at: Range<usize>, message: impl Into<String>, help: Option<String>) {
        self.mistakes.push(self.lines.mistake(self.name, self.text, at, message, help));
    }

    fn file(&mut self, table: &DeTable<'_>) -> Vec<Section> {
        let mut sections = Vec::new();
        for (word, value) in table {
            let Some(kind) = SectionKind::ALL.into_iter().find(|kind| kind.word() == word.get_ref()) else {
                let message = format!(
                    "`{}` is not a kind of section: expected device, service or daemon",
                    word.get_ref()
                );
                let near = did_you_mean(word.get_ref(), SectionKind::ALL.map(SectionKind::word));
                self.wrong(word.span(), message, near.or_else(or_later));
                continue;
            };
            let Some(named) = value.get_ref().as_table() else {
                let message = match kind {
                    SectionKind::Daemon => "`daemon` is a section: write [daemon]".to_owned(),
                    SectionKind::Device | SectionKind::Service => {
                        format!("`{}` needs a name: write [{0}.NAME]", kind.word())
                    }
                };
                self.wrong(value.span(), message, None);
                continue;
            };
            if kind == SectionKind::Daemon {
                let asks = self.section(kind, named);
                sections.push(Section { kind, name: String::new(), at: word.span(), asks });
                continue;
            }
            for (name, value) in named {
                let Some(keys) = value.get_ref().as_table() else {
                    let message = format!("`{}` is used as a {}'s name", name.get_ref(), kind.word());
                    let help = format!("the name comes first, as in [{}.NAME]", kind.word());
                    self.wrong(name.span(), message, Some(help));
                    continue;
                };
                let is_selected = keys.iter().any(|(key, _)| key.get_ref() == "match");
                self.section_name(kind, name, is_selected);
                let asks = self.section(kind, keys);
                sections.push(Section { kind, name: name.get_ref().to_string(), at: name.span(), asks });
            }
        }
        sections
    }

    /// Checks the name of a section. A device section must have the name of a device or a pattern for names;
    /// with a `match`, any name is valid.
    fn section_name(&mut self, kind: SectionKind, name: &Name<'_>, is_selected: bool) {
        let text = name.get_ref();
        let wrong = match kind {
            SectionKind::Device if is_selected => text.is_empty().then(|| EMPTY_NAME.to_owned()),
            SectionKind::Device if Glob::is_pattern(text) => {
                text.parse::<Glob>().err().map(|wrong| wrong.to_string())
            }
            SectionKind::Device => device_name(text).err(),
            SectionKind::Service => text.is_empty().then(|| EMPTY_NAME.to_owned()),
            SectionKind::Daemon => None,
        };
        if let Some(message) = wrong {
            self.wrong(name.span(), message, None);
        }
    }

    fn section(&mut self, kind: SectionKind, keys: &DeTable<'_>) -> Vec<KeyValue> {
        let mut asks = Vec::new();
        for (name, value) in keys {
            self.key(kind, None, name, value, &mut asks);
        }
        asks
    }

    /// Parses a key with its value, or a table of keys. Tables may be nested only as deeply as in the table
    /// of keys.
    fn key(
        &mut self,
        kind: SectionKind,
        table: Option<&str>,
        name: &Name<'_>,
        value: &Raw<'_>,
        asks: &mut Vec<KeyValue>,
    ) {
        let word = name.get_ref().as_ref();
        let path = table.map_or_else(|| word.to_owned(), |table| format!("{table}.{word}"));
        let inside = |key: &PolicyKey| key.path.strip_prefix(&path).is_some_and(|rest| rest.starts_with('.'));
        // If a table is only allowed in other sections, the message says so.
        let is_table = KEYS.iter().any(|key| inside(key) && (table.is_none() || key.of.contains(&kind)));
        match value.get_ref().as_table() {
            Some(inner) if inner.is_empty() && matches!(path.as_str(), "guard" | "goal") => {
                let help = format!(
                    "remove it, or give it a value, as in {path} = {{ {} = … }}",
                    first_name(kind, &path)
                );
                self.wrong(value.span(), format!("`{path}` is empty"), Some(help));
            }
            Some(inner) if is_table => {
                for (name, value) in inner {
                    self.key(kind, Some(&path), name, value, asks);
                }
            }
            None if is_table => {
                let example = first_name(kind, &path);
                self.wrong(
                    value.span(),
                    format!("`{path}` takes a table, as in {word} = {{ {example} = … }}"),
                    None,
                );
            }
            _ => asks.extend(self.asked(kind, table, name, value)),
        }
    }

    fn asked(
        &mut self,
        kind: SectionKind,
        table: Option<&str>,
        name: &Name<'_>,
        value: &Raw<'_>,
    ) -> Option<KeyValue> {
        let path =
            table.map_or_else(|| name.get_ref().to_string(), |table| format!("{table}.{}", name.get_ref()));
        let Some(key) = KEYS.iter().find(|key| key.path == path) else {
            let valid = names(kind, table);
            let place =
                table.map_or_else(|| format!("a {} section", kind.word()), |table| format!("`{table}`"));
            let message =
                format!("`{}` is not a key of {place}: expected {}", name.get_ref(), valid.join(", "));
            self.wrong(name.span(), message, did_you_mean(name.get_ref(), valid).or_else(or_later));
            return None;
        };
        if !key.of.contains(&kind) {
            let others: Vec<_> = key.of.iter().map(|kind| kind.word()).collect();
            self.wrong(name.span(), format!("`{path}` belongs to a {} section", others.join(" or ")), None);
            return None;
        }
        match value_of(key, value.get_ref()) {
            Ok(value_read) => Some(KeyValue { value: value_read, at: value.span() }),
            Err((message, help)) => {
                self.wrong(value.span(), message, help);
                None
            }
        }
    }
}

/// Returns the names that are valid in a section or in one of its tables: keys, and names of tables.
fn names(kind: SectionKind, table: Option<&str>) -> Vec<&'static str> {
    let mut names = Vec::new();
    for key in KEYS.iter().filter(|key| key.of.contains(&kind)) {
        let within = match table {
            Some(table) => key.path.strip_prefix(table).and_then(|rest| rest.strip_prefix('.')),
            None => Some(key.path),
        };
        let Some(within) = within else { continue };
        let name = within.split_once('.').map_or(within, |(table, _)| table);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns an example key of a table.
fn first_name(kind: SectionKind, table: &str) -> &'static str {
    names(kind, Some(table)).first().copied().unwrap_or("")
}

/// Returns the help for a word that resembles no known word: the file may be for a newer version.
fn or_later() -> Option<String> {
    Some(format!("this is netpolicy {}: a newer version may support it", env!("CARGO_PKG_VERSION")))
}

fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(word, candidates).map(|name| format!("did you mean `{name}`?"))
}

/// A message about a mistake in a value, and a help text.
type Wrong = (String, Option<String>);

/// Reads the value of a key.
fn value_of(key: &PolicyKey, raw: &DeValue<'_>) -> Result<Value, Wrong> {
    let (name, takes) = (key.path, &key.takes);
    match (takes, raw) {
        (KeyType::Number { min, max, make }, DeValue::Integer(integer)) => {
            number(name, integer, *min..=*max).map(make)
        }
        (KeyType::Switch(make), DeValue::Boolean(on)) => Ok(make(*on)),
        (KeyType::Switch(_), DeValue::String(text)) if matches!(text.as_ref(), "on" | "off") => {
            let help = format!("write {}", text.as_ref() == "on");
            Err((format!("`{name}` must be true or false"), Some(help)))
        }
        (KeyType::Sample(_), DeValue::Integer(integer)) => {
            Err(without_unit(name, integer, "milliseconds", "ms"))
        }
        (KeyType::Within { .. }, DeValue::Integer(integer)) => {
            Err(without_unit(name, integer, "seconds", "s"))
        }
        (KeyType::Span(_) | KeyType::PositiveSpan(_), DeValue::Integer(integer)) => {
            Err(without_unit(name, integer, "microseconds", "us"))
        }
        (KeyType::Patterns(make), DeValue::Array(list)) => {
            let texts: Option<Vec<&str>> = list.iter().map(|item| item.get_ref().as_str()).collect();
            let texts = texts.ok_or_else(|| (format!("`{name}` must be a list of quoted strings"), None))?;
            Patterns::of(texts).map(make).map_err(|wrong| named(name, wrong))
        }
        (_, DeValue::String(text)) => value_of_text(name, takes, text),
        _ => Err(wrong_type(name, takes, raw)),
    }
}

/// Parses a value in quotes.
fn value_of_text(name: &str, takes: &KeyType, text: &str) -> Result<Value, Wrong> {
    match takes {
        KeyType::Policy(make) => policy(text).map(make),
        KeyType::Delivery(make) => delivery(text).map(make),
        KeyType::Span(make) => span(name, text, false).map(make),
        KeyType::PositiveSpan(make) => span(name, text, true).map(make),
        KeyType::Within { least, most, make } => within(name, text, *least..=*most).map(make),
        KeyType::Sample(make) => {
            let sample = text.parse::<PartOfSecond>().map(make);
            sample.map_err(|wrong| (format!("`{name}`: {wrong}"), nearest_unit(text)))
        }
        KeyType::Cpus(make) => cpus(name, text, None).map(make),
        KeyType::CpusOrNone(make) if text == "none" => Ok(make(CpuSet::new())),
        KeyType::CpusOrNone(make) => cpus(name, text, Some("write \"none\"")).map(make),
        KeyType::Kthread(key) => (key.read)(text).map(Value::Kthread).map_err(unhelped),
        KeyType::Layout(make) => {
            let examples = ["one-to-one", "rx-per-core", "local-numa", "shared:2"];
            let layout = text.parse::<Layout>().map(make);
            layout.map_err(|wrong| (wrong.to_string(), did_you_mean(text, examples)))
        }
        KeyType::Patterns(_) if text.is_empty() => Err((format!("`{name}` is empty"), None)),
        KeyType::Patterns(make) => text.parse::<Patterns>().map(make).map_err(|wrong| named(name, wrong)),
        KeyType::Carries(make) => one_of(name, text, Carries::ALL, Carries::as_str).map(make),
        KeyType::OnMissed(make) => one_of(name, text, OnMissed::ALL, OnMissed::as_str).map(make),
        KeyType::OnReversed(make) => one_of(name, text, OnReversed::ALL, OnReversed::as_str).map(make),
        KeyType::Qdisc(make) => {
            one_of(name, text, QdiscKind::ALL.iter().copied(), QdiscKind::as_str).map(make)
        }
        KeyType::Growth(guarded) => {
            text.parse::<Growth>().map(|growth| Value::Guard(*guarded, growth)).map_err(unhelped)
        }
        KeyType::Holdback(make) => text.parse::<Holdback>().map(make).map_err(unhelped),
        KeyType::Speed(make) => text.parse::<SpeedBound>().map(make).map_err(unhelped),
        KeyType::PrivateFlags(make) => private_flags(name, text).map(make),
        KeyType::QueueSpans(make) => listed(name, text).map(make),
        KeyType::FlowRules(make) => listed(name, text).map(make),
        KeyType::Number { .. } | KeyType::Switch(_) => {
            Err(wrong_type(name, takes, &DeValue::String(text.into())))
        }
    }
}

fn wrong_type(name: &str, takes: &KeyType, raw: &DeValue<'_>) -> Wrong {
    (format!("`{name}` takes {}, not {}", takes.example(), described(raw)), None)
}

/// Creates a mistake without a help text.
fn unhelped(wrong: impl Display) -> Wrong {
    (wrong.to_string(), None)
}

/// Creates a mistake without a help text, and adds the name of the key to the message.
fn named(name: &str, wrong: impl Display) -> Wrong {
    (format!("`{name}`: {wrong}"), None)
}

fn without_unit(name: &str, integer: &DeInteger<'_>, units: &str, unit: &str) -> Wrong {
    let help = format!("in {units}, write \"{}{unit}\"", integer.as_str());
    (format!("`{name}` must be a span with a unit, in quotes"), Some(help))
}

fn number(name: &str, integer: &DeInteger<'_>, range: RangeInclusive<u32>) -> Result<u32, Wrong> {
    let number = u32::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok();
    let number = number.filter(|number| range.contains(number));
    number.ok_or_else(|| (format!("`{name}` must be from {} to {}", range.start(), range.end()), None))
}

fn policy(text: &str) -> Result<PolicyName, Wrong> {
    text.parse::<PolicyName>().map_err(|wrong| {
        let mode = text.parse::<DeliveryMode>().ok();
        let mode = mode.map(|mode| format!("for a delivery mode, write delivery = \"{mode}\""));
        (wrong.to_string(), mode.or_else(|| did_you_mean(text, PolicyName::ALL.map(PolicyName::as_str))))
    })
}

fn delivery(text: &str) -> Result<DeliveryMode, Wrong> {
    text.parse::<DeliveryMode>().map_err(|wrong| {
        let policy = text.parse::<PolicyName>().ok();
        let policy = policy.map(|policy| format!("for a policy, write policy = \"{policy}\""));
        (wrong.to_string(), policy.or_else(|| nearest_mode(text)))
    })
}

/// Parses a list of CPUs that is not empty.
fn cpus(name: &str, text: &str, help: Option<&str>) -> Result<CpuSet, Wrong> {
    let cpus = text.parse::<CpuSet>().map_err(unhelped)?;
    if cpus.is_empty() {
        return Err((format!("`{name}` names no CPU"), help.map(str::to_owned)));
    }
    Ok(cpus)
}

/// Parses a word from a list.
fn one_of<T: Copy>(
    name: &str,
    text: &str,
    all: impl IntoIterator<Item = T>,
    as_str: fn(T) -> &'static str,
) -> Result<T, Wrong> {
    let all: Vec<T> = all.into_iter().collect();
    let words = || all.iter().map(|one| as_str(*one));
    all.iter().copied().find(|one| as_str(*one) == text).ok_or_else(|| {
        let there = words().collect::<Vec<_>>().join(", ");
        (format!("`{name}` must be one of {there}"), did_you_mean(text, words()))
    })
}

/// Parses a time span in this range.
fn within(name: &str, text: &str, range: RangeInclusive<Nanoseconds>) -> Result<Nanoseconds, Wrong> {
    let span = span(name, text, true).map_err(|(message, help)| (message, in_seconds(text).or(help)))?;
    if !range.contains(&span) {
        return Err((format!("`{name}` is {} to {}", range.start(), range.end()), None));
    }
    Ok(span)
}

/// Parses a comma-separated list without duplicates.
fn listed<T: FromStr<Err = NotSteering> + PartialEq>(name: &str, text: &str) -> Result<Vec<T>, Wrong> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let one = part.trim().parse().map_err(|wrong| (format!("`{name}`: {wrong}"), None))?;
        if all.contains(&one) {
            return Err((format!("`{name}`: `{}` is given twice", part.trim()), None));
        }
        all.push(one);
    }
    Ok(all)
}

/// Parses `rx_striding_rq=on,tx_port_ts=off`.
fn private_flags(name: &str, text: &str) -> Result<Vec<(FlagName, bool)>, Wrong> {
    let mut flags: Vec<(FlagName, bool)> = Vec::new();
    for part in text.split(',') {
        let example = || Some("write \"rx_striding_rq=on,tx_port_ts=off\"".to_owned());
        let Some((flag, on)) = part.trim().rsplit_once('=') else {
            return Err((format!("`{name}`: `{part}` has neither on nor off"), example()));
        };
        let on = match on {
            "on" => true,
            "off" => false,
            other => return Err((format!("`{name}`: `{other}` is neither on nor off"), example())),
        };
        let Some(flag) = FlagName::new(flag) else {
            return Err((
                format!(
                    "`{name}`: `{flag}` is not a flag name: they have 1 to {} bytes",
                    FlagName::BYTES_MAX
                ),
                None,
            ));
        };
        if flags.iter().any(|(earlier, _)| *earlier == flag) {
            return Err((format!("`{name}`: `{flag}` is given twice"), None));
        }
        flags.push((flag, on));
    }
    Ok(flags)
}

fn span(name: &str, text: &str, positive: bool) -> Result<Nanoseconds, Wrong> {
    match text.parse::<Nanoseconds>() {
        Ok(span) if positive && span.is_zero() => Err((format!("`{name}` must be longer than 0"), None)),
        Ok(span) => Ok(span),
        Err(wrong) => Err((wrong.to_string(), nearest_unit(text))),
    }
}

/// Returns an example with the unit that was probably meant: `20sec` → `20s`.
fn nearest_unit(text: &str) -> Option<String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(split);
    let unit = match unit.trim().to_lowercase().as_str() {
        "usec" | "usecs" | "u" | "micros" | "microseconds" => "us",
        "msec" | "msecs" | "m" | "millis" | "milliseconds" => "ms",
        "nsec" | "nsecs" | "n" | "nanos" | "nanoseconds" => "ns",
        "sec" | "secs" | "second" | "seconds" => "s",
        "us" | "ms" | "ns" | "s" => return None,
        other => nearest(other, ["us", "ms", "ns"])?,
    };
    (!number.is_empty()).then(|| format!("did you mean \"{number}{unit}\"?"))
}

/// Converts minutes and hours to a span in seconds: `5m` → `300s`.
fn in_seconds(text: &str) -> Option<String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let seconds: u64 = match unit.trim() {
        "m" | "min" => 60,
        "h" => 3_600,
        _ => return None,
    };
    let seconds = number.parse::<u64>().ok()?.checked_mul(seconds)?;
    Some(format!("write \"{seconds}s\""))
}

/// Returns the delivery mode that was probably meant, with the given number.
fn nearest_mode(text: &str) -> Option<String> {
    let word = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = &text[word.len()..];
    let name = nearest(word, DeliveryMode::EACH.map(DeliveryMode::name))?;
    let mode = DeliveryMode::EACH.into_iter().find(|mode| mode.name() == name)?;
    Some(match (mode.time(), number.parse::<u32>()) {
        (Some(_), Ok(micros)) if micros > 0 => format!("did you mean `{name}{micros}`?"),
        _ => format!("did you mean `{mode}`?"),
    })
}

fn described(raw: &DeValue<'_>) -> String {
    match raw {
        DeValue::String(text) => format!("the text \"{}\"", text.escape_debug()),
        DeValue::Integer(integer) => format!("the number {integer}"),
        DeValue::Float(float) => format!("the number {float}"),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
