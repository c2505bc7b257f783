//! Patterns for names: `eth*`, `haproxy*`, `kubepods.slice/**/cri-*`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A pattern for names. `?` matches one character, `*` any number of characters, `[a-f0]` one of the listed
/// characters and `[!a-f]` one character that is not listed; none of these matches a `/`. `**` matches any
/// number of characters including `/`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glob {
    text: String,
    tokens: Vec<Token>,
}

/// A token of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    /// A literal character.
    Literal(char),
    /// `?`
    One,
    /// `[…]`: a character in one of these ranges or, with `not`, in none of them.
    Among { not: bool, spans: Vec<(char, char)> },
    /// `*`
    Run,
    /// `**`
    DeepRun,
}

impl Token {
    const fn literal(&self) -> Option<char> {
        match self {
            Self::Literal(c) => Some(*c),
            Self::One | Self::Among { .. } | Self::Run | Self::DeepRun => None,
        }
    }
}

impl Glob {
    /// The maximum length of a pattern, in bytes.
    pub const BYTES_MAX: usize = 1024;

    /// Whether a text contains a special character of patterns.
    pub fn is_pattern(text: &str) -> bool {
        text.contains(['*', '?', '['])
    }

    /// The pattern's text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern matches exactly one name.
    pub fn is_literal(&self) -> bool {
        self.tokens.iter().all(|token| matches!(token, Token::Literal(_)))
    }

    /// Returns the number of literal characters: the more a pattern has, the more specific it is.
    pub fn literals(&self) -> u32 {
        let literals = self.tokens.iter().filter(|token| matches!(token, Token::Literal(_))).count();
        u32::try_from(literals).unwrap_or(u32::MAX)
    }

    /// Whether the pattern matches a name.
    pub fn meets(&self, name: &str) -> bool {
        if self.is_literal() {
            return name.chars().eq(self.tokens.iter().filter_map(Token::literal));
        }
        let name: Vec<char> = name.chars().collect();
        // Records for each prefix of the name, by the prefix's length, whether the tokens so far match it.
        let mut reached = vec![false; name.len() + 1];
        reached[0] = true;
        for token in &self.tokens {
            let mut next = vec![false; name.len() + 1];
            if matches!(token, Token::Run | Token::DeepRun) {
                next[0] = reached[0];
            }
            for (at, &c) in name.iter().enumerate() {
                next[at + 1] = match token {
                    Token::Literal(literal) => reached[at] && c == *literal,
                    Token::One => reached[at] && c != '/',
                    Token::Among { not, spans } => {
                        let among = spans.iter().any(|(first, last)| (*first..=*last).contains(&c));
                        reached[at] && c != '/' && among != *not
                    }
                    Token::Run => reached[at + 1] || next[at] && c != '/',
                    Token::DeepRun => reached[at + 1] || next[at],
                };
            }
            reached = next;
        }
        reached[name.len()]
    }

    /// Returns the pattern in lower case, for names that ignore case, such as MAC addresses.
    #[must_use]
    pub fn to_lowercase(&self) -> Self {
        self.text.to_lowercase().parse().unwrap_or_else(|_| self.clone())
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// The error for text that is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAGlob {
    /// The text.
    pub text: String,
    /// The mistake in the pattern.
    pub why: &'static str,
}

impl fmt::Display for NotAGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a pattern: {}", self.text.escape_debug(), self.why)
    }
}

impl std::error::Error for NotAGlob {}

impl FromStr for Glob {
    type Err = NotAGlob;

