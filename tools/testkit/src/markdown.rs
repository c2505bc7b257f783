//! Parses the parts of Markdown that tests of the documents need: code blocks, headings, links, comments.

use std::path::{Path, PathBuf};

/// A block of code between fences.
pub struct Block {
    /// The number of the line with the block's first fence, from 1.
    pub line: usize,
    /// The info string after the opening fence, such as `console background`.
    pub info: String,
    pub lines: Vec<String>,
}

/// A parsed document.
#[derive(Default)]
pub struct Document {
    pub blocks: Vec<Block>,
    /// The anchors of the document's headings.
    pub anchors: Vec<String>,
    /// Link targets, with their line numbers.
    pub links: Vec<(usize, String)>,
    /// The anchor names of the headings, before duplicates are numbered.
    headings: Vec<String>,
}

impl Document {
    /// Parses a document.
    pub fn of(text: &str) -> Self {
        let mut document = Self::default();
        let mut open: Option<Block> = None;
        for (line, number) in text.lines().zip(1..) {
            match (line.trim_start().strip_prefix("```"), open.take()) {
                (Some(_), Some(block)) => document.blocks.push(block),
                (Some(info), None) => {
                    open = Some(Block { line: number, info: info.to_owned(), lines: Vec::new() });
                }
                (None, Some(mut block)) => {
                    block.lines.push(line.to_owned());
                    open = Some(block);
                }
                (None, None) => document.prose(line, number),
            }
        }
        document
    }

    fn prose(&mut self, line: &str, number: usize) {
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        if let Some(heading) = line[level..].strip_prefix(' ').filter(|_| level > 0) {
            let name = anchor(heading);
            let same = self.headings.iter().filter(|known| **known == name).count();
            self.anchors.push(if same == 0 { name.clone() } else { format!("{name}-{same}") });
            self.headings.push(name);
        }
        // Ignore text between backticks, which contains no links.
        let prose: String = line.split('`').step_by(2).collect();
        for rest in prose.split("](").skip(1) {
            if let Some((target, _)) = rest.split_once(')') {
                self.links.push((number, target.to_owned()));
            }
        }
    }
}

/// The anchor of a heading, in the format of common viewers.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown files below a directory, sorted by name; build directories and hidden ones are skipped.
pub fn markdown_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        let entries =
            std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for entry in entries {
            let path = entry.expect("an entry").path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() && !path.is_symlink() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A part of a reference page: the page, the part's name, and the function that generates it.
pub type PagePart = (&'static str, &'static str, fn() -> String);

/// Compares parts of the reference pages with the generated text. If `UPDATE` is set in the environment,
/// writes them instead.
///
/// # Panics
/// If a part is missing or out of date.
pub fn check_parts(parts: &[PagePart], package: &str) {
    let write = std::env::var_os("UPDATE").is_some();
    let mut stale = Vec::new();
    for (page, name, make) in parts {
        let path = repository().join("docs/reference").join(page);
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (begin, end) = (format!("<!-- begin {name}"), format!("<!-- end {name} -->"));
        let parts = text.split_once(&begin).and_then(|(before, rest)| {
            let (mark, rest) = rest.split_once("-->\n")?;
            let (_, after) = rest.split_once(&end)?;
            Some(format!("{before}{begin}{mark}-->\n{}\n{end}{after}", make().trim_end()))
        });
        let made = parts.unwrap_or_else(|| panic!("{page} has no part between `{begin} … -->` and `{end}`"));
        if made != text && write {
            std::fs::write(&path, made).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        } else if made != text {
            stale.push(format!("docs/reference/{page}, {name}"));
        }
    }
    assert!(
        stale.is_empty(),
        "stale: {}. Write these parts with `UPDATE=1 cargo test -p {package} --test reference`, and read the diff.",
        stale.join("; ")
    );
}

/// Escapes text for a table cell.
pub fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
