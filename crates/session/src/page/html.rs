//! Writes a self-contained HTML document without scripts: headings, paragraphs, bar charts and tables. Every
//! text is escaped.

use std::fmt::{self, Write as _};

/// The style of a document. It is light or dark according to the reader's setting, and tables scroll on
/// narrow screens.
const CSS: &str = "\
:root{color-scheme:light dark;--ink:#1b1b1f;--paper:#fff;--faint:#63636e;--line:#d9d9e0;--bar:#1f6fb4;--bad:#b3261e;--good:#1e7b4f}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6ea;--paper:#17171a;--faint:#a0a0ab;--line:#3a3a42;--bar:#6cb0ea;--bad:#f2877f;--good:#6fcf97}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0 auto;padding:1rem;max-width:76rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
.faint{color:var(--faint)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1rem}
.chart h2{margin-top:0}.chart{border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem}
.bar{display:grid;grid-template-columns:minmax(6rem,40%) 1fr 4rem;gap:.5rem;align-items:center;margin:.2rem 0}
.bar span{overflow-wrap:anywhere}.bar b{text-align:right;font-weight:600}
.bar svg{width:100%;height:.9rem;display:block}
.fill{fill:var(--bar)}.fill.bad{fill:var(--bad)}.fill.good{fill:var(--good)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line)}
th,td:first-child{white-space:nowrap}td:last-child{min-width:8rem;overflow-wrap:anywhere}td.n{text-align:right}
";

/// Text to show verbatim. Markup in it has no effect, and characters that control or reorder text are
/// replaced.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if crate::page::is_misleading(c) => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Whether a bar is good or bad, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Neither good nor bad.
    Plain,
    /// Bad.
    Bad,
    /// Good.
    Good,
}

/// A bar of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bar {
    /// The label of the bar.
    pub label: String,
    /// The number that determines the bar's length.
    pub count: usize,
    /// The bar's meaning.
    pub tone: Tone,
}

/// A document that is being written.
#[derive(Clone, Debug)]
pub struct Document {
    text: String,
}

impl Document {
    /// Creates a document with a title.
    pub fn new(title: &str) -> Self {
        let mut text = String::new();
        let _infallible = write!(
            text,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width\">\n<title>{title}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n\
             <h1>{title}</h1>\n",
            title = Escaped(title)
        );
        Self { text }
    }

    /// Adds a heading.
    pub fn heading(&mut self, heading: &str) {
        let _infallible = writeln!(self.text, "<h2>{}</h2>", Escaped(heading));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, words: &str) {
        let _infallible = writeln!(self.text, "<p>{}</p>", Escaped(words));
    }

    /// Adds bar charts side by side, each with its heading. The longest bar of a chart fills the width.
    pub fn charts(&mut self, charts: &[(&str, Vec<Bar>)]) {
        self.text.push_str("<div class=\"charts\">\n");
        for (heading, bars) in charts.iter().filter(|(_, bars)| !bars.is_empty()) {
            let longest = bars.iter().map(|bar| bar.count).max().unwrap_or(0).max(1);
            let _infallible = writeln!(self.text, "<div class=\"chart\"><h2>{}</h2>", Escaped(heading));
            for bar in bars {
                let tone = match bar.tone {
                    Tone::Plain => "fill",
                    Tone::Bad => "fill bad",
                    Tone::Good => "fill good",
                };
                let _infallible = writeln!(
                    self.text,
                    "<div class=\"bar\"><span>{label}</span><svg viewBox=\"0 0 1000 10\" \
                     preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}: {count}\"><rect class=\"{tone}\" \
                     width=\"{width}\" height=\"10\"/></svg><b>{count}</b></div>",
                    label = Escaped(&bar.label),
                    count = bar.count,
                    width = (bar.count * 1000).div_ceil(longest),
                );
            }
            self.text.push_str("</div>\n");
        }
        self.text.push_str("</div>\n");
    }

    /// Adds a table. Numbers are right-aligned.
    pub fn table(&mut self, headings: &[&str], rows: &[Vec<String>]) {
        self.text.push_str("<div class=\"wide\"><table>\n<tr>");
        for heading in headings {
            let _infallible = write!(self.text, "<th>{}</th>", Escaped(heading));
        }
        self.text.push_str("</tr>\n");
        for row in rows {
            self.text.push_str("<tr>");
            for cell in row {
                let number = !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit());
                let class = if number { " class=\"n\"" } else { "" };
                let _infallible = write!(self.text, "<td{class}>{}</td>", Escaped(cell));
            }
            self.text.push_str("</tr>\n");
        }
        self.text.push_str("</table></div>\n");
    }

    /// Ends the document and returns its text.
    pub fn into_text(mut self) -> String {
        self.text.push_str("</body>\n</html>\n");
        self.text
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn markup_and_control_characters_of_a_name_have_no_effect() {
        let hostile = "<script>alert('x')</script>&\"\u{1b}[31m\u{202e}";
        let mut page = Document::new(hostile);
        page.heading(hostile);
        page.paragraph(hostile);
        page.charts(&[(hostile, vec![Bar { label: hostile.to_owned(), count: 3, tone: Tone::Bad }])]);
        page.table(&[hostile], &[vec![hostile.to_owned()]]);
        let text = page.into_text();
        assert!(
            !text.contains("<script") && !text.contains('\u{1b}') && !text.contains('\u{202e}'),
            "{text}"
        );
        assert_eq!(text.matches("&lt;script&gt;").count(), 9, "{text}");
        assert!(!text.contains("\"\u{fffd}"), "no attribute ends early");
    }

    #[test]
    fn the_longest_bar_has_the_whole_width_and_a_small_one_is_still_visible() {
        let bar = |count: usize| Bar { label: count.to_string(), count, tone: Tone::Plain };
        let mut page = Document::new("t");
        page.charts(&[("c", vec![bar(10_000), bar(1), bar(0)])]);
        let text = page.into_text();
        for width in [1000, 1, 0] {
            assert!(text.contains(&format!("width=\"{width}\"")), "{width}: {text}");
        }
    }
}
