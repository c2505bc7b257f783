//! `top`: shows live which context delivers packets.

use std::time::Duration;

use model::Policy;
use session::{Exit, Fault};

use crate::args::Top;
use crate::render::ReadingReport;
use crate::top::reader::Reader;
use cli::Context;

/// Shows the host's packet delivery repeatedly, or once.
pub(crate) fn run(arguments: &Top, context: &Context) -> Result<Exit, Fault> {
    // Invalid policy files hide only the services, so show everything else.
    let policy = context.policy().map(|merged| merged.policy()).unwrap_or_else(|fault| {
        context.console.say(&format!("Ignoring the policy files: {}", fault.cause));
        Policy::default()
    });
    let mut reader = Reader::new(context.session.netns()?, policy)?;
    let interval = Duration::from_secs(arguments.interval.into());
    if arguments.once {
        std::thread::sleep(interval);
        context.console.report(&ReadingReport(&reader.read()?))?;
        return Ok(Exit::Done);
    }
    if context.console.is_for_programs() {
        return Err(Fault::new(Exit::Usage, "top is interactive and has no -o json".to_owned())
            .hint("netpolicy top --once -o json"));
    }
    watch(reader, interval, context)
}

#[cfg(feature = "top")]
fn watch(reader: Reader, interval: Duration, context: &Context) -> Result<Exit, Fault> {
    crate::top::watch(reader, interval, context.console.colours())
}

#[cfg(not(feature = "top"))]
fn watch(_: Reader, _: Duration, _: &Context) -> Result<Exit, Fault> {
    Err(Fault::new(Exit::Unsupported, "this netpolicy was built without the feature `top`".to_owned())
        .hint("netpolicy top --once prints one sample"))
}
