//! The JSON Schemas of the output, derived from the printed types.

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// A document or a record: its kind, and the schema of its data.
pub type RecordSchema = (&'static str, Schema);

/// The kind of a record and the schema of its data, `T`.
pub fn record<T: JsonSchema + ?Sized>(kind: &'static str, generator: &mut SchemaGenerator) -> RecordSchema {
    (kind, generator.subschema_for::<T>())
}

/// Gives a type the schema of the type as which it is printed.
#[macro_export]
macro_rules! schema_of {
    ($report:ty: $data:ty) => {
        impl schemars::JsonSchema for $report {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                <$data as schemars::JsonSchema>::schema_name()
            }

            fn schema_id() -> std::borrow::Cow<'static, str> {
                <$data as schemars::JsonSchema>::schema_id()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                <$data as schemars::JsonSchema>::json_schema(generator)
            }
        }
    };
}
