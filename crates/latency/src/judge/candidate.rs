//! Parses candidates: the unchanged host, a policy, a delivery mode, settings, or a policy file.

use std::path::{Path, PathBuf};

use crate::live::MeasuredService;
use model::keys::OF_DELIVERY;
use model::{Intent, NicRequest, Target as Subject};
use policy_file::{Mistakes, PolicyWord, merge, parse, setting, word};
use session::drop_in::read_text;
use session::{Exit, Fault};

/// A candidate of a comparison, as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The operator's text, which identifies the candidate in reports.
    pub name: String,
    wanted: CandidateSettings,
}

/// The settings of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateSettings {
    /// The unchanged host.
    Current,
    /// A policy file.
    File(PathBuf),
    /// A policy or a delivery mode for the service, if any, and settings of the service or its device.
    Settings(Option<PolicyWord>, Vec<(String, String)>),
}

/// Converts the key of a service setting to the spelling in policy files. Plans and the kernel use
/// `gro-flush-timeout`.
fn of_service(key: &str) -> String {
    let spelt = key.replace('-', "_");
    if OF_DELIVERY.contains(&spelt.as_str()) { spelt } else { key.to_owned() }
}

impl std::str::FromStr for Candidate {
    type Err = String;

    /// Parses a candidate: `current`, `latency`, `suspend20`, `defer50,gro_flush_timeout=80us`, `rx-usecs=8`,
    /// `eth0:rx-usecs=8` or `./policy.toml`.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_owned();
        if text == "current" {
            return Ok(Self { name, wanted: CandidateSettings::Current });
        }
        let is_file = Path::new(text).extension().is_some_and(|extension| extension == "toml");
        if is_file || (text.contains('/') && !text.contains('=')) {
            return Ok(Self { name, wanted: CandidateSettings::File(text.into()) });
        }
        let (mut first, mut settings) = (None, Vec::new());
        for (at, part) in text.split(',').enumerate() {
            match part.split_once('=') {
                Some((key, value)) => {
                    let key = of_service(key);
                    let bare = key.split_once(':').map_or(key.as_str(), |(_, bare)| bare);
                    if !OF_DELIVERY.contains(&bare) {
                        setting(&format!("{bare}={value}"))?;
                    }
                    settings.push((key, value.to_owned()));
                }
                None if at == 0 => {
                    first =
                        Some(word(part).map_err(|why| format!("{why}, nor `current`, nor a policy file"))?)
                }
                None => return Err(format!("`{part}` has no value: write NAME=VALUE, as in rx-usecs=8")),
            }
        }
        Ok(Self { name, wanted: CandidateSettings::Settings(first, settings) })
    }
}

/// The requests that make up a candidate.
#[derive(Clone, Debug, Default)]
pub(crate) struct CandidateRequests {
    /// Requests for the service, or those of a whole policy file.
    pub(crate) whole: Vec<Intent>,
    /// Requested settings of devices. All other settings of these devices are kept.
    pub(crate) nic: Vec<(String, NicRequest)>,
}

impl Candidate {
    /// Creates the candidate for the unchanged host.
    pub fn current() -> Self {
        Self { name: "current".to_owned(), wanted: CandidateSettings::Current }
    }

    /// The parsed candidate.
    pub const fn wanted(&self) -> &CandidateSettings {
        &self.wanted
    }

    /// Returns the requests of the candidate for this service.
    ///
    /// # Errors
    /// If a policy file cannot be read or is invalid, or a setting of a device is unknown.
    pub(crate) fn requests(&self, target: &MeasuredService) -> Result<CandidateRequests, Fault> {
        match &self.wanted {
            CandidateSettings::Current => Ok(CandidateRequests::default()),
            CandidateSettings::File(path) => {
                Ok(CandidateRequests { whole: from_file(path)?, nic: Vec::new() })
            }
            CandidateSettings::Settings(word, settings) => self.of_settings(*word, settings, target),
        }
    }

    fn of_settings(
        &self,
        word: Option<PolicyWord>,
        settings: &[(String, String)],
        target: &MeasuredService,
    ) -> Result<CandidateRequests, Fault> {
        let usage = |why: String| Fault::new(Exit::Usage, format!("candidate {}: {why}", self.name));
        let (of_service, of_device): (Vec<_>, Vec<_>) =
            settings.iter().partition(|(key, _)| OF_DELIVERY.contains(&key.as_str()));
        let mut requests = CandidateRequests::default();
        if let Some(word) = word {
            let overrides = overrides(&of_service).map_err(usage)?;
            for process in &target.processes {
                let origin = format!("netpolicy compare, candidate {}", self.name);
                let intent = word.intent(Subject::Task(process.pid), origin, model::Budget::default());
                requests.whole.push(Intent { overrides, ..intent });
            }
        } else if let Some((key, value)) = of_service.first() {
            return Err(usage(format!("{key} belongs to a delivery mode: write defer50,{key}={value}")));
        }
        for (key, value) in of_device {
            let (device, bare) = match key.split_once(':') {
                Some((device, bare)) => (device.to_owned(), bare),
                None => (only_device(target).map_err(usage)?, key.as_str()),
            };
            requests.nic.push((device, setting(&format!("{bare}={value}")).map_err(usage)?));
        }
        Ok(requests)
    }
}

