//! Cookies that identify rules.
//!
//! The kernel stores a user-defined cookie of 16 bytes with an action and includes it even in a terse dump,
//! which contains little else. If a rule was loaded with the digest of its own content as cookie, a terse
//! dump is enough to recognise it.

use crate::action::{Action, Cookie};
use crate::classifier::{Classifier, Offload};
use netlink::attr::{Attrs, Malformed};

use crate::command::{Filter, Group, Hook};
use crate::fingerprint::{Fingerprint, Fingerprinter};

/// Assigns cookies to rules, reusing its memory.
#[derive(Debug, Default)]
pub struct Marker(Fingerprinter);

impl Marker {
    /// Sets a cookie that identifies the rule on the rule's last action. Returns false without setting it if
    /// the rule's kind has no terse dump, or if the rule has no actions, its own cookies, or actions that may
    /// be shared.
    ///
    /// In a batch file, a cookie applies to all actions after it, so only the last action can have a separate
    /// cookie.
    pub fn mark(&mut self, rule: &mut Filter) -> bool {
        let may = |action: &Action| action.cookie.is_none() && action.kind.instance().index == 0;
        if !has_terse_dump(rule) || !rule.actions.iter().all(may) {
            return false;
        }
        let (_, content) = self.0.of(rule, rule.group(), false);
        let Some(last) = rule.actions.last_mut() else { return false };
        last.cookie = Some(Cookie::from(content));
        true
    }
}

/// Whether a dump can identify such rules by handle and cookie.
///
/// Kernel: 6.18, only `net/sched/cls_flower.c` has `terse_dump`.
pub const fn has_terse_dump(rule: &Filter) -> bool {
    matches!(rule.classifier, Classifier::Flower(_)) && !rule.is_chain
}

/// Returns the rule without netpolicy's cookie, if it has such a cookie and has not changed since the cookie
/// was created.
pub(crate) fn without_own(rule: &Filter, maker: &mut Fingerprinter) -> Option<Filter> {
    let cookie = rule.actions.last()?.cookie?;
    let mut plain = rule.clone();
    plain.actions.last_mut()?.cookie = None;
    // Also try priority 0: the cookie was created before the kernel chose a priority.
    [rule.group(), Group { priority: 0, ..rule.group() }]
        .into_iter()
        .any(|group| Cookie::from(maker.of(&plain, group, false).1) == cookie)
        .then_some(plain)
}

/// The contents of a rule in a terse dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terse {
    /// The group that the rule belongs to.
    pub group: Group,
    /// The Ethernet protocol, host order.
    pub protocol: u16,
    /// The handle.
    pub handle: u32,
    /// The offload state.
    pub offload: Offload,
    /// The cookie of the rule's last action.
    pub cookie: Option<Cookie>,
}

impl Terse {
    /// Decodes the body of a rule in a terse dump of this hook; returns `None` unless it is a flower rule.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn decode(hook: Hook, body: &[u8]) -> Result<Option<Self>, Malformed> {
        /// `TCA_KIND`, `TCA_OPTIONS`, `TCA_CHAIN`.
        const KIND: u16 = 1;
        const OPTIONS: u16 = 2;
        const CHAIN: u16 = 11;
        /// `TCA_FLOWER_ACT`, `TCA_FLOWER_FLAGS`.
        const ACT: u16 = 3;
        const FLAGS: u16 = 22;
        /// Size of `struct tcmsg`.
        const HEADER_BYTES: usize = 20;
        let header: &[u8; HEADER_BYTES] =
            body.first_chunk().ok_or(Malformed("a rule's header is truncated"))?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (handle, info) = (word(8), word(16));
        let (mut chain, mut options, mut is_flower) = (0, None, false);
        for attr in Attrs::after(HEADER_BYTES, body)? {
            let attr = attr?;
            match attr.number {
                KIND => is_flower = attr.text()? == "flower",
                OPTIONS => options = Some(attr),
                CHAIN => chain = attr.u32()?,
                _ => {}
            }
        }
        let Some(options) = options.filter(|_| is_flower && handle != 0) else { return Ok(None) };
        let (mut cookie, mut offload) = (None, Offload::default());
        for attr in options.nested() {
            let attr = attr?;
            match attr.number {
                ACT => {
                    for action in attr.nested() {
                        cookie = Action::decode_cookie(action?.nested())?;
                    }
                }
                FLAGS => offload = Offload::of(attr.u32()?),
                _ => {}
            }
        }
        let [protocol, priority] = [info & 0xffff, info >> 16].map(|half| u16::try_from(half).unwrap_or(0));
        let group = Group { hook, chain, priority };
        Ok(Some(Self { group, protocol: u16::from_be(protocol), handle, offload, cookie }))
    }
}

