//! Parses recipe files: text → [`RecipeFile`] → [`Recipes`]. Every text gives either a file or its mistakes.
//!
//! `[recipe.POLICY.MECHANISM]` defines a policy's value for a mechanism. `[driver.NAME.POLICY.MECHANISM]`
//! defines an exception for one driver, where the policy `any` means every policy.
//! `[case.NAME.POLICY.MECHANISM]` defines an exception under the conditions in `[case.NAME.when]`. Each of
//! these sections has `value`, `why`, `source` and `measured-on`. `[[ladder.POLICY]]` is a delivery mode to
//! try for a service that misses its goal. It has the same keys, and `when` with the conditions of a case.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use model::recipe::{EpollNapis, Mechanism, PaysFrom, RecipeEntry, RecipeValue, Recipes, Rung, When};
use model::{CpuSet, DeliveryMode, Layout, Nanoseconds, PolicyName, Reason};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::mistake::{LineIndex, Mistake, Mistakes};
use crate::nearest::nearest;

/// The names and texts of the shipped recipe files, which are those in `recipes/`.
pub const SHIPPED: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/recipes.rs"));

/// The directories of a site's recipe files, in ascending order of precedence.
pub const RECIPE_DIRS: [&str; 3] =
    ["/usr/lib/netpolicy/recipes.d", "/run/netpolicy/recipes.d", "/etc/netpolicy/recipes.d"];

/// The content of a file, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeFile {
    entries: Vec<Entry>,
    /// The conditions of each case.
    whens: Vec<(String, When)>,
    /// The ladders by policy.
    ladders: Vec<(PolicyName, Vec<Rung>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    whose: Whose,
    mechanism: Mechanism,
    entry: RecipeEntry,
    at: usize,
}

/// The policy, driver or case to which an entry belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Whose {
    Policy(Option<PolicyName>),
    Driver(String, Option<PolicyName>),
    Case(String, Option<PolicyName>),
}

/// The shipped recipes, which are parsed once.
static SHIPPED_RECIPES: LazyLock<Arc<Recipes>> = LazyLock::new(|| {
    let mut recipes =
        Recipes { nics: crate::nic_facts(), known_faults: crate::known_faults(), ..Recipes::default() };
    for (name, text) in SHIPPED {
        #[expect(clippy::expect_used, reason = "a test reads the same texts")]
        let file = parse_recipes(&format!("recipes/{name}"), text).expect("shipped recipes have no mistakes");
        file.merge_into(&mut recipes);
    }
    Arc::new(recipes)
});

/// Returns the shipped recipes, merged with the entries of these files, which are given by name and text. For
/// each mechanism, the last file takes precedence.
///
/// # Errors
/// If the files have mistakes. The error has all of them.
pub fn recipes(site: &[(String, String)]) -> Result<Arc<Recipes>, Mistakes> {
    let mut recipes = Arc::clone(&SHIPPED_RECIPES);
    let mut mistakes = Vec::new();
    for (name, text) in site {
        match parse_recipes(name, text) {
            Ok(file) => file.merge_into(Arc::make_mut(&mut recipes)),
            Err(Mistakes(more)) => mistakes.extend(more),
        }
    }
    if mistakes.is_empty() { Ok(recipes) } else { Err(Mistakes(mistakes)) }
}

impl RecipeFile {
    /// Merges the entries into the recipes. They replace earlier entries for the same mechanisms.
    fn merge_into(self, recipes: &mut Recipes) {
        for (case, when) in self.whens {
            recipes.cases.entry(case).or_default().when = when;
        }
        // Replace a ladder as a whole, because its order matters.
        recipes.ladders.extend(self.ladders);
        for Entry { whose, mechanism, entry, at: _ } in self.entries {
            let recipe = match whose {
                Whose::Policy(None) => &mut recipes.any,
                Whose::Policy(Some(policy)) => recipes.policies.entry(policy).or_default(),
                Whose::Driver(driver, policy) => {
                    recipes.drivers.entry(driver).or_default().entry(policy).or_default()
                }
                Whose::Case(case, policy) => {
                    recipes.cases.entry(case).or_default().policies.entry(policy).or_default()
                }
            };
            recipe.entries.insert(mechanism, entry);
        }
    }
}

