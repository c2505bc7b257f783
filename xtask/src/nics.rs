//! Whether the facts on drivers of NICs stand in the kernel's source where they say.

use std::collections::BTreeMap;
use std::path::Path;

use crate::shell;

/// The facts.
const FACTS: &str = "crates/policy-file/nics/drivers.toml";

/// Compares each fact with a tree of the kernel's source: the word that it names must stand on its line.
pub(crate) fn run(arguments: &[String]) -> shell::Result {
    let [tree] = arguments else {
        return Err("usage: cargo xtask nics DIRECTORY, of the release that the facts name".into());
    };
    let text = std::fs::read_to_string(FACTS).map_err(|error| format!("{FACTS}: {error}"))?;
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut rows, mut wrong) = (0_usize, Vec::new());
    for row in text.lines().filter(|row| row.contains("{ is = ")) {
        rows += 1;
        let field = |name: &str| {
            let rest = row.split(&format!("{name} = \"")).nth(1)?;
            Some(rest.strip_suffix("\" }").unwrap_or(rest).to_owned())
        };
        let at = field("at").and_then(|rest| rest.split('"').next().map(str::to_owned)).unwrap_or_default();
        let word = field("word").unwrap_or_default().replace("\\\"", "\"");
        let Some((file, line)) = at.rsplit_once(':') else {
            wrong.push(format!("{row}: no place"));
            continue;
        };
        let lines = files.entry(file.to_owned()).or_insert_with(|| {
            let text = std::fs::read_to_string(Path::new(tree).join(file)).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        });
        let line: usize = line.parse().unwrap_or(0);
        if !line.checked_sub(1).and_then(|line| lines.get(line)).is_some_and(|there| there.contains(&word)) {
            wrong.push(format!("{at} has no `{word}`"));
        }
    }
    if !wrong.is_empty() {
        return Err(format!("{} of {rows} facts do not stand there:\n{}", wrong.len(), wrong.join("\n")));
    }
    println!("{rows} facts stand where they say");
    Ok(())
}
