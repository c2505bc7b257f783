//! The rules of CONTRIBUTING.md that a machine can check. Cheap, and keeps taste out of review.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Result};

/// A rule: its sentence, which files it reads, and what it finds wrong in one of them.
struct Rule {
    sentence: &'static str,
    applies: fn(&str) -> bool,
    /// What is wrong in a file: line numbers (0 for the whole file) and words.
    wrong: fn(&str, &str) -> Vec<(usize, String)>,
}

const RULES: &[Rule] = &[
    Rule {
        sentence: "a file is named after the noun it holds",
        applies: |path| path.ends_with(".rs"),
        wrong: |path, _| {
            let stem =
                Path::new(path).file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            let vague = ["utils", "util", "common", "misc", "helpers", "helper", "types", "manager"];
            if vague.contains(&stem.as_str()) {
                vec![(0, format!("`{stem}` says nothing"))]
            } else {
                Vec::new()
            }
        },
    },
    Rule {
        sentence: "`unsafe` is confined to crates/sys/src/",
        applies: |path| {
            path.ends_with(".rs") && !path.starts_with("crates/sys/src/") && !path.starts_with("xtask/")
        },
        wrong: |_, text| lines_with(text, |line| code(line).split_whitespace().any(|word| word == "unsafe")),
    },
    Rule {
        sentence: "every setting cites its source",
        applies: |path| path.starts_with("crates/model/src/setting/") && path.ends_with(".rs"),
        wrong: |_, text| knobs_without_source(text),
    },
    Rule {
        sentence: "in the simulator a CPU, a NAPI or a task is an id of its kind",
        applies: |path| {
            let counted = ["ids.rs", "index_vec.rs", "histogram.rs"];
            path.strip_prefix("crates/sim/src/")
                .is_some_and(|file| !file.starts_with("fit/") && !counted.contains(&file))
        },
        wrong: |_, text| bare_indices(text),
    },
    Rule {
        sentence: "no test is switched off, and none asserts by panicking",
        applies: |path| path.ends_with(".rs") && !path.starts_with("xtask/"),
        wrong: |_, text| {
            lines_with(text, |line| code(line).contains("#[ignore") || code(line).contains("should_panic"))
        },
    },
    Rule {
        sentence: "what is not done has an issue, not a remark",
        applies: |path| is_code(path) && !path.starts_with("xtask/"),
        wrong: |_, text| {
            lines_with(text, |line| {
                let remark =
                    ["TODO", "FIXME", "XXX", "(being written)"].iter().any(|word| line.contains(word));
                remark || ["todo!(", "unimplemented!("].iter().any(|word| code(line).contains(word))
            })
        },
    },
    Rule {
        sentence: "no path of one machine is in the project",
        applies: |path| {
            !path.starts_with("xtask/") && path != "Cargo.lock" && !path.starts_with("bench/runs/")
        },
        wrong: |_, text| {
            lines_with(text, |line| {
                ["/work/", "/home/"].iter().any(|machine| line.contains(machine))
                    || line.split('"').any(|w| w.starts_with("/root/"))
            })
        },
    },
    Rule {
        sentence: "every BPF and kernel source names its licence",
        applies: |path| {
            (path.starts_with("crates/bpf/") || path.contains("/bpf/"))
                && (path.ends_with(".c") || path.ends_with(".h"))
        },
        wrong: |_, text| {
            let named = text.lines().next().is_some_and(|line| line.contains("SPDX-License-Identifier:"));
            if named {
                Vec::new()
            } else {
                vec![(1, "no SPDX-License-Identifier in the first line".to_owned())]
            }
        },
    },
];

/// Checks every file that git knows or would add.
pub(crate) fn run(_: &[String]) -> Result {
    let mut report = String::new();
    let mut found = 0_usize;
    let files = tracked()?;
    for path in &files {
        let Ok(text) = std::fs::read_to_string(shell::root().join(path)) else { continue };
        let name = path.to_string_lossy();
        for rule in RULES.iter().filter(|rule| (rule.applies)(&name)) {
            for (line, what) in (rule.wrong)(&name, &text) {
                found += 1;
                let _ = writeln!(report, "{name}:{line}: {}: {}", rule.sentence, what.trim());
            }
        }
    }
    for (path, why) in orphans(&files) {
        found += 1;
        let _ = writeln!(report, "{}: every source file is part of a crate: {why}", path.display());
    }
    eprint!("{report}");
    if found == 0 {
        eprintln!("tidy: {} files, nothing found", files.len());
        Ok(())
    } else {
        Err(format!("tidy found {found} thing(s)"))
    }
}

/// The files that git tracks or would add.
fn tracked() -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(shell::root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from).collect())
}