/// Parses a recipe file.
///
/// # Errors
/// Returns every mistake in the text, with its position.
pub fn parse_recipes(name: &str, text: &str) -> Result<RecipeFile, Mistakes> {
    let mut reader = Reader {
        name,
        text,
        lines: LineIndex::of(text),
        mistakes: Vec::new(),
        entries: Vec::new(),
        whens: Vec::new(),
        ladders: Vec::new(),
    };
    let (table, broken) = DeTable::parse_recoverable(text);
    for error in &broken {
        reader.wrong(error.span().unwrap_or(0..0), error.message(), None);
    }
    if broken.is_empty() {
        reader.file(table.get_ref());
    }
    if !reader.mistakes.is_empty() {
        reader.mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
        return Err(Mistakes(reader.mistakes));
    }
    reader.entries.sort_by_key(|entry| entry.at);
    Ok(RecipeFile { entries: reader.entries, whens: reader.whens, ladders: reader.ladders })
}

struct Reader<'a> {
    name: &'a str,
    text: &'a str,
    lines: LineIndex,
    mistakes: Vec<Mistake>,
    entries: Vec<Entry>,
    whens: Vec<(String, When)>,
    ladders: Vec<(PolicyName, Vec<Rung>)>,
}

type Name<'i> = Spanned<DeString<'i>>;
type Raw<'i> = Spanned<DeValue<'i>>;

/// The word that means every policy.
pub(crate) const ANY: &str = "any";

/// The keys of an entry.
const KEYS: [&str; 4] = ["value", "why", "source", "measured-on"];

/// The key for the minimum traffic for which a mode helps, and the keys of its table.
pub(crate) const PAYS_FROM: &str = "pays-from";
const PAYS_FROM_KEYS: [&str; 2] = ["packets-per-flush", "connections"];

/// The kinds of sections.
const SECTIONS: [&str; 4] = ["recipe", "driver", "case", "ladder"];

/// The key for a case's conditions.
pub(crate) const WHEN: &str = "when";

/// The conditions of a case.
pub(crate) const CONDITIONS: [&str; 3] = ["driver", "own-interrupts", "epoll-napis"];

/// The maximum number of drivers that a value may name.
pub(crate) const MEASURED_ON_MAX: usize = 64;

