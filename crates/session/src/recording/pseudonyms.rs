//! Replaces the names, addresses and users of a host with stable pseudonyms.
//!
//! A pseudonym is a keyed hash. The same key gives the same pseudonyms in every recording, so recordings of
//! one host can be compared. Without the key, no one can test whether a pseudonym stands for a given name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use hmac::{Hmac, KeyInit, Mac};
use model::DeliveryMode;
use sha2::Sha256;

use super::addresses::{self, Flip};

/// The length of a key in bytes.
pub const KEY_BYTES: usize = 32;

/// The kind of object that a name belongs to. It determines the beginning of the pseudonym.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NameOf {
    Host,
    Device,
    Process,
    Service,
    Container,
    Namespace,
    File,
    Word,
}

impl NameOf {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Host => "host-",
            Self::Device => "dev-",
            Self::Process => "proc-",
            Self::Service => "svc-",
            Self::Container => "ctr-",
            Self::Namespace => "ns-",
            Self::File => "file-",
            Self::Word => "word-",
        }
    }
}

/// Computes the pseudonyms for one key.
#[derive(Debug)]
pub struct Pseudonyms {
    key: [u8; KEY_BYTES],
    /// All names found so far, for finding them in texts.
    names: BTreeMap<String, NameOf>,
    /// The length in bytes of the longest of them.
    longest_name: usize,
    users: BTreeMap<u32, u32>,
    /// The uids that are in use as pseudonyms.
    taken: BTreeSet<u32>,
    flips: BTreeMap<(u8, u32, u128), bool>,
}

/// The number of hexadecimal digits in a pseudonym. With 32 bits, one host in 10 000 has a collision among
/// 1000 names.
const DIGITS: usize = 8;
const DEVICE_DIGITS: usize = 6;

/// The uid that the kernel reports for users who have none in this namespace. Kernel:
/// `include/linux/highuid.h` `DEFAULT_OVERFLOWUID`.
const OVERFLOW_UID: u32 = 65_534;

/// The first uid to use as a pseudonym. It is above the uids that systems use.
const USERS_BEGIN: u32 = 100_000;
const USERS: u32 = 1_000_000;

/// The maximum number of results of the keyed function for addresses to remember; others are computed again.
const FLIPS_MAX: usize = 1 << 20;

/// The directories whose entries are the numbers of processes, threads, descriptors and interrupts.
const NUMBERED_DIRS: [&str; 6] = ["proc", "task", "fd", "fdinfo", "irq", "self"];

/// Names of directories that reveal nothing about a host.
const PUBLIC_DIRS: [&str; 29] = [
    "bin",
    "dev",
    "etc",
    "fd",
    "home",
    "lib",
    "lib64",
    "libexec",
    "local",
    "net",
    "netns",
    "ns",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "self",
    "share",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
    "netpolicy",
    "class",
    "journal",
    "policy.d",
    "recipe.d",
];

impl Pseudonyms {
    /// Creates the pseudonyms for this key.
    pub const fn new(key: [u8; KEY_BYTES]) -> Self {
        Self {
            key,
            names: BTreeMap::new(),
            longest_name: 0,
            users: BTreeMap::new(),
            taken: BTreeSet::new(),
            flips: BTreeMap::new(),
        }
    }

    fn hash(&self, kind: &str, what: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC accepts keys of any length");
        mac.update(kind.as_bytes());
        mac.update(&[0]);
        mac.update(what);
        mac.finalize().into_bytes().into()
    }