    fn from_str(text: &str) -> Result<Self, NotAGlob> {
        let wrong = |why| Err(NotAGlob { text: text.chars().take(64).collect(), why });
        if text.is_empty() {
            return wrong("it is empty");
        }
        if text.len() > Self::BYTES_MAX {
            return wrong("it is longer than 1024 bytes");
        }
        if text.contains(char::is_control) {
            return wrong("it has control characters");
        }
        let mut tokens = Vec::new();
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            tokens.push(match c {
                '?' => Token::One,
                '*' => {
                    let mut deep = false;
                    while rest.next_if_eq(&'*').is_some() {
                        deep = true;
                    }
                    if deep { Token::DeepRun } else { Token::Run }
                }
                '[' => {
                    let not = rest.next_if_eq(&'!').is_some();
                    let mut spans = Vec::new();
                    loop {
                        let Some(first) = rest.next() else { return wrong("a `[` has no `]`") };
                        if first == ']' && !spans.is_empty() {
                            break;
                        }
                        // A `-` at the end is literal.
                        let mut ahead = rest.clone();
                        let spans_to = (ahead.next() == Some('-'))
                            .then(|| ahead.next().filter(|last| *last != ']'))
                            .flatten();
                        match spans_to {
                            Some(last) if last < first => return wrong("a range in `[…]` is reversed"),
                            Some(last) => {
                                rest = ahead;
                                spans.push((first, last));
                            }
                            None => spans.push((first, first)),
                        }
                    }
                    match spans.as_slice() {
                        [(first, last)] if first == last && !not => Token::Literal(*first),
                        _ => Token::Among { not, spans },
                    }
                }
                literal => Token::Literal(literal),
            });
        }
        Ok(Self { text: text.to_owned(), tokens })
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// One or more patterns, of which a name must match at least one. Documents hold a single pattern as a
/// string, and several as a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Patterns(Vec<Glob>);

impl Patterns {
    /// The maximum number of patterns in a condition.
    pub const COUNT_MAX: usize = 64;

    /// Parses these patterns.
    ///
    /// # Errors
    /// [`NotAGlob`] for the first invalid pattern, for an empty list, and for more than [`Self::COUNT_MAX`]
    /// patterns.
    pub fn of<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, NotAGlob> {
        let mut all = Vec::new();
        for text in texts {
            if all.len() == Self::COUNT_MAX {
                return Err(NotAGlob {
                    text: text.as_ref().to_owned(),
                    why: "a list has at most 64 patterns",
                });
            }
            all.push(text.as_ref().parse()?);
        }
        if all.is_empty() {
            return Err(NotAGlob { text: String::new(), why: "the list is empty" });
        }
        Ok(Self(all))
    }

    /// Returns a pattern that matches exactly this name; special characters in the name have no effect.
    pub fn exactly(name: &str) -> Self {
        let mut text = String::with_capacity(name.len());
        for c in name.chars() {
            if matches!(c, '*' | '?' | '[') {
                text.extend(['[', c, ']']);
            } else {
                text.push(c);
            }
        }
        Self(vec![Glob { tokens: name.chars().map(Token::Literal).collect(), text }])
    }

    /// The patterns.
    pub fn iter(&self) -> impl Iterator<Item = &Glob> {
        self.0.iter()
    }

    /// Whether any pattern matches a name.
    pub fn meet(&self, name: &str) -> bool {
        self.0.iter().any(|glob| glob.meets(name))
    }

    /// Returns the name, if there is only one pattern and it matches exactly one name.
    pub fn literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [one] if one.is_literal() => Some(one.as_str()),
            _ => None,
        }
    }

    /// Formats the patterns as in a policy file: a string, or a list of strings.
    pub fn toml(&self, quoted: impl Fn(&str) -> String) -> String {
        let texts: Vec<String> = self.0.iter().map(|glob| quoted(glob.as_str())).collect();
        match texts.as_slice() {
            [one] => one.clone(),
            _ => format!("[{}]", texts.join(", ")),
        }
    }
}

impl From<Glob> for Patterns {
    fn from(glob: Glob) -> Self {
        Self(vec![glob])
    }
}

impl FromStr for Patterns {
    type Err = NotAGlob;

    /// Parses a single pattern.
    fn from_str(text: &str) -> Result<Self, NotAGlob> {
        Self::of([text])
    }
}

impl fmt::Display for Patterns {
    /// Formats the patterns as `nginx` or `nginx or haproxy*`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.0.iter().map(Glob::as_str).collect();
        f.pad(&texts.join(" or "))
    }
}

impl Serialize for Patterns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let [one] = self.0.as_slice() {
            return serializer.serialize_str(one.as_str());
        }
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for glob in &self.0 {
            list.serialize_element(glob.as_str())?;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Patterns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pattern or a list of patterns")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Patterns, E> {
                Patterns::of([text]).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Patterns, A::Error> {
                let mut texts: Vec<String> = Vec::new();
                while let Some(text) = list.next_element()? {
                    if texts.len() > Patterns::COUNT_MAX {
                        break;
                    }
                    texts.push(text);
                }
                Patterns::of(texts).map_err(serde::de::Error::custom)
            }
        }

        deserializer.deserialize_any(OneOrMore)
    }
}

