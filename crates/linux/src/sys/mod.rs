//! The only place with `unsafe`: system calls that no dependency offers, each behind a safe function.

pub(crate) mod bpf;
pub(crate) mod netlink;
