//! Policies that applications request for themselves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::Pid;

/// A policy that a process or a socket requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppRequest {
    /// The process or socket that made the request.
    pub of: Requester,
    /// The policy's number: [`crate::PolicyName::number`].
    pub number: u32,
}

/// A process or socket that requested a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requester {
    /// A process, for itself and its future children.
    Task(Pid),
    /// A socket, by its inode.
    Socket(u64),
}
