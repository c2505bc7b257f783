//! Fuzzes netlink: a datagram from the kernel, and the objects of every supported family.

use netlink::ethtool::{RawChannels, RawCoalesce, RawFeatures, RawRings};
use netlink::link::RawLink;
use netlink::message::{Messages, NetlinkReply};
use netlink::netdev::{RawNapi, RawQueue};
use netlink::sock_diag::RawInetDiag;

pub(crate) fn run(bytes: &[u8]) {
    objects(bytes);
    for message in Messages::new(bytes) {
        let Ok(message) = message else { break };
        if let Ok(NetlinkReply::Object(object)) = message.reply() {
            objects(object);
        }
    }
}

fn objects(bytes: &[u8]) {
    let _ = RawNapi::parse(bytes);
    let _ = RawQueue::parse(bytes);
    let _ = RawChannels::parse(bytes);
    let _ = RawRings::parse(bytes);
    let _ = RawCoalesce::parse(bytes);
    let _ = RawFeatures::parse(bytes);
    let _ = RawLink::parse(bytes);
    let _ = RawInetDiag::read(bytes);
}
