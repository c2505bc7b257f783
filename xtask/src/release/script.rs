//! The shell of maintainer scripts, which both kinds of packages share.

use crate::files;
use crate::shell::{self, Result};

/// The parts that a script may name, and their files.
const PARTS: [(&str, &str); 2] =
    [("@AFTER_INSTALL@", "after-install.sh"), ("@BEFORE_REMOVAL@", "before-removal.sh")];

/// A script with the parts that it names; `put_back` is what an operator types to roll back.
pub(super) fn filled(script: &str, put_back: &str) -> Result<String> {
    let mut script = script.to_owned();
    for (name, file) in PARTS {
        let part = files::read(&shell::root().join("packaging/scripts").join(file))?;
        script = script.replace(name, part.trim_end());
    }
    Ok(script.replace("@PUT_BACK@", put_back))
}
