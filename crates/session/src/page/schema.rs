//! The JSON Schemas of the output, derived from the printed types.

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// A document or a record: its kind, and the schema of its data.
pub type RecordSchema = (&'static str, Schema);

/// Returns the kind of a record and the schema of its data, `T`.
pub fn record<T: JsonSchema + ?Sized>(kind: &'static str, generator: &mut SchemaGenerator) -> RecordSchema {
    (kind, generator.subschema_for::<T>())
}