impl JsonSchema for Patterns {
    fn schema_name() -> Cow<'static, str> {
        "Patterns".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a pattern for names (`*`, `?`, `[a-f]`, `**` across `/`), or a list of patterns, one of which must match",
            "anyOf": [
                { "type": "string", "minLength": 1 },
                {
                    "type": "array", "items": { "type": "string", "minLength": 1 },
                    "minItems": 1, "maxItems": Patterns::COUNT_MAX
                }
            ]
        })
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn glob(text: &str) -> Glob {
        text.parse().unwrap_or_else(|wrong| panic!("{wrong}"))
    }

    #[test]
    fn a_pattern_means_the_names_that_a_shell_would_find_by_it() {
        for (pattern, name, meets) in [
            ("eth*", "eth0", true),
            ("eth*", "eth", true),
            ("eth*", "veth0", false),
            ("*0", "eth0", true),
            ("e?h0", "eth0", true),
            ("eth[0-3]", "eth2", true),
            ("eth[0-3]", "eth4", false),
            ("eth[!0-3]", "eth4", true),
            ("eth[!0-3]", "eth", false),
            ("0000:3b:00.*", "0000:3b:00.1", true),
            ("0000:3b:00.*", "0000:3c:00.1", false),
            ("kubepods.slice/*/cri-*", "kubepods.slice/pod1/cri-2", true),
            ("kubepods.slice/*/cri-*", "kubepods.slice/a/b/cri-2", false),
            ("kubepods.slice/**/cri-*", "kubepods.slice/a/b/cri-2", true),
            ("*a*b*a", "abababa", true),
            ("[]]", "]", true),
            ("a[-z]", "a-", true),
        ] {
            assert_eq!(glob(pattern).meets(name), meets, "{pattern} {name}");
        }
    }

    #[test]
    fn a_name_in_brackets_is_that_name_whatever_its_characters_are() {
        for name in ["a*b", "[x]", "plain", "?"] {
            let exactly = Patterns::exactly(name);
            assert!(exactly.meet(name) && exactly.iter().all(Glob::is_literal), "{name}");
            assert_eq!(Patterns::of(exactly.iter().map(Glob::as_str)), Ok(exactly), "{name}");
        }
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        for (text, why) in [
            ("", "it is empty"),
            ("eth[0-3", "a `[` has no `]`"),
            ("eth[3-0]", "a range in `[…]` is reversed"),
            ("eth\n", "it has control characters"),
        ] {
            assert_eq!(text.parse::<Glob>().map_err(|wrong| wrong.why), Err(why), "{text}");
        }
    }

    #[test]
    fn one_pattern_is_text_in_a_document_and_several_are_a_list() {
        for (patterns, json) in [
            (Patterns::of(["nginx"]), r#""nginx""#),
            (Patterns::of(["nginx", "haproxy*"]), r#"["nginx","haproxy*"]"#),
        ] {
            let patterns = patterns.expect("patterns");
            assert_eq!(serde_json::to_string(&patterns).expect("serializes"), json);
            assert_eq!(serde_json::from_str::<Patterns>(json).expect("reads"), patterns);
        }
        assert!(serde_json::from_str::<Patterns>("[]").is_err());
    }

    proptest! {
        #[test]
        fn a_name_without_special_characters_meets_itself_alone(a in "[a-z0-9:./-]{1,12}", b in "[a-z0-9:./-]{1,12}") {
            prop_assert_eq!(glob(&a).meets(&b), a == b);
        }

        #[test]
        fn a_double_star_stands_for_whatever_is_cut_out_of_a_name(name in "[a-z/]{0,12}", at in 0_usize..12, length in 0_usize..12) {
            let start = at.min(name.len());
            let end = (start + length).min(name.len());
            let pattern = format!("{}**{}", &name[..start], &name[end..]);
            prop_assert!(glob(&pattern).meets(&name), "{pattern} {name}");
        }

        #[test]
        fn no_text_makes_a_pattern_panic(pattern in "\\PC{0,20}", name in "\\PC{0,20}") {
            if let Ok(glob) = pattern.parse::<Glob>() {
                let _ = glob.meets(&name);
                prop_assert_eq!(glob.to_string().parse::<Glob>(), Ok(glob));
            }
        }
    }
}
