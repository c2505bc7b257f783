//! Checks whether a rule or an action was installed as it was sent.
//!
//! The kernel ignores attributes that it does not know or was built without, but acknowledges the message. If
//! it ignores a match, the rule matches more packets. The kernel's echo of a message (`NLM_F_ECHO`) shows the
//! result.
//!
//! Whether an attribute is ignored depends on the attribute and not on its value, except for flags. So one
//! message of each [`shape()`] is compared and represents the others of that shape.
//!
//! Kernel: 6.18, `lib/nlattr.c` `__nla_validate_parse()` skips attributes above the last known one unless it
//! is strict; `net/sched/cls_u32.c` has `TCA_U32_MARK` under `CONFIG_CLS_U32_MARK`.

use crate::action::{Action, Kind};
use crate::classifier::u32::Part;
use crate::classifier::{Classifier, flower_field::Field};
use netlink::attr::{AttrBuf, Attrs, Malformed};

use crate::command::{ACT_TAB, Filter, KIND, OPTIONS, StandaloneActions, message};
use crate::fingerprint::Fingerprinter;

/// Sizes of `struct tcmsg` and of `struct tcamsg`.
const TCMSG_BYTES: usize = 20;
const TCAMSG_BYTES: usize = 4;

/// How deep attributes are traversed: rule, list of actions, action, its options.
const DEPTH_MAX: usize = 4;

/// `TCA_U32_SEL`, whose first byte has flags, and `TCA_U32_MARK`.
const U32_SEL: u16 = 5;
const U32_MARK: u16 = 10;

/// A rule or action that the kernel altered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Altered {
    /// The ignored option and the reason, as text.
    pub words: String,
    /// The message that removes the altered object; `None` if that is not possible.
    pub removal: Option<Removal>,
}

/// A complete message that removes a rule or an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal(AttrBuf);

impl Removal {
    /// The bytes of the message.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A hash of the attributes of a message, including the values of flags; `None` for a message that creates
/// neither a rule nor an action.
pub fn shape(kind: u16, body: &[u8]) -> Option<u64> {
    let mut shape = Shape(u64::from(kind));
    let attrs = match kind {
        message::NEW_FILTER => body.get(TCMSG_BYTES..)?,
        message::NEW_ACTION => body.get(TCAMSG_BYTES..)?,
        _ => return None,
    };
    shape.add_rule(attrs, kind == message::NEW_ACTION);
    Some(shape.0)
}

/// A running hash: FNV-1a over whole words.
struct Shape(u64);

impl Shape {
    fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.add(u64::from(*byte));
        }
    }

    fn add_rule(&mut self, bytes: &[u8], of_actions: bool) {
        let mut kind: &[u8] = &[];
        for attr in Attrs::new(bytes).flatten() {
            self.add(u64::from(attr.number));
            match attr.number {
                ACT_TAB if of_actions => self.add_actions(attr.payload),
                KIND => {
                    self.add_bytes(attr.payload);
                    kind = attr.payload;
                }
                OPTIONS => self.add_options(attr.payload, kind, 1),
                _ => {}
            }
        }
    }

    fn add_actions(&mut self, bytes: &[u8]) {
        for action in Attrs::new(bytes).flatten() {
            self.add(u64::from(action.number));
            self.add_rule(action.payload, false);
        }
    }

    /// Adds the numbers and lengths of attributes, and the nested attributes of some.
    fn add_options(&mut self, bytes: &[u8], kind: &[u8], depth: usize) {
        for attr in Attrs::new(bytes).flatten() {
            self.add(u64::from(attr.number) << 32 | attr.payload.len() as u64);
            if is_list_of_actions(attr.payload) {
                self.add_actions(attr.payload);
            } else if kind == b"flower\0" && is_nest_of_flower(attr.number) && depth < DEPTH_MAX {
                self.add_options(attr.payload, kind, depth + 1);
            } else {
                self.add_bytes(flags_of(kind, attr.number, attr.payload));
            }
        }
    }
}

/// Whether a payload is a list of actions: its first attribute starts with the name of a kind.
fn is_list_of_actions(payload: &[u8]) -> bool {
    let first = |bytes| Attrs::new(bytes).next().and_then(Result::ok);
    let Some(action) = first(payload).filter(|action| action.number == 1) else { return false };
    let kind = first(action.payload).filter(|kind| kind.number == KIND);
    kind.and_then(|kind| kind.text().ok()).is_some_and(|kind| Kind::NAMES.contains(&kind))
}

/// Whether an attribute of flower is nested: tunnel options with their masks, and MPLS labels.
///
/// Kernel: 6.18, `TCA_FLOWER_KEY_ENC_OPTS`, `_MASK`, `TCA_FLOWER_KEY_MPLS_OPTS`.
const fn is_nest_of_flower(number: u16) -> bool {
    matches!(number, 84 | 85 | 99)
}

