//! Finds, for `init`, `doctor` and `support-matrix`, what runs on a host without a policy: the services that
//! listen and the devices that carry traffic ([`HostServices`]), and a first policy file for them ([`FirstFile`]).
//!
//! This module changes and prints nothing. It needs neither a daemon nor privileges, and reports what was not
//! visible without them.

mod first_file;
mod found;
mod service;

pub use first_file::{DeviceSection, FirstFile, ServiceSection};
pub use found::{HostServices, ListeningSocket};
pub use service::{Server, servers};
