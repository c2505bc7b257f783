//! Passes commands to a running daemon, because no other process may change the daemon's settings.

use daemon::api::method::TargetParams;
use daemon::api::{CallError, Client};
use daemon::running_daemon;
use linux::Netns;
use model::host::Device;
use model::policy::Match;
use model::{DeliveryMode, Intent, NicRequest, Target};
use serde_json::{Map, Value, json};
use session::{Exit, Fault, HostState, staged};

use crate::args::{Unset, UnsetTarget};
use cli::Context;

/// Passes a `set` to the daemon.
pub(crate) fn set(
    client: &mut Client,
    intent: &Intent,
    settings: &[String],
    netns: &Netns,
    context: &Context,
) -> Result<Exit, Fault> {
    let Intent { target, policy, delivery, nic, kthread, budget, .. } = intent;
    let request = delivery.as_ref().map_or_else(|| policy.as_str().to_owned(), DeliveryMode::to_string);
    let parameters = json!({
        "target": TargetParams::of(target),
        "request": request,
        "settings": settings,
        "polling_cpus": budget.polling_cpus,
        "rt_priority": budget.rt_priority,
        "kthread_cpus": kthread.cpus.as_ref().map(ToString::to_string),
        "kthread_class": kthread.scheduling.map(|class| class.to_string()),
        "kthread_util_clamp": kthread.util_clamp.map(|clamp| clamp.to_string()),
        "kthread_slice": kthread.slice.map(|slice| slice.to_string()),
    });
    let exit = call(client, "Set", parameters, context)?;
    let is_offload =
        |offload| nic.iter().any(|one| matches!(one, NicRequest::Offload(of, _) if *of == offload));
    if let Target::Device(name) = target
        && nic.iter().any(|one| matches!(one, NicRequest::Offload(..)))
    {
        let switched = |device: &Device, offload| device.id.name.as_str() == name && is_offload(offload);
        let reported = staged::report_unswitched(&switched, netns, &context.console);
        reported.map_err(|fault| fault.leaving(HostState::Done))?;
    }
    Ok(exit)
}

/// Makes the daemon withdraw the request for a target.
pub(crate) fn unset(arguments: &Unset, context: &Context) -> Result<Exit, Fault> {
    let (target, netns) = match &arguments.target {
        UnsetTarget::Device { name } => (Target::Device(name.clone()), context.session.netns()?),
        UnsetTarget::Service { name } => {
            (Target::Service(name.clone(), Match::default()), context.session.netns()?)
        }
        UnsetTarget::Task { pid } => {
            // Use the process's namespace, as `set` does; if the process has exited, use the operator's
            // namespace.
            let netns = context.session.netns_of(model::Pid(*pid)).or_else(|_| context.session.netns())?;
            (Target::Task(model::Pid(*pid)), netns)
        }
    };
    let Some(mut client) = running_daemon::connect(&context.session, netns.id())? else {
        return Err(Fault::failed("no daemon is running that could withdraw the request").hint(
            "without a daemon, `set` makes a separate transaction: netpolicy history, netpolicy rollback ID",
        ));
    };
    call(&mut client, "Unset", json!({ "target": TargetParams::of(&target) }), context)
}

fn call(client: &mut Client, method: &str, parameters: Value, context: &Context) -> Result<Exit, Fault> {
    let parameters = match parameters {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    };
    let said = client.call(method, parameters).map_err(|error| {
        let answered = matches!(error, CallError::Refused(_));
        let fault = Fault::from(error);
        if answered { fault } else { fault.leaving(HostState::Unknown) }
    })?;
    let words = |name: &str| {
        let list = said.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        list.iter().filter_map(|line| line.as_str().map(str::to_owned)).collect::<Vec<String>>()
    };
    let changes: String = words("changes").iter().map(|line| format!("{line}\n")).collect();
    context.console.text(&changes)?;
    words("notes").iter().for_each(|note| context.console.say(note));
    let summary = said.get("summary").and_then(Value::as_str).unwrap_or("done");
    let transactions = words("transactions").join(", ");
    let by = if transactions.is_empty() { String::new() } else { format!(" ({transactions})") };
    context.console.say(&format!("Set by the daemon: {summary}{by}"));
    let pending = said.get("pending").and_then(Value::as_bool).unwrap_or(false);
    Ok(if pending { Exit::Pending } else { Exit::Done })
}