/// The bytes of an attribute that are flags, of which a kernel may know only some.
fn flags_of<'a>(kind: &[u8], number: u16, payload: &'a [u8]) -> &'a [u8] {
    let from = |at: usize| payload.get(at..).unwrap_or(&[]);
    match (kind, number) {
        // TCA_FLOWER_FLAGS, TCA_FLOWER_KEY_FLAGS, its mask, TCA_FLOWER_KEY_CT_STATE, its mask, TCA_FLOWER_KEY_ENC_FLAGS, its mask
        (b"flower\0", 22 | 47 | 48 | 91 | 92 | 109 | 110) => payload,
        (b"u32\0", U32_SEL) => payload.get(..1).unwrap_or(&[]),
        // TCA_SKBEDIT_FLAGS, TCA_CT_ACTION
        (b"skbedit\0", 9) | (b"ct\0", 3) => payload,
        // The fields after struct tc_gen in TCA_CSUM_PARMS and TCA_SKBMOD_PARMS.
        (b"csum\0", 1) | (b"skbmod\0", 2) => from(20),
        _ => &[],
    }
}

/// The difference between the rule or action in a sent message and in its echo; `None` if they are equal, or
/// of a kind that is not fully known.
///
/// # Errors
/// If an attribute is malformed.
pub fn altered(kind: u16, sent: &[u8], echo: &[u8]) -> Result<Option<Altered>, Malformed> {
    match kind {
        message::NEW_FILTER => altered_rule(sent, echo),
        message::NEW_ACTION => altered_actions(sent, echo),
        _ => Ok(None),
    }
}

/// The rule without the parts that a kernel may ignore for lack of a config option; `None` if it has no such
/// parts.
pub fn diminished(rule: &Filter) -> Option<Filter> {
    let is_mark = |part: &Part| matches!(part, Part::Mark(..));
    let Classifier::U32(u32) = &rule.classifier else { return None };
    u32.parts.iter().any(is_mark).then(|| {
        let mut rule = rule.clone();
        if let Classifier::U32(u32) = &mut rule.classifier {
            u32.parts.retain(|part| !is_mark(part));
        }
        rule
    })
}

fn altered_rule(sent: &[u8], echo: &[u8]) -> Result<Option<Altered>, Malformed> {
    let (mut wanted, mut stands) = (Filter::default(), Filter::default());
    if wanted.decode_request(sent)?.is_none() || stands.decode(echo)?.is_none() {
        return Ok(None);
    }
    let group = stands.group();
    let removal = {
        let mut out = AttrBuf::new();
        stands.encode_removal(0, 0, &mut out);
        (stands.handle != 0 && stands.priority != 0).then_some(Removal(out))
    };
    // Values that the kernel chose because the line does not give them.
    (wanted.handle, wanted.protocol) = (stands.handle, stands.protocol);
    if let (Classifier::U32(wanted), Classifier::U32(stands)) = (&mut wanted.classifier, &stands.classifier) {
        (wanted.table, wanted.root) = (stands.table, stands.root);
    }
    let mut maker = Fingerprinter::default();
    if maker.of(&wanted, group, false) == maker.of(&stands, group, false) {
        return Ok(None);
    }
    let name = wanted.classifier.kind().unwrap_or("");
    let ignored = ignored_options(name, options(sent, TCMSG_BYTES)?, options(echo, TCMSG_BYTES)?);
    // The kernel may also change a value: it drops tunnel options that the version does not have.
    if ignored.is_empty() {
        return Ok(None);
    }
    Ok(Some(Altered { words: describe(name, ignored), removal }))
}

fn altered_actions(sent: &[u8], echo: &[u8]) -> Result<Option<Altered>, Malformed> {
    let (mut wanted, mut stands) = (Vec::new(), Vec::new());
    for (body, actions) in [(sent, &mut wanted), (echo, &mut stands)] {
        let Some(list) = Attrs::after(TCAMSG_BYTES, body)?.find(ACT_TAB)? else { return Ok(None) };
        if Action::decode_list(&list, actions)?.is_none() {
            return Ok(None);
        }
    }
    let others: Vec<String> = wanted
        .iter()
        .zip(&stands)
        .filter(|(wanted, stands)| is_other(wanted, stands))
        .map(|(wanted, _)| of_action(wanted))
        .collect();
    if others.is_empty() {
        return Ok(None);
    }
    let made = stands.iter().map(|action| (action.kind.name().to_owned(), action.kind.instance().index));
    let mut out = AttrBuf::new();
    StandaloneActions::Removed(made.collect()).encode(0, 0, &mut out);
    Ok(Some(Altered { words: describe("", others), removal: Some(Removal(out)) }))
}

fn is_other(wanted: &Action, stands: &Action) -> bool {
    let (mut wanted, mut stands) = (wanted.clone(), stands.clone());
    wanted.canonicalize();
    stands.canonicalize();
    // Actions have the offload flags of their rule, and a dump reports them for each.
    (wanted.skip_hw, wanted.skip_sw) = (stands.skip_hw, stands.skip_sw);
    wanted != stands
}

fn of_action(action: &Action) -> String {
    format!("an option of action {}", action.kind.name())
}