    fn digits(&self, kind: &str, what: &str) -> String {
        let mut text = String::new();
        for byte in &self.hash(kind, what.as_bytes())[..DIGITS / 2] {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Records that a text is a name, and returns its pseudonym. Names that the kernel or systemd gives to
    /// devices of any host are kept.
    pub(super) fn name(&mut self, of: NameOf, name: &str) -> String {
        let is_public = match of {
            NameOf::Device => is_common_device(name),
            NameOf::Namespace => name.strip_prefix("pid:").is_some_and(is_number),
            _ => false,
        };
        if name.is_empty() || is_public {
            return name.to_owned();
        }
        self.names.entry(name.to_owned()).or_insert(of);
        self.longest_name = self.longest_name.max(name.len());
        self.pseudonym(of, name)
    }

    fn pseudonym(&self, of: NameOf, name: &str) -> String {
        // Keep the number of a VLAN, and its relation to the device below it.
        if of == NameOf::Device
            && let Some((lower, vlan)) = name.rsplit_once('.')
            && !lower.is_empty()
            && vlan.len() <= 4
            && vlan.parse::<u16>().is_ok()
        {
            let lower = if is_common_device(lower) { lower.to_owned() } else { self.pseudonym(of, lower) };
            return format!("{lower}.{vlan}");
        }
        let digits = self.digits("name", name);
        // A device's name has at most 15 bytes, including the number of its VLAN.
        let length = if of == NameOf::Device { DEVICE_DIGITS } else { DIGITS };
        format!("{}{}", of.prefix(), &digits[..length])
    }

    /// Returns the pseudonym of a path: every component is replaced, except numbers and public directories.
    pub(super) fn path(&mut self, path: &str) -> String {
        let (mut parts, mut before) = (Vec::new(), "");
        for part in path.split('/') {
            parts.push(match part {
                "" | "." | ".." => part.to_owned(),
                public if PUBLIC_DIRS.contains(&public) => public.to_owned(),
                // Keep numbers such as those in `/run/user/1000` and `/proc/812/fd/7`. In other places, a
                // number can be the name of a user.
                number if is_digits(number) => match number.parse() {
                    Ok(uid) if before == "user" => self.user(uid).to_string(),
                    _ if NUMBERED_DIRS.contains(&before) => number.to_owned(),
                    _ => self.pseudonym(NameOf::File, number),
                },
                toml if toml.ends_with(".toml") => {
                    format!("{}.toml", self.pseudonym(NameOf::File, toml.trim_end_matches(".toml")))
                }
                name => match self.names.get(name) {
                    Some(of) => self.pseudonym(*of, name),
                    None => self.pseudonym(NameOf::File, name),
                },
            });
            before = part;
        }
        parts.join("/")
    }

    /// Returns the pseudonym of a user. Root and the kernel's overflow user (nobody) are kept.
    pub(super) fn user(&mut self, uid: u32) -> u32 {
        if [0, OVERFLOW_UID, u32::MAX].contains(&uid) {
            return uid;
        }
        if let Some(known) = self.users.get(&uid) {
            return *known;
        }
        let hash = self.hash("user", &uid.to_be_bytes());
        let mut pseudonym = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]) % USERS;
        while !self.taken.insert(USERS_BEGIN + pseudonym) {
            pseudonym = (pseudonym + 1) % USERS;
        }
        self.users.insert(uid, USERS_BEGIN + pseudonym);
        USERS_BEGIN + pseudonym
    }

    /// Returns the pseudonym of a MAC address, which is a locally administered address.
    pub(super) fn mac(&self, mac: &str) -> String {
        if mac.bytes().all(|byte| matches!(byte, b'0' | b':')) || mac == "ff:ff:ff:ff:ff:ff" {
            return mac.to_owned();
        }
        let hash = self.hash("mac", mac.as_bytes());
        let rest: Vec<String> = hash[..5].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("02:{}", rest.join(":"))
    }

    /// Returns the pseudonym of a MAC address in bytes.
    pub(super) fn mac_bytes(&self, mac: &[u8]) -> Vec<u8> {
        let text: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        let is = self.mac(&text.join(":"));
        is.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect()
    }

    /// Returns whether a text contains an address.
    pub(super) fn has_address(&mut self, text: &str) -> bool {
        text.split(|c: char| !is_of_chunk(c)).any(|part| self.address(part).is_some())
    }

    /// Returns the pseudonym of an IP address.
    pub(super) fn ip(&mut self, address: IpAddr) -> IpAddr {
        addresses::pseudonym(address, self)
    }

