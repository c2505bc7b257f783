//! What is said of NIC drivers, against the kernel's source, which `cargo xtask guest build` unpacks.

use std::path::PathBuf;

use libtest_mimic::{Failed, Trial};

use crate::nic_lines::compared;
use crate::{Need, rule_corpus, test};

/// The facts as they ship.
const FACTS: &str = include_str!("../../../policy-file/nics/drivers.toml");

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "drivers/every_fact_stands_in_the_kernels_source_on_the_line_that_it_names",
        &[Need::FactsSource],
        stand,
    )]
}

/// The source of the release that the facts name.
pub(crate) fn source() -> Option<PathBuf> {
    let kernel = FACTS.lines().find_map(|line| line.strip_prefix("kernel = \"")?.strip_suffix('"'))?;
    let sources = std::fs::read_dir(rule_corpus::sources()?).ok()?;
    let of_release = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("linux-")
            .and_then(|rest| rest.strip_prefix(kernel))
            .is_some_and(|rest| rest.starts_with('-'))
    };
    sources.filter_map(|entry| Some(entry.ok()?.path())).find(of_release)
}

fn stand() -> Result<(), Failed> {
    let (rows, wrong) = compared(FACTS, &source().ok_or("the source")?);
    assert!(rows > 100, "{rows}");
    assert_eq!(wrong, Vec::<String>::new(), "of {rows}");
    Ok(())
}