/// Rust files below a `src` that no module above them names.
fn orphans(files: &[PathBuf]) -> Vec<(PathBuf, String)> {
    let mut lost = Vec::new();
    for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "rs")) {
        let text = path.to_string_lossy();
        let Some(inside) = text.split_once("/src/").map(|(_, inside)| inside) else { continue };
        if !text.starts_with("crates/") || matches!(inside, "lib.rs" | "main.rs") {
            continue;
        }
        let (module, folder) = match path.file_stem().map(|s| s.to_string_lossy().into_owned()) {
            Some(stem) if stem == "mod" => {
                let folder = path.parent().unwrap_or(Path::new(""));
                (folder.file_name().map(|n| n.to_string_lossy().into_owned()), folder.parent())
            }
            stem => (stem, path.parent()),
        };
        let (Some(module), Some(folder)) = (module, folder) else { continue };
        let parents = [
            folder.join("mod.rs"),
            folder.join("lib.rs"),
            folder.join("main.rs"),
            folder.with_extension("rs"),
        ];
        let named = parents.iter().any(|parent| {
            let text = std::fs::read_to_string(shell::root().join(parent)).unwrap_or_default();
            text.lines().any(|line| line.trim().ends_with(&format!("mod {module};")))
        });
        if !named {
            lost.push((path.clone(), format!("no `mod {module};` above it")));
        }
    }
    lost
}

fn is_code(path: &str) -> bool {
    [".rs", ".c", ".h", ".toml", ".sh"].iter().any(|ending| path.ends_with(ending))
}

/// A line without its comment, and without what stands in quotes.
fn code(line: &str) -> String {
    let line = line.split("//").next().unwrap_or("");
    line.split('"').step_by(2).collect()
}

fn lines_with(text: &str, wrong: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    text.lines()
        .zip(1..)
        .filter(|(line, _)| wrong(line))
        .map(|(line, number)| (number, line.to_owned()))
        .collect()
}

/// The knobs of a file's families (`family! {`) whose documentation has no `Kernel:` line.
fn knobs_without_source(text: &str) -> Vec<(usize, String)> {
    let mut wrong = Vec::new();
    let (mut inside, mut cited) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        let trimmed = line.trim();
        match line {
            "family! {" => inside = true,
            "}" => inside = false,
            _ if !inside => {}
            _ if trimmed.starts_with("///") => {
                cited |= ["Kernel:", "Source:"].iter().any(|word| trimmed.contains(word))
            }
            _ if trimmed.contains(") = ") && !std::mem::take(&mut cited) => {
                wrong.push((number, trimmed.to_owned()))
            }
            _ => {}
        }
    }
    wrong
}

/// Parameters of functions and closures that are a bare `usize`, but for amounts, and collections of bare ones. Tests may
/// count as they like.
fn bare_indices(text: &str) -> Vec<(usize, String)> {
    const AMOUNTS: [&str; 3] = ["count", "limit", "sources"];
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let mut wrong = Vec::new();
    let mut signature = false;
    for (line, number) in text.lines().zip(1..).take_while(|(line, _)| *line != "mod test {") {
        let code = code(line);
        signature |= code.split_whitespace().any(|word| word == "fn");
        let parameter = code.match_indices(": ").any(|(colon, _)| {
            let (before, after) = (&code[..colon], code[colon + 2..].trim_start_matches('&'));
            let name = before.rsplit(|c| !word(c)).next().unwrap_or_default();
            let bare = after.split(|c| !word(c)).next() == Some("usize");
            bare && !AMOUNTS.contains(&name) && (signature || before.contains('|'))
        });
        if parameter || code.contains("<usize>") {
            wrong.push((number, line.to_owned()));
        }
        signature &= !code.contains(['{', ';']);
    }
    wrong
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_bare_index_is_found_in_signatures_closures_and_collections_but_not_an_amount_or_a_field() {
        let text = "fn a(c: usize) {\nfn b(\n    cpu: CpuId,\n    n: &usize,\n) {\nlet f = |a: u8, t: usize| t;\n\
                    list: Vec<usize>,\nfn c(count: usize) -> usize {\n    ring_size: usize,\nmod test {\nfn d(c: usize) {\n";
        let found: Vec<usize> = bare_indices(text).into_iter().map(|(n, _)| n).collect();
        assert_eq!(found, [1, 4, 6, 7]);
    }

    #[test]
    fn a_knob_without_its_kernel_line_is_found() {
        let text = "family! {\n    Of {\n        /// Kernel: 6.13.\n        A(X) = B { name: \"a\" },\n        /// Nothing.\n        C(X) = B {\n        },\n    }\n}\n";
        assert_eq!(knobs_without_source(text), [(6, "C(X) = B {".to_owned())]);
    }

    #[test]
    fn quotes_and_comments_are_not_code() {
        assert_eq!(code("let a = \"unsafe\"; // unsafe"), "let a = ; ");
    }
}
