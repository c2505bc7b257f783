//! Existing instances of actions.

use netlink::attr::{AttrBuf, Attrs};
use rustix::io::Errno;
use sys::error::KernelError;
use sys::netns::Netns;

use netlink::{NetlinkProtocol, NetlinkSocket};

/// `RTM_GETACTION`.
const GET_ACTION: u16 = 50;
/// `TCA_ACT_TAB`, `TCA_ROOT_FLAGS`.
const TAB: u16 = 1;
const ROOT_FLAGS: u16 = 2;
/// `TCA_ACT_KIND`, `TCA_ACT_INDEX`.
const KIND: u16 = 1;
const INDEX: u16 = 3;
/// `TCA_ACT_FLAG_LARGE_DUMP_ON | TCA_ACT_FLAG_TERSE_DUMP`.
const FLAGS: u32 = 3;

/// The index at which shared instances start unless higher ones exist. It is far from where the kernel
/// starts.
const SHARED_FROM: u32 = 0x1000_0000;

/// The first index above all instances of these kinds.
///
/// # Errors
/// The kernel's error; a kind that it does not have has no instances.
pub fn first_free<'a>(netns: &Netns, kinds: impl IntoIterator<Item = &'a str>) -> Result<u32, KernelError> {
    let mut free = SHARED_FROM;
    for highest in highest(netns, kinds)? {
        free = free.max(highest.saturating_add(1));
    }
    Ok(free)
}

/// Whether any instance of these kinds exists.
///
/// # Errors
/// As for [`first_free`].
pub fn any<'a>(netns: &Netns, kinds: impl IntoIterator<Item = &'a str>) -> Result<bool, KernelError> {
    Ok(highest(netns, kinds)?.into_iter().any(|highest| highest > 0))
}

/// The highest index of each kind; 0 if there is no instance.
fn highest<'a>(netns: &Netns, kinds: impl IntoIterator<Item = &'a str>) -> Result<Vec<u32>, KernelError> {
    let mut socket = NetlinkSocket::open(NetlinkProtocol::Route, netns)?;
    let mut all = Vec::new();
    for kind in kinds {
        let mut body = AttrBuf::after(&[0; 4]); // struct tcamsg
        body.unmarked(TAB, |out| _ = out.unmarked(1, |out| _ = out.text(KIND, kind)));
        let mut flags = [0; 8];
        flags[..4].copy_from_slice(&FLAGS.to_ne_bytes());
        flags[4..].copy_from_slice(&FLAGS.to_ne_bytes());
        body.bytes(ROOT_FLAGS, &flags);
        let dumped = socket.dump(&format!("actions of kind {kind}"), GET_ACTION, &body, |object| {
            let mut highest = 0;
            if let Some(tab) = Attrs::after(4, object)?.find(TAB)? {
                for action in tab.nested() {
                    if let Some(index) = action?.nested().find(INDEX)? {
                        highest = highest.max(index.u32()?);
                    }
                }
            }
            Ok(Some(highest))
        });
        let highest = match dumped {
            Ok(highest) => highest.into_iter().max().unwrap_or(0),
            Err(error) if matches!(error.number(), Some(Errno::NOENT | Errno::INVAL | Errno::OPNOTSUPP)) => 0,
            Err(error) => return Err(error),
        };
        all.push(highest);
    }
    Ok(all)
}