    /// Returns the pseudonym of a socket address, with the same port.
    pub(super) fn socket(&mut self, address: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.ip(address.ip()), address.port())
    }

    /// Returns the pseudonym of a secret, with the same length. A repeated pair of bytes, which makes a hash
    /// symmetric, is no secret and is kept.
    pub(super) fn secret(&self, secret: &[u8]) -> Vec<u8> {
        if secret.chunks(2).all(|pair| secret.starts_with(pair)) {
            return secret.to_vec();
        }
        let hash = self.hash("secret", secret);
        hash.iter().copied().cycle().take(secret.len()).collect()
    }

    /// Returns the pseudonym of an identifier.
    pub(super) fn opaque(&self, id: &str) -> String {
        self.digits("id", id)
    }

    /// Returns the pseudonym of a text: only words of netpolicy's own messages, numbers and pseudonyms
    /// remain. Known names are replaced where they are whole words, longer names first.
    pub(super) fn text(&mut self, text: &str) -> String {
        // The text may be a socket address with a scope, which would be split below: `[fe80::1%2]:546`.
        if let Some(address) = self.address(text) {
            return address;
        }
        let mut result = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let chunk_end = rest.find(|c: char| !is_of_chunk(c)).unwrap_or(rest.len());
            let chunk = rest[..chunk_end].trim_end_matches(['.', ':', '-']);
            // Look for an address before a name, because a process may be called `10`.
            if !result.ends_with(is_of_word)
                && let Some(replaced) = self.address(chunk)
            {
                result.push_str(&replaced);
                rest = &rest[chunk.len()..];
                continue;
            }
            if let Some(name) = self.known_name(rest) {
                let name = name.to_owned();
                let of = self.names[&name];
                result.push_str(&self.pseudonym(of, &name));
                rest = &rest[name.len()..];
                continue;
            }
            if !is_of_word(first) && first != '/' && first != ':' {
                result.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
            if chunk.starts_with('/') && chunk.len() > 1 && !result.ends_with(is_of_word) {
                let path = chunk.split(':').next().unwrap_or_default();
                result.push_str(&self.path(path));
                rest = &rest[path.len()..];
                continue;
            }
            let word_end = rest.find(|c: char| !is_of_word(c)).unwrap_or(rest.len());
            if word_end == 0 {
                result.push(first);
                rest = &rest[first.len_utf8()..];
                continue;
            }
            let word = &rest[..word_end];
            let before = &text[..text.len() - rest.len()];
            match word.parse() {
                Ok(uid) if is_digits(word) && names_a_user(before) => {
                    result.push_str(&self.user(uid).to_string());
                }
                _ if is_number(word) || is_own_word(word) || is_common_device(word) => result.push_str(word),
                _ => result.push_str(&self.pseudonym(NameOf::Word, word)),
            }
            rest = &rest[word_end..];
        }
        result
    }

    /// Returns the longest known name with which this text begins, if a word ends after it.
    fn known_name(&self, text: &str) -> Option<&str> {
        let longest = text.len().min(self.longest_name).min(NAME_BYTES_MAX);
        let ends = (1..=longest).rev().filter(|end| text.is_char_boundary(*end));
        let is_whole =
            |end: &usize| !text[*end..].starts_with(is_of_word) || !text[..*end].ends_with(is_of_word);
        let mut names = ends.filter(is_whole).filter_map(|end| self.names.get_key_value(&text[..end]));
        names.next().map(|(name, _)| name.as_str())
    }

    /// Returns the pseudonym of an address that may have a port or prefix length; `None` for other text.
    fn address(&mut self, text: &str) -> Option<String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some(self.ip(address).to_string());
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(self.socket(address).to_string());
        }
        if let Some((address, length)) = text.split_once('/')
            && let Ok(address) = address.parse::<IpAddr>()
            && length.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Some(format!("{}/{length}", self.ip(address)));
        }
        let mut bytes = text.split(':');
        let is_mac = bytes.clone().count() == 6
            && bytes.all(|byte| byte.len() == 2 && u8::from_str_radix(byte, 16).is_ok());
        is_mac.then(|| self.mac(&text.to_ascii_lowercase()))
    }
}