impl Reader<'_> {
    fn wrong(&mut self, at: Range<usize>, message: impl Into<String>, help: Option<String>) {
        self.mistakes.push(self.lines.mistake(self.name, self.text, at, message, help));
    }

    fn file(&mut self, table: &DeTable<'_>) {
        for (word, value) in table {
            match word.get_ref().as_ref() {
                "recipe" => self.tables(value, "recipe.POLICY.MECHANISM", |reader, policy, value| {
                    if let Some(policy) = reader.policy_or_any(policy) {
                        reader.recipe(&Whose::Policy(policy), value);
                    }
                }),
                "driver" => self.tables(value, "driver.NAME.any.MECHANISM", |reader, driver, value| {
                    let driver = driver.get_ref().to_string();
                    reader.tables(value, "driver.NAME.any.MECHANISM", |reader, policy, value| {
                        if let Some(policy) = reader.policy_or_any(policy) {
                            reader.recipe(&Whose::Driver(driver.clone(), policy), value);
                        }
                    });
                }),
                "case" => self.tables(value, "case.NAME.any.MECHANISM", Self::case),
                "ladder" => self.tables(value, "[ladder.POLICY]", Self::ladder),
                other => {
                    let message =
                        format!("`{other}` is not a kind of section: expected {}", SECTIONS.join(", "));
                    self.wrong(word.span(), message, did_you_mean(other, SECTIONS));
                }
            }
        }
    }

    /// Parses a case: its conditions, and the values of policies under these conditions. A file that extends
    /// the case of another file must repeat the conditions, so that each file can be understood on its own.
    fn case(&mut self, name: &Name<'_>, value: &Raw<'_>) {
        let case = name.get_ref().to_string();
        if value.get_ref().as_table().is_some_and(|table| table.keys().all(|key| key.get_ref() != WHEN)) {
            self.wrong(name.span(), format!("case {case} has no conditions: write [case.{case}.when]"), None);
        }
        self.tables(value, "case.NAME.any.MECHANISM", |reader, word, value| {
            if word.get_ref().as_ref() == WHEN {
                let when = reader.when(value);
                reader.whens.push((case.clone(), when));
            } else if let Some(policy) = reader.policy_or_any(word) {
                reader.recipe(&Whose::Case(case.clone(), policy), value);
            }
        });
    }

    /// Parses the ladder of a policy.
    fn ladder(&mut self, name: &Name<'_>, value: &Raw<'_>) {
        let policy = name.get_ref().parse::<PolicyName>().ok().filter(|policy| policy.optimizes());
        let Some(policy) = policy else {
            let names: Vec<&str> = PolicyName::optimizing().map(PolicyName::as_str).collect();
            let message =
                format!("`{}` cannot have a ladder: use one of {}", name.get_ref(), names.join(", "));
            return self.wrong(name.span(), message, did_you_mean(name.get_ref(), names));
        };
        let Some(rungs) = value.get_ref().as_array() else {
            let message = format!("a ladder is a list: write [[ladder.{policy}]] above each mode");
            return self.wrong(name.span(), message, None);
        };
        if rungs.len() > Rung::COUNT_MAX {
            let message = format!("{} rungs; a ladder has at most {}", rungs.len(), Rung::COUNT_MAX);
            self.wrong(name.span(), message, None);
        }
        let mut ladder: Vec<Rung> = Vec::new();
        for value in rungs {
            let at = value.span().start;
            let mut when = When::default();
            let Some(entry) = self.entry(Mechanism::Delivery, value, at, Some(&mut when)) else { continue };
            let RecipeEntry { value: RecipeValue::Delivery(mode), because, measured_on, .. } = entry else {
                self.wrong(value.span(), "a rung names a delivery mode, as in value = \"suspend50\"", None);
                continue;
            };
            if ladder.iter().any(|rung| rung.mode == mode && rung.when == when) {
                self.wrong(value.span(), format!("{mode} is on the ladder of {policy} twice"), None);
            }
            ladder.push(Rung { mode, because, measured_on, when });
        }
        self.ladders.push((policy, ladder));
    }

    fn when(&mut self, value: &Raw<'_>) -> When {
        let mut when = When::default();
        let Some(table) = value.get_ref().as_table() else {
            self.wrong(value.span(), "expected a table: write [case.NAME.when]", None);
            return when;
        };
        if table.is_empty() {
            self.wrong(value.span(), "a case without a condition: write it under [recipe.POLICY]", None);
        }
        for (key, value) in table {
            let raw = value.get_ref();
            let wrong = match key.get_ref().as_ref() {
                "driver" => {
                    when.driver = raw.as_str().map(str::to_owned);
                    when.driver.is_none().then_some("`driver` must be the name of a driver in quotes")
                }
                "own-interrupts" => {
                    when.own_interrupts = raw.as_bool();
                    when.own_interrupts.is_none().then_some("`own-interrupts` must be true or false")
                }
                "epoll-napis" => {
                    let named = |napis: &EpollNapis| Some(napis.as_str()) == raw.as_str();
                    when.epoll_napis = EpollNapis::ALL.into_iter().find(named);
                    when.epoll_napis.is_none().then_some("`epoll-napis` must be \"one\" or \"several\"")
                }
                other => {
                    let message = format!("`{other}` is not a condition: expected {}", CONDITIONS.join(", "));
                    self.wrong(key.span(), message, did_you_mean(other, CONDITIONS));
                    continue;
                }
            };
            if let Some(message) = wrong {
                self.wrong(value.span(), message, None);
            }
        }
        when
    }

    /// Calls `each` for each table in a table.
    fn tables(&mut self, value: &Raw<'_>, form: &str, mut each: impl FnMut(&mut Self, &Name<'_>, &Raw<'_>)) {
        let Some(table) = value.get_ref().as_table() else {
            return self.wrong(value.span(), format!("expected a table: write [{form}]"), None);
        };
        for (name, value) in table {
            each(self, name, value);
        }
    }

    /// Parses the name of a policy; `None` means every policy.
    fn policy_or_any(&mut self, word: &Name<'_>) -> Option<Option<PolicyName>> {
        if word.get_ref().as_ref() == ANY {
            return Some(None);
        }
        let found = word.get_ref().parse::<PolicyName>();
        if let Err(wrong) = &found {
            let names = PolicyName::ALL.map(PolicyName::as_str).into_iter().chain([ANY]);
            let help = did_you_mean(word.get_ref(), names);
            self.wrong(word.span(), format!("{wrong}, and `{ANY}` for all policies"), help);
        }
        found.ok().map(Some)
    }

    fn recipe(&mut self, whose: &Whose, value: &Raw<'_>) {
        self.tables(value, "recipe.POLICY.MECHANISM", |reader, word, value| {
            let name = word.get_ref().as_ref();
            let Some(mechanism) = Mechanism::named(name) else {
                let names: Vec<&str> = Mechanism::all().map(Mechanism::as_str).collect();
                let message = format!("`{name}` is not a mechanism: the mechanisms are {}", names.join(", "));
                return reader.wrong(word.span(), message, did_you_mean(name, names));
            };
            if matches!(whose, Whose::Driver(..) | Whose::Case(..))
                && matches!(mechanism, Mechanism::Sysctl(_))
            {
                let message = format!("`{name}` affects the whole host, so it cannot depend on the driver");
                return reader.wrong(word.span(), message, Some("write it under [recipe.POLICY]".to_owned()));
            }
            let at = word.span().start;
            if let Some(entry) = reader.entry(mechanism, value, at, None) {
                reader.entries.push(Entry { whose: whose.clone(), mechanism, entry, at });
            }
        });
    }

    /// Parses an entry with its value. The conditions of an entry in a ladder are stored in `when`.
    fn entry(
        &mut self,
        mechanism: Mechanism,
        value: &Raw<'_>,
        at: usize,
        mut when: Option<&mut When>,
    ) -> Option<RecipeEntry> {
        let Some(table) = value.get_ref().as_table() else {
            let message = format!("`{mechanism}` must be a table with value, why and source");
            self.wrong(value.span(), message, Some(format!("write {mechanism} = {{ value = … }}")));
            return None;
        };
        let (mut wanted, mut why, mut source, mut measured_on, mut pays_from) =
            (None, None, None, Vec::new(), None);
        for (key, value) in table {
            match (key.get_ref().as_ref(), value.get_ref().as_str()) {
                ("value", _) => match recipe_value(mechanism, value.get_ref()) {
                    Ok(found) => wanted = Some(found),
                    Err((message, help)) => {
                        self.wrong(value.span(), message, help);
                        return None;
                    }
                },
                ("why", Some(text)) => why = Some(one_line(text)),
                ("source", Some(text)) => source = Some(one_line(text)),
                ("measured-on", _) => {
                    let drivers = value.get_ref().as_array().map(|all| {
                        all.iter()
                            .map(|one| one.get_ref().as_str().map(str::to_owned))
                            .collect::<Option<Vec<_>>>()
                    });
                    match drivers.flatten().filter(|all| all.len() <= MEASURED_ON_MAX) {
                        Some(drivers) => measured_on = drivers,
                        None => {
                            let message = format!(
                                "`measured-on` must be at most {MEASURED_ON_MAX} driver names, as in [\"mlx5_core\"]"
                            );
                            self.wrong(value.span(), message, None);
                        }
                    }
                }
                (PAYS_FROM, _) if mechanism == Mechanism::Delivery && when.is_none() => {
                    pays_from = self.pays_from(value)
                }
                (WHEN, _) if when.is_some() => {
                    let read = self.when(value);
                    when.iter_mut().for_each(|when| **when = read.clone());
                }
                ("why" | "source", None) => {
                    self.wrong(value.span(), format!("`{}` must be a quoted string", key.get_ref()), None);
                }
                (other, _) => {
                    let pays_from = (mechanism == Mechanism::Delivery && when.is_none()).then_some(PAYS_FROM);
                    let keys = KEYS.into_iter().chain(pays_from).chain(when.is_some().then_some(WHEN));
                    let keys: Vec<&str> = keys.collect();
                    let message =
                        format!("`{other}` is not a key of {mechanism}: expected {}", keys.join(", "));
                    self.wrong(key.span(), message, did_you_mean(other, keys));
                }
            }
        }
        let Some(wanted) = wanted else {
            self.wrong(
                value.span(),
                format!("`{mechanism}` has no value"),
                Some("write value = \"keep\"".to_owned()),
            );
            return None;
        };
        let place = || format!("{}:{}", self.name, self.lines.number(at));
        let because = Reason::new(
            why.unwrap_or_else(|| "the site's own value".to_owned()),
            source.unwrap_or_else(place),
        );
        Some(RecipeEntry { value: wanted, because, measured_on, pays_from })
    }

    /// Parses the minimum traffic for which a mode helps.
    fn pays_from(&mut self, value: &Raw<'_>) -> Option<PaysFrom> {
        let number = |key: &str| {
            let raw = value.get_ref().as_table()?.get(key)?.get_ref().as_integer()?;
            let number = raw.as_str().replace('_', "").parse::<u32>().ok()?;
            (1..=PaysFrom::MAX).contains(&number).then_some(number)
        };
        let known =
            |table: &DeTable<'_>| table.keys().all(|key| PAYS_FROM_KEYS.contains(&key.get_ref().as_ref()));
        let read = PAYS_FROM_KEYS.map(number);
        match (value.get_ref().as_table().is_some_and(known), read) {
            (true, [Some(packets_per_flush), Some(connections)]) => {
                Some(PaysFrom { packets_per_flush, connections })
            }
            _ => {
                let message = format!(
                    "`{PAYS_FROM}` must be two numbers from 1 to {}, as in {{ packets-per-flush = 4, connections = 16 }}",
                    PaysFrom::MAX
                );
                self.wrong(value.span(), message, None);
                None
            }
        }
    }
}

