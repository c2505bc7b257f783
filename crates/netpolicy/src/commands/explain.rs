//! `explain`: why each setting is as it is.

use model::setting::Facts;
use model::{PolicyName, Setting};
use policy_file::nearest;
use session::explain::explained;
use session::{Exit, Fault};

use crate::args::Explain;
use crate::context::Context;
use crate::render::{KnobReport, RecipeReport};

/// Prints the reason of every setting in force and of every one that the policy files ask for; of a policy, its recipe.
pub(crate) fn run(arguments: &Explain, context: &Context) -> Result<Exit, Fault> {
    let asked = arguments.object.as_deref().unwrap_or("");
    match (asked, &arguments.setting) {
        ("setting", Some(name)) => return known(name, context),
        (_, Some(name)) => {
            let mistake = format!(
                "`{asked}` takes no `{name}`: quote the name of an object, or write `setting {name}`"
            );
            return Err(Fault::new(Exit::Usage, mistake));
        }
        (_, None) => {}
    }
    if let Ok(policy) = asked.parse::<PolicyName>() {
        context.console.report(&RecipeReport::of(policy, &*context.session.recipes()?))?;
        return Ok(Exit::Done);
    }
    let report = explained(asked, &context.session, &context.console)?;
    context.console.report(&report)?;
    report.asked_at().for_each(|line| context.console.say(line));
    if report.is_empty() && report.asked_at().next().is_none() {
        let what = if asked.is_empty() { "anything" } else { asked };
        context.console.say(&format!("netpolicy has not set {what}, and no policy file asks for it."));
    }
    Ok(Exit::Done)
}

/// What is known about the settings of this name or key.
fn known(name: &str, context: &Context) -> Result<Exit, Fault> {
    let table = Setting::table();
    let is_it = |key: &str| key == name || key.strip_prefix("settings.") == Some(name);
    let found: Vec<&Facts> =
        table.iter().copied().filter(|facts| facts.name == name || facts.key.is_some_and(is_it)).collect();
    if found.is_empty() {
        let fault = Fault::new(Exit::Usage, format!("there is no setting `{name}`"));
        let near = nearest(name, table.iter().map(|facts| facts.name));
        return Err(match near {
            Some(near) => fault.hint(format!("did you mean `{near}`?")),
            None => fault.hint("docs/reference/settings.md lists all of them"),
        });
    }
    context.console.report(&KnobReport::of(found))?;
    Ok(Exit::Done)
}