impl Flip for Pseudonyms {
    fn flips(&mut self, family: u8, length: u32, bits: u128) -> bool {
        if let Some(known) = self.flips.get(&(family, length, bits)) {
            return *known;
        }
        let mut what = vec![family];
        what.extend(length.to_be_bytes());
        what.extend(bits.to_be_bytes());
        let flips = self.hash("address", &what)[0] & 1 == 1;
        if self.flips.len() < FLIPS_MAX {
            self.flips.insert((family, length, bits), flips);
        }
        flips
    }
}

/// The maximum length, in bytes, of a name to search for in texts.
const NAME_BYTES_MAX: usize = 256;

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_of_chunk(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '/' | '-' | '@' | '+' | '%')
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a number after this text is a user, or a group, which by default has the number of its
/// user: `uid 1000`, `user-1000.slice`, `user@1000.service`.
fn names_a_user(before: &str) -> bool {
    let word = before.trim_end_matches([' ', '\t', '-', '@', '=', ':']);
    let name = word.rsplit(|c: char| !is_of_word(c)).next().unwrap_or_default().to_ascii_lowercase();
    word.len() < before.len()
        && ["uid", "euid", "ruid", "suid", "fsuid", "loginuid", "gid", "egid", "user", "users"]
            .contains(&name.as_str())
}

/// Returns whether a word is a number, possibly with a unit, or a hexadecimal number after `0x`.
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix("0x").unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return true;
    }
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
    unit.len() < word.len()
        && ["", "ns", "us", "µs", "ms", "s", "m", "h", "Z", "k", "KiB", "MiB"].contains(&unit)
}

/// Returns whether a pattern is for names that the kernel or systemd gives to devices.
pub(super) fn is_common_pattern(pattern: &str) -> bool {
    let plain = pattern.replace(['*', '?'], "0");
    ["*", "e*", "en*", "eth*", "ens*", "enp*", "eno*"].contains(&pattern) || is_common_device(&plain)
}

/// Returns whether the kernel or systemd gives this name to devices of any host. A name that contains a MAC
/// address (`enx…`) is not common.
fn is_common_device(name: &str) -> bool {
    let name = match name.rsplit_once('.') {
        Some((lower, vlan)) if !vlan.is_empty() && vlan.bytes().all(|byte| byte.is_ascii_digit()) => lower,
        _ => name,
    };
    if name == "lo" {
        return true;
    }
    const NUMBERED: [&str; 18] = [
        "eth", "wlan", "bond", "br", "tun", "tap", "dummy", "ifb", "ib", "usb", "wwan", "docker", "virbr",
        "eno", "ens", "team", "vlan", "veth",
    ];
    let is_numbered = |prefix: &&str| {
        let number = name.strip_prefix(*prefix).unwrap_or_default();
        (1..=4).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    if NUMBERED.iter().any(is_numbered) {
        return true;
    }
    // systemd.net-naming-scheme(7): [P]p<bus>s<slot>[f<function>][n<port>|np<port>][d<device>]
    let Some(rest) = ["enp", "wlp", "ens", "eno", "enP"].iter().find_map(|prefix| name.strip_prefix(prefix))
    else {
        return false;
    };
    rest.starts_with(|c: char| c.is_ascii_digit())
        && rest
            .split(|c: char| c.is_ascii_digit())
            .all(|letters| matches!(letters, "" | "s" | "f" | "n" | "np" | "d" | "p" | "v"))
}

/// The words of netpolicy's own messages, which `build.rs` collects from the source.
const OWN_WORDS: &str = include_str!(concat!(env!("OUT_DIR"), "/own_words.txt"));

/// The largest error number whose message is known. Kernel: `include/uapi/asm-generic/errno.h` `EHWPOISON`.
const ERRNO_MAX: i32 = 133;

/// Words that a number may follow, such as the beginnings of interrupt names.
const NUMBERED_WORDS: [&str; 10] =
    ["if", "virtio", "comp", "TxRx", "rx", "tx", "cpu", "queue", "input", "output"];

/// Returns whether a word is from netpolicy's messages or the kernel's error messages, or is a policy or
/// delivery mode.
fn is_own_word(word: &str) -> bool {
    static WORDS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let errors = (1..=ERRNO_MAX).map(|number| std::io::Error::from_raw_os_error(number).to_string());
        let errors = errors.collect::<Vec<_>>().join(" ");
        let errors = errors.split(|c: char| !is_of_word(c)).filter(|word| !is_number(word));
        OWN_WORDS.lines().chain(errors).map(str::to_lowercase).collect()
    });
    let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
    WORDS.contains(&word.to_lowercase())
        || stem.len() < word.len() && NUMBERED_WORDS.contains(&stem)
        || word.parse::<DeliveryMode>().is_ok()
}

