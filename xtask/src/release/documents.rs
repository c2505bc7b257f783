//! Prepares documents for installation: a link to a file that no package contains becomes plain text.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Returns a document in which only links to installed files remain. `from` is its path in the project;
/// `installed` has the path of each installed file relative to the prefix.
pub(super) fn with_installed_links(
    text: &str,
    from: &Path,
    installed: &BTreeMap<PathBuf, PathBuf>,
) -> String {
    let mut written = String::with_capacity(text.len());
    // Start offsets of link texts that are still open.
    let mut open: Vec<usize> = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let begins_line = written.is_empty() || written.ends_with('\n');
        if begins_line && rest.starts_with("```") || c == '`' {
            let code = code_of(rest);
            written.push_str(code);
            rest = &rest[code.len()..];
            continue;
        }
        if let Some((target, after)) = rest.strip_prefix("](").and_then(|rest| rest.split_once(')'))
            && let Some(begin) = open.pop()
        {
            match target_of(target, from, installed) {
                Some(target) => written.push_str(&format!("]({target})")),
                None => {
                    written.remove(begin);
                    if written[..begin].ends_with('!') {
                        written.remove(begin - 1);
                    }
                }
            }
            rest = after;
            continue;
        }
        match c {
            '[' => open.push(written.len()),
            ']' => _ = open.pop(),
            _ => {}
        }
        written.push(c);
        rest = &rest[c.len_utf8()..];
    }
    written
}

/// Returns the code at the beginning of a text, up to the closing backticks.
fn code_of(text: &str) -> &str {
    let ticks = text.len() - text.trim_start_matches('`').len();
    let end = text[ticks..].find(&text[..ticks]).map_or(text.len(), |at| ticks + at + ticks);
    &text[..end]
}

/// Returns the target that a link has when installed; `None` if no package contains its file.
fn target_of(target: &str, from: &Path, installed: &BTreeMap<PathBuf, PathBuf>) -> Option<String> {
    if target.contains("://") || target.starts_with('#') {
        return Some(target.to_owned());
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let there = installed.get(&plain(&from.parent()?.join(file)))?;
    let here = installed.get(from)?.parent()?;
    let path = relative(here, there).display().to_string();
    Some(anchor.map_or_else(|| path.clone(), |anchor| format!("{path}#{anchor}")))
}

/// Removes `..` and `.` from a path.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Returns the relative path from a directory to a file.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let common = from.components().zip(to.components()).take_while(|(one, other)| one == other).count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn links_to_what_is_not_installed_become_text_and_others_lead_to_where_it_is() {
        let place = |from: &str, to: &str| (PathBuf::from(from), PathBuf::from(to));
        let installed = BTreeMap::from([
            place("docs/howto/a.md", "share/doc/x/howto/a.md"),
            place("docs/reference/b.md", "share/doc/x/reference/b.md"),
            place("packaging/monitoring/c.json", "share/x/monitoring/c.json"),
        ]);
        let text = "See [the\nreference](../reference/b.md#top), [costs](../explanation/costs.md) and ![an image](i.png).\n\
                    [Here](#here), [c](../../packaging/monitoring/c.json), [out](https://x.invalid), [1] and `[code](no.md)`.\n\
                    ```sh\necho [code](no.md)\n```\n[[nested](no.md)](../reference/b.md)\n";
        let expected = "See [the\nreference](../reference/b.md#top), costs and an image.\n\
                        [Here](#here), [c](../../../x/monitoring/c.json), [out](https://x.invalid), [1] and `[code](no.md)`.\n\
                        ```sh\necho [code](no.md)\n```\n[nested](../reference/b.md)\n";
        assert_eq!(with_installed_links(text, Path::new("docs/howto/a.md"), &installed), expected);
    }
}