/// Parses the three timeouts of a service in the syntax of policy files.
fn overrides(settings: &[&(String, String)]) -> Result<model::policy::Overrides, String> {
    let quoted = |value: &str| match value.bytes().all(|byte| byte.is_ascii_digit()) {
        true => value.to_owned(),
        false => format!("\"{value}\""),
    };
    let lines: String = settings.iter().map(|(key, value)| format!("{key} = {}\n", quoted(value))).collect();
    let text = format!("[service.candidate]\nmatch = {{ port = 1 }}\npolicy = \"none\"\n{lines}");
    let first = |Mistakes(mistakes): Mistakes| {
        mistakes.into_iter().next().map_or_else(String::new, |mistake| mistake.message)
    };
    let file = parse("candidate", &text).map_err(first)?;
    let merged = merge(&[file]).map_err(first)?;
    Ok(merged.policy().intents.into_iter().next().map(|intent| intent.overrides).unwrap_or_default())
}

/// Returns the name of the host's only device with queues, or an error if there is not exactly one.
fn only_device(target: &MeasuredService) -> Result<String, String> {
    let mut devices = target.host.devices.iter().filter(|device| device.id.name.as_str() != "lo");
    match (devices.next(), devices.next()) {
        (Some(device), None) => Ok(device.id.name.to_string()),
        _ => Err("the host has several devices: write DEVICE:NAME=VALUE, as in eth0:rx-usecs=8".to_owned()),
    }
}

fn from_file(path: &Path) -> Result<Vec<Intent>, Fault> {
    let text = read_text(path).map_err(|error| Fault { exit: Exit::Usage, ..Fault::file(path, error) })?;
    let wrong = |mistakes: Mistakes| Fault::new(Exit::Usage, mistakes);
    let file = parse(&path.display().to_string(), &text).map_err(wrong)?;
    let policy = merge(&[file]).map_err(wrong)?.policy();
    if policy.intents.is_empty() {
        return Err(Fault::new(Exit::Usage, format!("{}: no section requests anything", path.display())));
    }
    Ok(policy.intents)
}

#[cfg(test)]
mod test {
    use super::*;
    use model::PolicyName;

    fn read(text: &str) -> Result<CandidateSettings, String> {
        text.parse::<Candidate>().map(|candidate| candidate.wanted)
    }

    #[test]
    fn a_candidate_is_the_host_as_it_is_a_word_settings_or_a_file() {
        assert_eq!(read("current"), Ok(CandidateSettings::Current));
        assert_eq!(
            read("latency"),
            Ok(CandidateSettings::Settings(Some(PolicyWord::Policy(PolicyName::Latency)), Vec::new()))
        );
        assert_eq!(read("./a.toml"), Ok(CandidateSettings::File("./a.toml".into())));
        let Ok(CandidateSettings::Settings(Some(PolicyWord::Delivery(_)), settings)) =
            read("defer50,gro_flush_timeout=80us")
        else {
            panic!("{:?}", read("defer50,gro_flush_timeout=80us"));
        };
        assert_eq!(settings, [("gro_flush_timeout".to_owned(), "80us".to_owned())]);
        assert!(matches!(read("eth0:rx-usecs=8"), Ok(CandidateSettings::Settings(None, _))));
        assert_eq!(read("defer50,gro-flush-timeout=80us"), read("defer50,gro_flush_timeout=80us"));
    }

    #[test]
    fn what_is_none_is_refused_with_what_there_is() {
        assert!(read("latancy").expect_err("misspelt").contains("did you mean `latency`?"));
        assert!(read("latency,suspend20").expect_err("two words").contains("NAME=VALUE"));
        assert!(read("rx-usec=8").expect_err("misspelt").contains("rx-usecs"));
    }

    #[test]
    fn timeouts_of_a_service_are_read_as_a_policy_files() {
        let one = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let given = [one("gro_flush_timeout", "80us"), one("defer_hard_irqs", "7")];
        let read = overrides(&given.iter().collect::<Vec<_>>()).expect("right");
        assert_eq!(read.gro_flush_timeout, Some(model::Nanoseconds::from_micros(80)));
        assert_eq!(read.defer_hard_irqs, Some(7));
        let wrong = [one("gro_flush_timeout", "soon")];
        assert!(overrides(&wrong.iter().collect::<Vec<_>>()).is_err());
    }
}
