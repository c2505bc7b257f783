//! When commands last measured each service, and the results. They are stored in a small file in the state
//! directory, which `show` reads.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::measure::live::Percentiles;
use model::NetnsId;
use serde::{Deserialize, Serialize};
use session::replaced_file::{Durability, replace_file};
use session::{Fault, Session};

use crate::live::prospect::Prospect;
use crate::live::text::{ago, short};

/// The name of the file with the measurements, in the state directory.
const FILE: &str = "measured.json";

/// The maximum number of services whose response times are stored, and of services whose prospect is stored.
/// The oldest measurements are dropped first.
const SERVICES_MAX: usize = 64;

/// The maximum size of the file in bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// A command's last measurement of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastMeasured {
    /// The name.
    pub service: String,
    /// The network namespace in which the service was measured.
    pub netns: NetnsId,
    /// When the measurement ended, in seconds since 1970.
    pub at: u64,
    /// The command that measured: `watch`, `compare` or `doctor`.
    pub by: String,
    /// The response times; `None` if settings alternated during the measurement.
    pub response: Option<Percentiles>,
    /// The changes that policies would be expected to make, if the service had no policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prospect: Option<Prospect>,
}

impl LastMeasured {
    /// Returns the saved measurements of services in a namespace, newest first. Empty if the file cannot be
    /// read or was not written by netpolicy.
    pub fn all(session: &Session, netns: NetnsId) -> Vec<Self> {
        // `file` opens the journal, which checks who may write to the state directory.
        let Ok(path) = file(session) else { return Vec::new() };
        let mut kept = read(&path);
        kept.retain(|one| one.netns == netns);
        kept
    }

    /// Returns the last measurement of each service: its response times, or otherwise its prospect.
    pub fn of_each_service(session: &Session, netns: NetnsId) -> Vec<Self> {
        let mut all = Self::all(session, netns);
        let timed: BTreeSet<String> =
            all.iter().filter(|one| one.prospect.is_none()).map(|one| one.service.clone()).collect();
        all.retain(|one| one.prospect.is_none() || !timed.contains(&one.service));
        all
    }

    /// Saves this measurement, which replaces the service's previous one of the same kind (response times or
    /// prospect). If two commands end at the same moment, one measurement may be lost.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub fn keep(self, session: &Session) -> Result<(), Fault> {
        let path = file(session)?;
        fs::create_dir_all(&session.state_dir).map_err(|error| Fault::file(&session.state_dir, error))?;
        let kept = with(read(&path), self);
        let text = serde_json::to_vec(&kept).map_err(Fault::failed)?;
        replace_file(&path, 0o644, &text, Durability::Unsynced).map_err(|error| Fault::file(&path, error))
    }

    /// Formats the measurement: `memcached: p50 118us, p99 240us; measured 3 min ago by watch`. `now` is in
    /// seconds since 1970.
    pub fn text(&self, now: u64) -> String {
        let Self { service, by, .. } = self;
        let figures = self
            .response
            .map(|response| format!("p50 {}, p99 {}; ", short(response.p50), short(response.p99)));
        format!(
            "{service}: {}measured {} by {by}",
            figures.unwrap_or_default(),
            ago(now.saturating_sub(self.at))
        )
    }
}

fn with(kept: Vec<LastMeasured>, newest: LastMeasured) -> Vec<LastMeasured> {
    let is_prospect = newest.prospect.is_some();
    let (mut kept, others): (Vec<_>, Vec<_>) =
        kept.into_iter().partition(|one: &LastMeasured| one.prospect.is_some() == is_prospect);
    kept.retain(|one| (&one.service, one.netns) != (&newest.service, newest.netns));
    kept.insert(0, newest);
    kept.truncate(SERVICES_MAX);
    kept.extend(others);
    kept.sort_by_key(|one| std::cmp::Reverse(one.at));
    kept
}

fn file(session: &Session) -> Result<PathBuf, Fault> {
    session.journal()?;
    Ok(session.state_dir.join(FILE))
}

fn read(path: &Path) -> Vec<LastMeasured> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut text));
    read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod test {
    use crate::measure::expectation::Load;

    use super::*;

    fn measured(service: &str, at: u64) -> LastMeasured {
        LastMeasured {
            service: service.to_owned(),
            netns: NetnsId(7),
            at,
            by: "watch".to_owned(),
            response: None,
            prospect: None,
        }
    }

    #[test]
    fn a_service_is_kept_once_and_the_file_stays_small() {
        let mut kept = Vec::new();
        for at in 0..200 {
            kept = with(kept, measured(&format!("service {}", at % 100), at));
        }
        assert_eq!(kept.len(), SERVICES_MAX);
        assert_eq!((kept[0].at, kept[0].service.as_str()), (199, "service 99"));
        assert!(kept.iter().all(|one| one.at >= 136), "the oldest measurements are dropped");
    }

    #[test]
    fn what_was_measured_is_found_again_in_its_namespace_and_nothing_else_is_left_behind() {
        let directory = tempfile::TempDir::with_prefix("netpolicy-measured-").expect("a directory");
        let state_dir = directory.path().join("state");
        let session = Session { state_dir: state_dir.clone(), ..Session::default() };
        assert_eq!(LastMeasured::all(&session, NetnsId(7)), []);
        measured("cache", 10).keep(&session).expect("kept");
        measured("cache", 20).keep(&session).expect("kept");
        assert_eq!(LastMeasured::all(&session, NetnsId(7)), [measured("cache", 20)]);
        assert_eq!(LastMeasured::all(&session, NetnsId(8)), []);
        // A prospect does not replace response times, and response times do not replace a prospect.
        let load = Load {
            rate: 9.0,
            connections: 1,
            packets_per_poll: None,
            switches: None,
            delivery_share: None,
            spread: None,
        };
        let prospect = Prospect { load, expected: Vec::new(), unknown: None };
        let expected = |at| LastMeasured { prospect: Some(prospect.clone()), ..measured("cache", at) };
        for one in [expected(30), measured("cache", 40), expected(50), expected(60)] {
            one.keep(&session).expect("kept");
        }
        assert_eq!(LastMeasured::all(&session, NetnsId(7)), [expected(60), measured("cache", 40)]);
        assert_eq!(LastMeasured::of_each_service(&session, NetnsId(7)), [measured("cache", 40)]);
        assert_eq!(measured("cache", 20).text(200), "cache: measured 3 min ago by watch");
        fs::write(state_dir.join(FILE), "damaged").expect("written");
        assert_eq!(LastMeasured::all(&session, NetnsId(7)), []);
        let names: Vec<_> =
            fs::read_dir(&state_dir).expect("listed").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, [FILE]);
    }
}
