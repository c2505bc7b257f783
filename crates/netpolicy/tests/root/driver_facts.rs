//! Checks the facts about NIC drivers against the kernel's source, which `cargo xtask guest build` unpacks.

use std::collections::BTreeMap;
use std::path::Path;

use libtest_mimic::{Failed, Trial};
use testkit::kernel_sources::{DRIVER_FACTS as FACTS, of_driver_facts};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test(
        "drivers/every_fact_stands_in_the_kernels_source_on_the_line_that_it_names",
        &[Need::FactsSource],
        stand,
    )]
}

fn stand() -> Result<(), Failed> {
    let (rows, wrong) = compared(FACTS, &of_driver_facts().ok_or("the source")?);
    assert!(rows > 100, "{rows}");
    assert_eq!(wrong, Vec::<String>::new(), "of {rows}");
    Ok(())
}

/// Compares each fact with a kernel source tree. Returns the number of facts, and the facts whose word is not
/// in the source line that they name.
fn compared(facts: &str, tree: &Path) -> (usize, Vec<String>) {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut rows, mut wrong) = (0_usize, Vec::new());
    for row in facts.lines().filter(|row| row.contains("{ is = ")) {
        rows += 1;
        let field = |name: &str| {
            let rest = row.split(&format!("{name} = \"")).nth(1)?;
            Some(rest.strip_suffix("\" }").unwrap_or(rest).to_owned())
        };
        let at = field("at").and_then(|rest| rest.split('"').next().map(str::to_owned)).unwrap_or_default();
        let word = field("word").unwrap_or_default().replace("\\\"", "\"");
        let Some((file, line)) = at.rsplit_once(':').filter(|_| !word.is_empty()) else {
            wrong.push(format!("{row}: no place"));
            continue;
        };
        let lines = files.entry(file.to_owned()).or_insert_with(|| {
            let text = std::fs::read_to_string(tree.join(file)).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        });
        let line: usize = line.parse().unwrap_or(0);
        if !line.checked_sub(1).and_then(|line| lines.get(line)).is_some_and(|there| there.contains(&word)) {
            wrong.push(format!("{at} has no `{word}`"));
        }
    }
    (rows, wrong)
}
