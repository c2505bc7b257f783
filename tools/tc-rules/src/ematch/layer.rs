//! The layers to which the offsets of matches are relative.

use super::token::Args;
use crate::number::{self, Base};
use crate::words::Read;

/// The layers, by the kernel's number `TCF_LAYER_*`.
pub(super) const LAYERS: &[&str] = &["link", "network", "transport"];

/// `TCF_LAYER_NETWORK`.
pub(super) const NETWORK: u8 = 1;

/// Parses a layer. iproute2 checks only the first letter of a name, and also accepts the number.
pub(super) fn parse(args: &mut Args<'_>) -> Read<u8> {
    let layer = |word: &str| match word.as_bytes().first()? {
        b'l' => Some(0),
        b'n' => Some(NETWORK),
        b't' => Some(2),
        _ => number::u8(word, Base::Prefix).filter(|layer| *layer <= 2),
    };
    args.read("a layer: link, network or transport", layer).map_err(|wrong| wrong.expecting(LAYERS))
}

pub(super) fn name(layer: u8) -> Option<&'static str> {
    LAYERS.get(usize::from(layer)).copied()
}