#[cfg(test)]
mod test {
    use super::*;

    fn pseudonyms() -> Pseudonyms {
        Pseudonyms::new([7; KEY_BYTES])
    }

    #[test]
    fn a_name_in_a_text_is_found_as_a_whole_word_and_the_longest_first() {
        let mut some = pseudonyms();
        let (cache, long) = (some.name(NameOf::Process, "cache"), some.name(NameOf::Process, "cache-eu"));
        let said = some.text("cache-eu[812] epoll 7: cache, caches; 10.1.2.3:80");
        assert!(said.starts_with(&format!("{long}[812] epoll 7: {cache}, word-")), "{said}");
        assert!(!said.contains("10.1.2.3") && said.ends_with(":80"), "{said}");
    }

    #[test]
    fn a_socket_address_stays_one_whatever_processes_are_called() {
        let mut of = pseudonyms();
        for name in [":", "::", "[", "10", "10.9", "10.9.9.1", "fe80"] {
            of.name(NameOf::Process, name);
        }
        for address in ["[fe80::1%2]:4444", "10.9.9.1:80", "[::]:22", "[2001:db8::7]:53", "10.9.9.1"] {
            let is = of.text(address);
            let parses = is.parse::<SocketAddr>().is_ok() || is.parse::<IpAddr>().is_ok();
            assert!(parses, "{address}: {is}");
        }
        assert!(!of.text("connected to 10.9.9.1:80").contains("10.9.9.1"));
        assert!(!of.text("connected to 10.9.9.1:80").contains("proc-"));
    }

    #[test]
    fn what_is_neither_a_message_nor_a_number_does_not_survive() {
        let mut some = pseudonyms();
        for secret in [
            "blackbird",
            "blackbird.example.org",
            "db-7.prod",
            "/srv/blackbird/run",
            "52:54:00:12:34:56",
            "2001:db8::7",
        ] {
            let said = some.text(&format!("the device {secret}: 200us"));
            assert!(!said.contains(secret) && !said.contains("blackbird"), "{said}");
            assert!(said.starts_with("the device ") && said.ends_with(": 200us"), "{said}");
        }
    }

    #[test]
    fn pseudonyms_are_stable_differ_by_key_and_keep_what_every_host_has() {
        let one = pseudonyms().name(NameOf::Service, "shop");
        assert_eq!(one, pseudonyms().name(NameOf::Service, "shop"));
        assert_ne!(one, Pseudonyms::new([8; KEY_BYTES]).name(NameOf::Service, "shop"));
        let mut some = pseudonyms();
        for kept in ["lo", "eth0", "enp3s0f1np1", "ens5", "bond0", "eth0.100", "enP2p1s0"] {
            assert_eq!(some.name(NameOf::Device, kept), kept);
        }
        for other in ["enx525400123456", "wan-acme", "ethacme", "acme.100", "enpacme"] {
            let pseudonym = some.name(NameOf::Device, other);
            assert!(pseudonym.starts_with("dev-") && pseudonym.len() <= 15, "{other} {pseudonym}");
        }
        assert!(some.name(NameOf::Device, "acme.100").ends_with(".100"));
        assert_eq!((some.user(0), some.user(33) == 33, some.user(33) == some.user(33)), (0, false, true));
        assert_eq!(some.secret(&[0x6d, 0x5a, 0x6d, 0x5a]), [0x6d, 0x5a, 0x6d, 0x5a]);
        assert_ne!(some.secret(&[1, 2, 3, 4]), [1, 2, 3, 4]);
        assert_eq!(
            some.path("/usr/sbin/acmed").rsplit_once('/').map(|(dir, _)| dir.to_owned()),
            Some("/usr/sbin".to_owned())
        );
    }
}
