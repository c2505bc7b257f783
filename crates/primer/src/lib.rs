//! The first minutes on a host that was not prepared: a policy file made of what runs there.
//!
//! This room knows what a newcomer asks before there is a policy: which services listen and which devices carry traffic
//! ([`Found`]), what a first policy file says of them ([`FirstFile`]), and which mechanisms can be used ([`SupportMatrix`]). It changes nothing and prints nothing, needs no
//! daemon and no privileges, and names what it could not see for lack of them. What a setting means it must not know.
#![forbid(unsafe_code)]

mod first_file;
mod found;
mod service;
mod support;

pub use first_file::{DeviceSection, FirstFile, ServiceSection};
pub use found::{Found, Listening};
pub use support::{MECHANISMS, Mechanism, Need, SupportMatrix, Supported};
