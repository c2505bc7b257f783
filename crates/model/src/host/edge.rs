//! The edges from a queue to its NAPI and from a NAPI to its interrupt, and how each was determined.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{IrqNumber, NapiId};

/// How an edge of the graph was determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Guessed by order (the n-th NAPI serves the n-th queue), because the kernel does not report the edge.
    ByOrder,
    /// Read from a name that the driver chose (`/proc/interrupts`).
    ByName,
    /// Stated by the kernel as an attribute.
    Stated,
}

/// The edge from a queue to its NAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NapiEdge {
    /// The NAPI.
    pub napi: NapiId,
    /// How the edge was determined.
    pub confidence: Confidence,
}

/// The edge from a NAPI to its interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IrqEdge {
    /// The interrupt.
    pub irq: IrqNumber,
    /// How the edge was determined.
    pub confidence: Confidence,
}
