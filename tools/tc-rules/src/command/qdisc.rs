//! The qdiscs that rules attach to.

use crate::lookup::Lookup;
use crate::number::{self, Base};
use crate::words::{Read, Words, abbreviates};
use model::IfIndex;
use netlink::attr::{AttrBuf, Attrs, Malformed};

use super::tcmsg::{CLSACT, EGRESS_BLOCK, Hook, INGRESS_BLOCK, KIND, Verb, flag, message, tcmsg};

/// A qdisc that rules attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qdisc {
    /// The verb.
    pub verb: Verb,
    /// The device.
    pub device: IfIndex,
    /// Whether the qdisc also has an egress hook: `clsact` rather than `ingress`.
    pub clsact: bool,
    /// The shared block that holds the ingress rules.
    pub ingress_block: Option<u32>,
    /// The shared block that holds the egress rules.
    pub egress_block: Option<u32>,
}

impl Qdisc {
    /// Decodes the body of a dumped qdisc; returns `None` if it is neither `ingress` nor `clsact`.
    ///
    /// # Errors
    /// If an attribute is malformed.
    pub fn decode(body: &[u8]) -> Result<Option<Self>, Malformed> {
        let header: &[u8; 20] = body.first_chunk().ok_or(Malformed("a header is truncated"))?;
        let device = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        let attrs = Attrs::after(header.len(), body)?;
        let kind = attrs.find(KIND)?.ok_or(Malformed("a qdisc without a kind"))?;
        let clsact = match kind.until_zero() {
            b"clsact" => true,
            b"ingress" => false,
            _ => return Ok(None),
        };
        let block = |number| attrs.find(number)?.map(|block| block.u32()).transpose();
        let (ingress_block, egress_block) = (block(INGRESS_BLOCK)?, block(EGRESS_BLOCK)?);
        Ok(Some(Self { verb: Verb::Add, device: IfIndex(device), clsact, ingress_block, egress_block }))
    }

    /// Formats the line that creates the qdisc.
    pub fn words(&self, lookup: &mut dyn Lookup) -> String {
        let name = lookup.name_of(self.device).unwrap_or_else(|| format!("if{}", self.device.0));
        let mut line = format!("qdisc add dev {name}");
        for (block, word) in [(self.ingress_block, "ingress_block"), (self.egress_block, "egress_block")] {
            if let Some(block) = block {
                line.push_str(&format!(" {word} {block}"));
            }
        }
        line.push_str(if self.clsact { " clsact" } else { " ingress" });
        line
    }

    pub(super) fn parse(verb: Verb, words: &mut Words<'_>, lookup: &mut dyn Lookup) -> Read<Self> {
        let mut qdisc =
            Self { verb, device: IfIndex(0), clsact: false, ingress_block: None, egress_block: None };
        let mut named = false;
        let block = |word| number::u32(word, Base::Prefix).filter(|block| *block != 0);
        while let Some(word) = words.peek() {
            words.skip();
            match word {
                "dev" => {
                    qdisc.device =
                        words.read("the name of an existing device", |name| lookup.device(name))?;
                }
                "clsact" | "ingress" if !named => (qdisc.clsact, named) = (word == "clsact", true),
                "handle" => {
                    words.read("ffff:", |word| (number::class(word) == Some(0xffff_0000)).then_some(()))?;
                }
                _ if abbreviates(word, "ingress_block") => {
                    qdisc.ingress_block = Some(words.read("a block: 1 or more", block)?);
                }
                _ if abbreviates(word, "egress_block") => {
                    qdisc.egress_block = Some(words.read("a block: 1 or more", block)?);
                }
                _ => {
                    words.back();
                    return Err(words.unknown_here(&[
                        "dev",
                        "ingress",
                        "clsact",
                        "handle",
                        "ingress_block",
                        "egress_block",
                    ]));
                }
            }
        }
        if !named {
            return Err(words.unknown_here(&["ingress", "clsact"]));
        }
        Ok(qdisc)
    }

    pub(super) fn encode(&self, sequence: u32, flags: u16, out: &mut AttrBuf) {
        let (kind, own) = match self.verb {
            Verb::Add => (message::NEW_QDISC, flag::EXCL | flag::CREATE),
            Verb::Change => (message::NEW_QDISC, 0),
            Verb::Replace => (message::NEW_QDISC, flag::CREATE | flag::REPLACE),
            Verb::Delete => (message::DEL_QDISC, 0),
        };
        out.message(kind, flag::REQUEST | own | flags, sequence, |out| {
            let hook = Hook { device: self.device, block: 0, parent: CLSACT };
            tcmsg(hook, 0xffff_0000, 0, out);
            out.text(KIND, if self.clsact { "clsact" } else { "ingress" });
            self.ingress_block.inspect(|block| _ = out.u32(INGRESS_BLOCK, *block));
            self.egress_block.inspect(|block| _ = out.u32(EGRESS_BLOCK, *block));
        });
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Table;
    use crate::{Batch, Command};

    #[test]
    fn a_dumped_queueing_discipline_has_words_that_mean_the_same() {
        /// Size of a message header.
        const HEADER_BYTES: usize = 16;
        let mut table = Table::of([("d0".to_owned(), IfIndex(3))]);
        for line in [
            "qdisc add dev d0 clsact",
            "qdisc add dev d0 ingress_block 7 egress_block 8 clsact",
            "qdisc add dev d0 ingress",
        ] {
            let mut batch = Batch::new(line.as_bytes());
            let Ok(Some((_, command))) = batch.next_command(&mut table) else { panic!("{line}") };
            let mut out = AttrBuf::new();
            command.encode(1, 0, &mut out);
            let dumped =
                Qdisc::decode(&out.as_bytes()[HEADER_BYTES..]).expect("well-formed").expect("one of ours");
            assert_eq!(dumped.words(&mut table), line);
            assert_eq!(Command::Qdisc(dumped), *command);
        }
        assert_eq!(Qdisc::decode(&[0; 7]), Err(Malformed("a header is truncated")));
    }
}