/// `TCA_OPTIONS` of a message.
fn options(body: &[u8], header: usize) -> Result<Attrs<'_>, Malformed> {
    Ok(Attrs::after(header, body)?.find(OPTIONS)?.map_or_else(Attrs::default, |options| options.nested()))
}

/// The names of options that were sent but are missing in the echo.
fn ignored_options(kind: &str, sent: Attrs<'_>, echo: Attrs<'_>) -> Vec<String> {
    let absent = sent.flatten().filter(|attr| !echo.flatten().any(|other| other.number == attr.number));
    absent.filter_map(|attr| name_of(kind, attr.number)).collect()
}

/// The name of an option, with the missing config option if it is known; `None` for options that a dump never
/// contains, or that are only masks.
fn name_of(kind: &str, number: u16) -> Option<String> {
    match kind {
        "u32" if number == U32_MARK => {
            Some("`match mark` (the kernel was built without CONFIG_CLS_U32_MARK)".to_owned())
        }
        "flower" => Field::of_attr(number).map(|field| format!("`{}`", field.keyword())),
        _ => None,
    }
}

fn describe(kind: &str, mut ignored: Vec<String>) -> String {
    ignored.dedup();
    let of = if kind.is_empty() { String::new() } else { format!(" of {kind}") };
    match &ignored[..] {
        [] => format!(
            "the kernel created a different rule{of} from this line: it ignores an option that it does not know"
        ),
        all => format!("the kernel ignores {}{of}", all.join(", ")),
    }
}

#[cfg(test)]
mod test {
    use crate::Table;

    use super::*;
    use crate::Batch;

    /// The type and the body of the message of a line.
    fn message(line: &str) -> (u16, Vec<u8>) {
        let mut table = Table::of([("d0".to_owned(), model::IfIndex(1))]);
        let mut batch = Batch::new(line.as_bytes());
        let (_, command) = batch.next_command(&mut table).expect("read").expect("a command");
        let mut out = AttrBuf::new();
        command.encode(1, 0, &mut out);
        let bytes = out.into_bytes();
        (u16::from_ne_bytes([bytes[4], bytes[5]]), bytes[16..].to_vec())
    }

    /// The kernel's echo of a line, with the values that it chose.
    fn echo(line: &str) -> Vec<u8> {
        let (_, mut body) = message(line);
        body[8..12].copy_from_slice(&0x8000_0800_u32.to_ne_bytes());
        body
    }

    const MARKED: &str =
        "filter add dev d0 ingress protocol ip prio 6 u32 match mark 0x6 0xffff match u32 0 0 flowid 1:6\n";

    #[test]
    fn a_match_that_the_kernel_ignores_is_named_with_the_missing_option() {
        let without = MARKED.replace("match mark 0x6 0xffff ", "");
        let (kind, sent) = message(MARKED);
        let altered = altered(kind, &sent, &echo(&without)).expect("read").expect("another rule");
        assert_eq!(
            altered.words,
            "the kernel ignores `match mark` (the kernel was built without CONFIG_CLS_U32_MARK) of u32"
        );
        assert!(altered.removal.is_some());
        assert_eq!(super::altered(kind, &sent, &echo(MARKED)), Ok(None));
    }

    #[test]
    fn a_field_of_flower_that_the_kernel_ignores_is_named() {
        let line = "filter add dev d0 ingress protocol 802.1Q prio 6 flower num_of_vlans 2 action drop\n";
        let (kind, sent) = message(line);
        let altered = altered(kind, &sent, &echo(&line.replace("num_of_vlans 2 ", "")))
            .expect("read")
            .expect("another");
        assert_eq!(altered.words, "the kernel ignores `num_of_vlans` of flower");
    }

    #[test]
    fn rules_that_differ_in_values_have_one_shape_and_others_have_their_own() {
        let shape_of = |line: &str| {
            let (kind, body) = message(line);
            shape(kind, &body).expect("a rule")
        };
        let one = "filter add dev d0 ingress protocol ip prio 1 flower dst_ip 10.0.0.1 action drop\n";
        for same in ["10.0.0.2", "10.0.0.9"] {
            assert_eq!(shape_of(one), shape_of(&one.replace("10.0.0.1", same)));
        }
        let others = [
            one.replace("drop", "csum ip"),
            one.replace("drop", "csum ip and tcp"),
            one.replace("drop", "drop cookie 01"),
            one.replace("dst_ip 10.0.0.1", "ip_flags frag"),
            one.replace("dst_ip 10.0.0.1", "ip_flags firstfrag"),
            one.replace("dst_ip", "src_ip"),
            MARKED.to_owned(),
            MARKED.replace("match mark 0x6 0xffff ", ""),
            "action add action drop index 3\n".to_owned(),
        ];
        let shapes: std::collections::BTreeSet<u64> =
            others.iter().chain([&one.to_owned()]).map(|line| shape_of(line)).collect();
        assert_eq!(shapes.len(), others.len() + 1);
        let (kind, body) = message("filter del dev d0 ingress prio 1\n");
        assert_eq!(shape(kind, &body), None);
    }
}
