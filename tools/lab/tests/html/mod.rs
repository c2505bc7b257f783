//! Parses the elements of a well-formed HTML page.

/// An element, in the order of the page.
pub(crate) struct Element {
    pub(crate) name: String,
    attributes: Vec<(String, String)>,
    /// The text between this tag and the next one.
    pub(crate) text: String,
}

impl Element {
    pub(crate) fn number(&self, attribute: &str) -> f64 {
        let found = self.attributes.iter().find(|(name, _)| name == attribute);
        let (_, value) = found.unwrap_or_else(|| panic!("{} has no {attribute}", self.name));
        value.parse().unwrap_or_else(|_| panic!("{attribute}={value} is not a number"))
    }

    /// The points of a line or of a polygon.
    pub(crate) fn points(&self) -> Vec<(f64, f64)> {
        let found = self.attributes.iter().find(|(name, _)| name == "points");
        let (_, points) = found.unwrap_or_else(|| panic!("{} has no points", self.name));
        let pair = |pair: &str| {
            let (x, y) = pair.split_once(',').expect("a pair");
            (x.parse().expect("a number"), y.parse().expect("a number"))
        };
        points.split_whitespace().map(pair).collect()
    }
}

/// HTML elements without an end tag.
const VOID: [&str; 4] = ["!doctype", "meta", "br", "hr"];

/// Returns the elements of a page. Fails unless all are closed in order, attributes are quoted, and every `&`
/// starts a reference.
pub(crate) fn elements(page: &str) -> Result<Vec<Element>, String> {
    let mut elements: Vec<Element> = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let mut rest = page;
    while let Some(begin) = rest.find('<') {
        let (text, tag) = rest.split_at(begin);
        let text = unescaped(text)?;
        if let Some(last) = elements.last_mut()
            && last.text.is_empty()
        {
            last.text = text;
        }
        let end = tag.find('>').ok_or_else(|| format!("a tag without an end: {tag:.40}"))?;
        let inside = &tag[1..end];
        rest = &tag[end + 1..];
        if let Some(name) = inside.strip_prefix('/') {
            let opened = open.pop().ok_or_else(|| format!("</{name}> ends nothing"))?;
            if opened != name {
                return Err(format!("<{opened}> is ended by </{name}>"));
            }
            continue;
        }
        let alone = inside.ends_with('/');
        let inside = inside.trim_end_matches('/');
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        let void = VOID.contains(&name);
        elements.push(Element {
            name: name.to_owned(),
            attributes: if name == "!doctype" { Vec::new() } else { quoted(attributes)? },
            text: String::new(),
        });
        if !alone && !void {
            open.push(name.to_owned());
        }
    }
    unescaped(rest)?;
    if open.is_empty() { Ok(elements) } else { Err(format!("{open:?} are not ended")) }
}

/// Parses attributes, whose values must be in double quotes.
fn quoted(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").ok_or_else(|| format!("`{rest}` is not quoted"))?;
        let (value, after) = value.split_once('"').ok_or_else(|| format!("`{rest}` has no second quote"))?;
        if name.is_empty() || name.contains([' ', '"']) {
            return Err(format!("`{name}` is not an attribute"));
        }
        found.push((name.to_owned(), unescaped(value)?));
        rest = after.trim_start();
    }
    Ok(found)
}

fn unescaped(text: &str) -> Result<String, String> {
    let plain = text.replace("&lt;", "<").replace("&gt;", ">");
    match plain.replace("&amp;", "").find('&') {
        Some(_) => Err(format!("`&` alone in `{text:.40}`")),
        None => Ok(plain.replace("&amp;", "&")),
    }
}
