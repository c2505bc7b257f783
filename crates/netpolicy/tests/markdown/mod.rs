//! Markdown as far as tests of the documents read it: blocks of code, headings, links, comments.

use std::path::{Path, PathBuf};

/// A block of code between fences.
pub(crate) struct Block {
    /// The line of its first fence, from 1.
    pub(crate) line: usize,
    /// What stands behind the fence: `console background`.
    pub(crate) info: String,
    pub(crate) lines: Vec<String>,
}

/// A document, taken apart.
#[derive(Default)]
pub(crate) struct Document {
    pub(crate) blocks: Vec<Block>,
    /// The names under which its headings are linked to.
    pub(crate) anchors: Vec<String>,
    /// Where links lead, with the line that each stands in.
    pub(crate) links: Vec<(usize, String)>,
    /// The names of its headings, before those that stand twice are numbered.
    headings: Vec<String>,
}

impl Document {
    /// Takes a document apart.
    pub(crate) fn of(text: &str) -> Self {
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
        // What stands in backquotes is not a link.
        let prose: String = line.split('`').step_by(2).collect();
        for rest in prose.split("](").skip(1) {
            if let Some((target, _)) = rest.split_once(')') {
                self.links.push((number, target.to_owned()));
            }
        }
    }
}

/// The name of a heading in a link, as the usual viewers make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The Markdown files below a directory, in the order of their names; build directories and hidden ones are left out.
pub(crate) fn markdown_below(directory: &Path) -> Vec<PathBuf> {
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
