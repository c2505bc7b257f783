//! Helps on a host without a policy: finds the services that listen and the devices that carry traffic ([`Found`]), writes a first policy file for them ([`FirstFile`]), and lists the mechanisms that can be used ([`SupportMatrix`]). This crate changes nothing, prints nothing and needs neither a daemon nor privileges; it reports what was not visible without privileges. It does not know the meaning of settings.
#![forbid(unsafe_code)]

mod first_file;
mod found;
mod service;
mod support;

pub use first_file::{DeviceSection, FirstFile, ServiceSection};
pub use found::{Found, ListeningSocket};
pub use service::{Server, servers};
pub use support::{MECHANISMS, MechanismNeed, MechanismRow, SupportMatrix, Supported};