impl From<Fingerprint> for Cookie {
    fn from(content: Fingerprint) -> Self {
        Self::of(content.bytes())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Table;
    use crate::{Batch, Expected, RuleMatch};
    use netlink::attr::AttrBuf;

    const RULE: &str =
        "filter add dev d0 ingress protocol ip prio 1 handle 7 flower dst_ip 10.0.0.1 action drop\n";

    fn rule(line: &str) -> Filter {
        let mut table = Table::of([("d0".to_owned(), model::IfIndex(1))]);
        let mut batch = Batch::new(line.as_bytes());
        let (_, command) = batch.next_command(&mut table).expect("read").expect("a line");
        command.rule().expect("a rule").clone()
    }

    fn marked(line: &str) -> Filter {
        let mut rule = rule(line);
        assert!(Marker::default().mark(&mut rule), "{line}");
        rule
    }

    /// The terse dump of a rule with this priority and handle.
    fn terse(rule: &Filter, priority: u16, handle: u32) -> Terse {
        let dumped = Filter { priority, handle, ..rule.clone() };
        let mut out = AttrBuf::new();
        dumped.encode(0, 0, &mut out);
        Terse::decode(rule.hook, &out.as_bytes()[16..]).expect("read").expect("a rule")
    }

    fn expected(line: &str) -> Expected {
        let mut expected = Expected::default();
        expected.add(&rule(line), 1);
        expected
    }

    #[test]
    fn a_rule_is_known_by_the_cookie_that_it_was_loaded_with() {
        for (line, priority, handle) in [
            (RULE.to_owned(), 1, 7),
            (RULE.replace("handle 7 ", ""), 1, 9),
            (RULE.replace("prio 1 handle 7 ", ""), 0xc000, 1),
            (RULE.replace("prio 1 ", ""), 0xc000, 7),
            (RULE.replace("action drop", "action skbedit mark 1 pipe action drop no_percpu"), 1, 7),
        ] {
            let terse_rule = terse(&marked(&line), priority, handle);
            let mut file = expected(&line);
            assert_eq!(file.match_by_cookie(&terse_rule), Some(RuleMatch::Expected(1)), "{line}");
            assert_eq!(file.match_by_cookie(&terse_rule), Some(RuleMatch::Again), "{line}");
            assert_eq!(file.missing(), [0_u32; 0]);
            // A full dump is compared without the cookie, which the file does not contain.
            let dumped = Filter { priority, handle, ..marked(&line) };
            assert_eq!(expected(&line).match_rule(&dumped), RuleMatch::Expected(1), "{line}");
        }
    }

    #[test]
    fn a_cookie_tells_nothing_of_a_rule_that_it_was_not_made_for() {
        let terse_rule = terse(&marked(RULE), 1, 7);
        for other in [
            RULE.replace("10.0.0.1", "10.0.0.2"),
            RULE.replace("drop", "pass"),
            RULE.replace("handle 7", "handle 8"),
            RULE.replace("action drop", "action drop no_percpu"),
        ] {
            assert_eq!(expected(&other).match_by_cookie(&terse_rule), None, "{other}");
        }
        assert_eq!(
            expected(&RULE.replace("prio 1", "prio 2")).match_by_cookie(&terse_rule),
            Some(RuleMatch::Unasked)
        );
        // The cookie does not identify a rule if it is a user's own or missing.
        let own = RULE.replace("drop", "drop cookie 11223344556677889900aabbccddeeff");
        assert_eq!(expected(&own).match_by_cookie(&terse(&rule(&own), 1, 7)), None);
        assert_eq!(expected(RULE).match_by_cookie(&terse(&rule(RULE), 1, 7)), None);
        // A rule that was changed but kept our cookie is a different rule.
        let mut changed = marked(RULE);
        changed.actions.clone_from(&marked(&RULE.replace("10.0.0.1", "10.0.0.2")).actions);
        assert_eq!(expected(RULE).match_rule(&changed), RuleMatch::Different(1));
    }

    #[test]
    fn what_cannot_have_a_cookie_alone_gets_none() {
        for line in [
            RULE.replace("flower dst_ip 10.0.0.1", "matchall"),
            RULE.replace(" action drop", ""),
            RULE.replace("drop", "drop index 5"),
            RULE.replace("drop", "drop cookie aa"),
            RULE.replace("drop", "mirred egress redirect dev d0 cookie aa action drop"),
        ] {
            let (plain, mut rule) = (rule(&line), rule(&line));
            assert!(!Marker::default().mark(&mut rule), "{line}");
            assert_eq!(rule, plain);
        }
    }
}
