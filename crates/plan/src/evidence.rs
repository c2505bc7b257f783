//! Measured verdicts on settings: evidence for a plan that would set them again, and for settings in force.

use model::{Ruling, Setting};

/// A verdict in the journal on the settings of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalVerdict {
    /// The transaction that set the settings.
    pub transaction: String,
    /// The command of that transaction.
    pub command: String,
    /// The settings that were judged.
    pub settings: Vec<Setting>,
    /// The service on whose traffic the settings were measured.
    pub service: String,
    /// The ruling.
    pub ruling: Ruling,
    /// The measurements, as text.
    pub measured: String,
}

impl JournalVerdict {
    /// Whether the verdict is against the settings.
    pub const fn is_against(&self) -> bool {
        matches!(self.ruling, Ruling::Worse | Ruling::BeyondLimit | Ruling::Stalled)
    }

    /// Whether the measurement was conclusive.
    const fn is_conclusive(&self) -> bool {
        self.is_against() || matches!(self.ruling, Ruling::Better | Ruling::Kept | Ruling::Mixed)
    }

    /// Returns whether the verdict is on at least one of these settings, and on none of them with another
    /// value.
    fn is_on(&self, settings: &[&Setting]) -> bool {
        let mut has = false;
        for setting in settings {
            let same =
                |known: &&Setting| known.object() == setting.object() && known.knob() == setting.knob();
            match self.settings.iter().find(same) {
                Some(known) if known == *setting => has = true,
                Some(_) => return false,
                None => {}
            }
        }
        has
    }

    /// Describes the verdict in a sentence.
    pub fn sentence(&self) -> String {
        let word = match self.ruling {
            Ruling::Better | Ruling::Kept => "better, or not worse",
            Ruling::Mixed => "better in one figure and worse in another",
            Ruling::Stalled => "stalling requests",
            _ => "worse",
        };
        format!(
            "measured on {} as {word}: {} (transaction {}, `{}`)",
            self.service, self.measured, self.transaction, self.command
        )
    }
}

/// Returns the newest conclusive verdict on these settings. `known` is sorted newest first.
pub fn evidence_on<'e>(settings: &[&Setting], known: &'e [JournalVerdict]) -> Option<&'e JournalVerdict> {
    known.iter().find(|evidence| evidence.is_conclusive() && evidence.is_on(settings))
}
