//! The report of an experiment.

use model::{Evidence, OfferedLoad};
use runs::{Grid, Results};
use schemars::SchemaGenerator;
use serde::Serialize;
use serde_json::Value;
use session::page::{Page, RecordSchema, Report, record, to_json};

/// Gives a report type the schema of the data type as which it is printed.
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

/// `bench`'s data.
#[derive(Debug)]
pub struct BenchReport<'a> {
    /// All evidence.
    pub(crate) results: &'a Results,
}

/// Returns the reason of the first void run, for each configuration and load.
fn void_runs(results: &Results) -> Vec<String> {
    let experiment = &results.experiment;
    let cells =
        experiment.labels.iter().flat_map(|label| experiment.loads.iter().map(move |load| (label, *load)));
    let first = |(label, load): (&String, OfferedLoad)| {
        let runs = results.cell(label, load);
        let reason = runs.iter().find_map(|run| run.void.as_deref())?;
        Some(format!("void: {label} at {load}: {reason}"))
    };
    cells.filter_map(first).collect()
}

schema_of!(BenchReport<'_>: Results);

impl Serialize for BenchReport<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.results.serialize(serializer)
    }
}

impl Report for BenchReport<'_> {
    const KIND: &'static str = "bench";

    fn page(&self, page: &mut Page) {
        for line in runs::table::render(self.results).lines() {
            page.line(line);
        }
        for line in void_runs(self.results) {
            page.line(line);
        }
        if let Some(capacity) = self.results.capacity {
            page.line(format!(
                "Loads are shares of {capacity:.0} requests per second, the closed-loop capacity of base here. (The document's 200K to 1000K apply only to its machine.)"
            ));
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Evidence>("evidence", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        self.results.evidence.iter().map(|run| ("evidence", to_json(run))).collect()
    }
}

/// The data of the benches with netpolicy's own server.
#[derive(Debug)]
pub struct GridReport<'a> {
    /// All experiments.
    pub(crate) grid: &'a Grid,
}

schema_of!(GridReport<'_>: Grid);

impl Serialize for GridReport<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.grid.serialize(serializer)
    }
}

impl Report for GridReport<'_> {
    const KIND: &'static str = "bench-grid";

    fn page(&self, page: &mut Page) {
        for line in self.grid.render().lines() {
            page.line(line);
        }
        for line in self.grid.voids() {
            page.line(line);
        }
        for variant in &self.grid.variants {
            if let Some(borne) = variant.borne {
                let first = variant.results.experiment.labels.first().map_or("", String::as_str);
                page.line(format!(
                    "{}: loads are shares of {borne:.0} requests per second, the closed-loop capacity of {first} here.",
                    variant.name
                ));
            }
        }
    }

    fn records_as(generator: &mut SchemaGenerator) -> Vec<RecordSchema> {
        vec![record::<Evidence>("evidence", generator)]
    }

    fn lines(&self) -> Vec<(&'static str, Value)> {
        let runs = self.grid.variants.iter().flat_map(|variant| &variant.results.evidence);
        runs.map(|run| ("evidence", to_json(run))).collect()
    }
}
