//! Formats a rule as the line that loads it.

use crate::lookup::Lookup;

use crate::batch::Batch;
use crate::command::{Command, Filter};

impl Filter {
    /// The line of [`Filter::words`], if parsing it yields exactly this rule, so that a printed line can be
    /// loaded again with the same result.
    pub fn line(&self, lookup: &mut dyn Lookup) -> Option<String> {
        let line = self.words(lookup)?;
        // A name that ends with a backslash would join the next line to this one.
        let ended = format!("{line}\n");
        let mut batch = Batch::new(ended.as_bytes());
        let same = match batch.next_command(lookup) {
            Ok(Some((_, Command::Filter(read)))) => read.canonical() == self.canonical(),
            Ok(_) | Err(_) => false,
        };
        same.then_some(line)
    }
}
