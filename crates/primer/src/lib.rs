//! Helps with the first minutes on an unprepared host: writes a policy file from what runs there.
//!
//! This crate answers what a newcomer asks before there is a policy: which services listen and which devices
//! carry traffic ([`Found`]), what a first policy file says about them ([`FirstFile`]), and which mechanisms
//! can be used ([`SupportMatrix`]). It changes nothing, prints nothing and needs neither a daemon nor
//! privileges, but reports what it could not see without them. It does not know what settings mean.
#![forbid(unsafe_code)]

mod first_file;
mod found;
mod service;
mod support;

pub use first_file::{DeviceSection, FirstFile, ServiceSection};
pub use found::{Found, ListeningSocket};
pub use service::{Server, servers};
pub use support::{MECHANISMS, MechanismNeed, MechanismRow, SupportMatrix, Supported};
