//! The options of a task's command line.

use std::path::PathBuf;

use crate::shell::Result;

/// The options on the command line with their values, and the words after the options.
#[derive(Debug, Default)]
pub(crate) struct Options {
    given: Vec<(String, String)>,
    pub(crate) words: Vec<String>,
}

impl Options {
    /// Parses options up to the first word that is not an option, or up to `--`. An option in `flags` has no
    /// value; an option in `valued` takes the next word.
    pub(crate) fn read(arguments: &[String], flags: &[&str], valued: &[&str], usage: &str) -> Result<Self> {
        let mut options = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let value = match word.as_str() {
                "--" => break,
                flag if flags.contains(&flag) => String::new(),
                option if valued.contains(&option) => {
                    words.next().cloned().ok_or_else(|| format!("{word} needs a value\n{usage}"))?
                }
                option if option.starts_with('-') => return Err(format!("no option {option}\n{usage}")),
                _ => {
                    options.words.push(word.clone());
                    break;
                }
            };
            options.given.push((word.clone(), value));
        }
        options.words.extend(words.cloned());
        Ok(options)
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.value(option).is_some()
    }

    /// Returns the value of an option; if the option was given more than once, the last value.
    pub(crate) fn value(&self, option: &str) -> Option<&str> {
        self.values(option).last()
    }

    pub(crate) fn values(&self, option: &str) -> impl Iterator<Item = &str> {
        self.given.iter().filter(move |(name, _)| name == option).map(|(_, value)| value.as_str())
    }

    pub(crate) fn path(&self, option: &str) -> Option<PathBuf> {
        self.value(option).map(PathBuf::from)
    }

    /// Returns the number given with an option, or `otherwise` without the option.
    pub(crate) fn number(&self, option: &str, otherwise: u64) -> Result<u64> {
        let given = self.value(option).map(|number| number.parse().map_err(|e| format!("{option}: {e}")));
        given.unwrap_or(Ok(otherwise))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn read(line: &str) -> Result<Options> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        Options::read(&words, &["--qemu"], &["--limit", "--env"], "usage")
    }

    #[test]
    fn options_end_where_the_command_begins_and_a_wrong_one_is_named() {
        let options = read("--qemu --limit 5 --env A=b --env C=d ls --qemu").expect("well formed");
        assert!(options.has("--qemu"));
        assert_eq!(options.number("--limit", 600), Ok(5));
        assert_eq!(options.values("--env").collect::<Vec<_>>(), ["A=b", "C=d"]);
        assert_eq!(options.words, ["ls", "--qemu"]);
        assert_eq!(read("-- --limit").expect("words after -- are no options").words, ["--limit"]);
        for line in ["--fast ls", "--limit"] {
            assert!(read(line).expect_err("refused").contains(line.split(' ').next().expect("a word")));
        }
        assert!(read("--limit x").expect("well formed").number("--limit", 1).is_err());
    }
}