/// Joins the lines of a text.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    nearest(word, candidates).map(|name| format!("did you mean `{name}`?"))
}

/// A message about a mistake in a value, and a help text.
type Wrong = (String, Option<String>);

/// The largest number that ethtool accepts as a value.
pub(crate) const NUMBER_MAX: i64 = i32::MAX as i64;

/// Parses the value of a mechanism.
fn recipe_value(mechanism: Mechanism, raw: &DeValue<'_>) -> Result<RecipeValue, Wrong> {
    let takes = |what: &str| Err((format!("`{mechanism}` must be {what}, or \"keep\""), None));
    let number = || match raw {
        DeValue::Integer(integer) => i64::from_str_radix(&integer.as_str().replace('_', ""), integer.radix())
            .ok()
            .filter(|number| (0..=NUMBER_MAX).contains(number))
            .and_then(|number| u32::try_from(number).ok()),
        _ => None,
    };
    let text = raw.as_str();
    if text == Some("keep") {
        return Ok(RecipeValue::Keep);
    }
    match mechanism {
        Mechanism::Delivery => match text.map(str::parse::<DeliveryMode>) {
            Some(Ok(mode)) if mode.params().epoll_wait_cap.is_some() => Err((
                format!(
                    "{mode} needs a cap on the application's epoll_wait, which only `netpolicy run` can set"
                ),
                Some("write suspend20, or name the mode on the command line of `netpolicy run`".to_owned()),
            )),
            Some(Ok(mode)) => Ok(RecipeValue::Delivery(mode)),
            Some(Err(wrong)) => Err((wrong.to_string(), None)),
            None => takes("a delivery mode, as in \"suspend20\""),
        },
        Mechanism::GroFlushTimeout | Mechanism::IrqSuspendTimeout => {
            match text.map(str::parse::<Nanoseconds>) {
                Some(Ok(span)) => Ok(RecipeValue::Span(span)),
                Some(Err(wrong)) => Err((wrong.to_string(), None)),
                None => takes("a span of time in quotes, as in \"20us\""),
            }
        }
        Mechanism::Layout => match text.map(str::parse::<Layout>) {
            Some(Ok(layout)) => Ok(RecipeValue::Layout(layout)),
            Some(Err(wrong)) => {
                let near = did_you_mean(
                    text.unwrap_or_default(),
                    ["one-to-one", "rx-per-core", "local-numa", "shared:2"],
                );
                Err((wrong.to_string(), near))
            }
            None => takes("a layout, as in \"rx-per-core\""),
        },
        Mechanism::Reuseport => match text {
            Some("by-queue") => Ok(RecipeValue::ByQueue),
            other => {
                let help = other.and_then(|word| did_you_mean(word, ["by-queue", "keep"]));
                Err((format!("`{mechanism}` must be \"by-queue\" or \"keep\""), help))
            }
        },
        Mechanism::RpsCpus => match text {
            Some("none") => Ok(RecipeValue::Cpus(CpuSet::new())),
            Some("if-short") => Ok(RecipeValue::CpusIfShort),
            Some(list) => match list.parse::<CpuSet>() {
                Ok(cpus) if !cpus.is_empty() => Ok(RecipeValue::Cpus(cpus)),
                Ok(_) => takes("a non-empty list of CPUs, \"if-short\" or \"none\""),
                Err(wrong) => Err((wrong.to_string(), did_you_mean(list, ["none", "if-short", "keep"]))),
            },
            None => takes("a list of CPUs in quotes, \"if-short\" or \"none\""),
        },
        Mechanism::Channels(_) => match (text, number()) {
            (Some("per-core"), _) => Ok(RecipeValue::PerCore),
            (Some("max"), _) => Ok(RecipeValue::Max),
            (_, Some(count)) => Ok(RecipeValue::Number(count)),
            _ => takes("a number, \"per-core\" or \"max\""),
        },
        Mechanism::Ring(_) | Mechanism::PacketSize(_) => match (text, number()) {
            (Some("max"), _) => Ok(RecipeValue::Max),
            (_, Some(size)) => Ok(RecipeValue::Number(size)),
            _ => takes("a number or \"max\""),
        },
        Mechanism::Coalescing(param) if !param.is_switch() => {
            number().map_or_else(|| takes("a number"), |n| Ok(RecipeValue::Number(n)))
        }
        Mechanism::DeferHardIrqs
        | Mechanism::RpsFlowCount
        | Mechanism::WakeLatency
        | Mechanism::Sysctl(_) => number().map_or_else(|| takes("a number"), |n| Ok(RecipeValue::Number(n))),
        Mechanism::Coalescing(_) | Mechanism::Offload(_) | Mechanism::Xps | Mechanism::Threads => {
            raw.as_bool().map_or_else(|| takes("true or false"), |on| Ok(RecipeValue::Switch(on)))
        }
    }
}
