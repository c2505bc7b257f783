//! The methods of the API, and their parameters.

use apply::TransactionName;
use model::policy::Match;
use model::{Budget, CpuSet, Glob, Intent, KthreadValue, Patterns, Pid, Target};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::wire::VarlinkCall;
use crate::sessions::{CompareParams, SessionCall, TryParams, TuneParams, WatchParams};

/// The name of the daemon's Varlink interface.
pub const INTERFACE: &str = "io.netpolicy";
/// The interface's description.
pub const DESCRIPTION: &str = include_str!("io.netpolicy.varlink");
/// The name of the interface that every Varlink service has.
pub const SERVICE: &str = "org.varlink.service";
/// The Varlink description of the interface [`SERVICE`].
pub const SERVICE_DESCRIPTION: &str = include_str!("org.varlink.service.varlink");

/// The maximum length of a service name in a call of `Set`, in bytes.
const SERVICE_NAME_BYTES_MAX: usize = 256;

/// The maximum number of device settings in a call of `Set`.
const SETTINGS_MAX: usize = 64;

/// A call whose parameters are valid.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// `org.varlink.service.GetInfo`.
    GetInfo,
    /// `org.varlink.service.GetInterfaceDescription`, for the interface with this name.
    GetInterfaceDescription(String),
    /// Report the status.
    Status,
    /// Report the findings.
    Findings,
    /// Return every held setting.
    Settings,
    /// Set the policy of a target.
    Set(Box<Intent>),
    /// Withdraw the request for a target.
    Unset(Target),
    /// Roll back everything.
    Rollback,
    /// Read the policy files again.
    Reload,
    /// Answer a query that requires the host to be observed.
    Ask(Question),
    /// Begin a session.
    Begin(Box<SessionCall>),
    /// Cancel the session with this number.
    Cancel(u64),
}

/// A query that a separate thread answers, because the answer takes time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Return the changes that the policy files would make.
    Plan,
    /// Return why settings have their values, for the settings of this object or for all settings.
    Explain(Option<String>),
    /// Return whether the applied settings are in force.
    Verify,
    /// Confirm this transaction, or the newest trial.
    Confirm(Option<TransactionName>),
    /// Roll this transaction back.
    RollBack(TransactionName),
}

impl Question {
    /// Whether answering the query changes the journal or the host.
    pub const fn changes(&self) -> bool {
        matches!(self, Self::Confirm(_) | Self::RollBack(_))
    }
}

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct VarlinkError {
    /// The error's name, with its interface.
    pub error: String,
    /// The parameters of the error.
    pub parameters: Map<String, Value>,
}

impl VarlinkError {
    /// Creates an error that Varlink itself defines, with an optional parameter.
    pub fn service(name: &str, about: Option<(&str, &str)>) -> Self {
        let parameters = about.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        Self { error: format!("{SERVICE}.{name}"), parameters }
    }

    /// Creates the error for a request that cannot be fulfilled.
    pub fn refused(exit: u8, why: impl Into<String>, hint: Option<String>) -> Self {
        let parameters = [
            ("exit".to_owned(), exit.into()),
            ("why".to_owned(), Value::String(why.into())),
            ("hint".to_owned(), hint.into()),
        ];
        Self { error: format!("{INTERFACE}.Refused"), parameters: parameters.into_iter().collect() }
    }

    /// Creates the error for a call that is refused because too many are in progress.
    pub fn busy(why: impl Into<String>) -> Self {
        let why = ("why".to_owned(), Value::String(why.into()));
        Self { error: format!("{INTERFACE}.Busy"), parameters: [why].into_iter().collect() }
    }
}

/// A call's parameters that select a target.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TargetParams {
    /// A network device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// A service: the processes that meet the criteria in `match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// A process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// The criteria for a service's processes.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<MatchParams>,
}

/// A call's parameters with the criteria for a service's processes.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct MatchParams {
    /// See [`Match::unit`]. In this field and the next four, patterns are separated by commas.
    pub unit: Option<String>,
    /// See [`Match::cgroup`].
    pub cgroup: Option<String>,
    /// See [`Match::exe`].
    pub exe: Option<String>,
    /// See [`Match::pod`].
    pub pod: Option<String>,
    /// See [`Match::container`].
    pub container: Option<String>,
    /// See [`Match::port`].
    pub port: Option<u16>,
    /// See [`Match::uid`].
    pub uid: Option<u32>,
}

/// The parameters of a call of `Set`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SetParams {
    /// The device, service or process to configure.
    pub target: TargetParams,
    /// The name of a policy or of a delivery mode.
    pub request: String,
    /// Additional settings of a device.
    #[serde(default)]
    pub settings: Option<Vec<String>>,
    /// The CPUs on which interrupts and threads may run.
    #[serde(default)]
    pub cpus: Option<String>,
    /// The maximum number of CPUs that may poll without traffic.
    #[serde(default)]
    pub polling_cpus: Option<u32>,
    /// The maximum real-time priority of kernel threads.
    #[serde(default)]
    pub rt_priority: Option<u32>,
    /// The CPUs on which kernel threads may run.
    #[serde(default)]
    pub kthread_cpus: Option<String>,
    /// The scheduling class of kernel threads.
    #[serde(default)]
    pub kthread_class: Option<String>,
    /// The utilization clamp of kernel threads.
    #[serde(default)]
    pub kthread_util_clamp: Option<String>,
    /// The time slice of kernel threads.
    #[serde(default)]
    pub kthread_slice: Option<String>,
}

impl TargetParams {
    /// Converts the parameters to a target.
    ///
    /// # Errors
    /// A sentence, if the parameters name no target or more than one.
    pub fn target(self) -> Result<Target, String> {
        let matching = self.matching.is_some();
        match (self.device, self.service, self.task) {
            (Some(name), None, None) if !matching => {
                policy_file::device_name(&name)?;
                Ok(Target::Device(name))
            }
            (None, None, Some(pid)) if !matching && pid > 0 => Ok(Target::Task(Pid(pid))),
            (None, Some(name), None) => {
                if name.is_empty() {
                    return Err("the service's name is empty".to_owned());
                }
                if name.len() > SERVICE_NAME_BYTES_MAX || name.contains(char::is_control) {
                    return Err(format!(
                        "a service's name has at most {SERVICE_NAME_BYTES_MAX} bytes, and no control characters"
                    ));
                }
                let MatchParams { unit, cgroup, exe, pod, container, port, uid } =
                    self.matching.unwrap_or_default();
                let matching = Match {
                    unit: patterns("unit", unit.as_deref())?,
                    cgroup: patterns("cgroup", cgroup.as_deref())?,
                    exe: patterns("exe", exe.as_deref())?,
                    pod: patterns("pod", pod.as_deref())?,
                    container: patterns("container", container.as_deref())?,
                    port,
                    uid,
                };
                Ok(Target::Service(name, matching))
            }
            _ => Err("exactly one of device, service (with match) and task is required".to_owned()),
        }
    }

    /// Converts a target to parameters.
    pub fn of(target: &Target) -> Self {
        match target {
            // A client cannot request devices by their properties; only a policy file can.
            Target::Device(name) | Target::Devices(name, _) => {
                Self { device: Some(name.clone()), ..Self::default() }
            }
            // The interface cannot name single epolls of a process, so the whole process is named.
            Target::Task(pid) | Target::Epolls(pid, _) => Self { task: Some(pid.0), ..Self::default() },
            Target::Service(name, matching) => {
                let Match { unit, cgroup, exe, pod, container, port, uid } = matching;
                let matching = Some(MatchParams {
                    unit: unit.as_ref().map(with_commas),
                    cgroup: cgroup.as_ref().map(with_commas),
                    exe: exe.as_ref().map(with_commas),
                    pod: pod.as_ref().map(with_commas),
                    container: container.as_ref().map(with_commas),
                    port: *port,
                    uid: *uid,
                });
                Self { service: Some(name.clone()), matching, ..Self::default() }
            }
        }
    }
}

/// Parses comma-separated patterns.
fn patterns(name: &str, text: Option<&str>) -> Result<Option<Patterns>, String> {
    let read = |text: &str| Patterns::of(text.split(',').map(str::trim));
    text.map(|text| read(text).map_err(|wrong| format!("match.{name}: {wrong}"))).transpose()
}

fn with_commas(patterns: &Patterns) -> String {
    patterns.iter().map(Glob::as_str).collect::<Vec<_>>().join(",")
}

impl SetParams {
    /// Converts the parameters to a request. `origin` identifies the caller.
    ///
    /// # Errors
    /// A sentence that names the invalid parameter.
    pub fn intent(self, origin: &str) -> Result<Intent, String> {
        fn read<T: std::str::FromStr>(name: &str, text: Option<&str>) -> Result<Option<T>, String>
        where
            T::Err: std::fmt::Display,
        {
            text.map(|text| text.parse().map_err(|error| format!("{name}: {error}"))).transpose()
        }
        let settings = self.settings.unwrap_or_default();
        if settings.len() > SETTINGS_MAX {
            return Err(format!("settings: more than {SETTINGS_MAX}"));
        }
        if self.rt_priority.is_some_and(|priority| !(1..=99).contains(&priority)) {
            return Err("rt_priority: 1 to 99".to_owned());
        }
        let nic = settings
            .iter()
            .map(|text| policy_file::setting(text).map_err(|error| format!("settings: {error}")))
            .collect::<Result<Vec<_>, _>>()?;
        let target = self.target.target()?;
        if !nic.is_empty() && !matches!(target, Target::Device(_)) {
            return Err("`settings` is allowed for devices only".to_owned());
        }
        let kthread = [
            read("kthread_cpus", self.kthread_cpus.as_deref())?.map(KthreadValue::Cpus),
            read("kthread_class", self.kthread_class.as_deref())?.map(KthreadValue::Class),
            read("kthread_util_clamp", self.kthread_util_clamp.as_deref())?.map(KthreadValue::UtilClamp),
            read("kthread_slice", self.kthread_slice.as_deref())?.map(KthreadValue::Slice),
        ];
        let kthread = kthread.into_iter().flatten().collect();
        let cpus: Option<CpuSet> = read("cpus", self.cpus.as_deref())?;
        let word = policy_file::word(&self.request).map_err(|error| format!("request: {error}"))?;
        let budget =
            Budget { polling_cpus: self.polling_cpus, added_delay: None, rt_priority: self.rt_priority };
        Ok(Intent { nic, kthread, cpus, ..word.intent(target, origin, budget) })
    }
}

impl Method {
    /// Parses a call; `origin` identifies the caller.
    ///
    /// # Errors
    /// Varlink's own errors for an unknown method or parameter; [`VarlinkError::refused`] for an invalid value.
    pub fn of(call: &VarlinkCall, origin: &str) -> Result<Self, VarlinkError> {
        let (interface, name) = call.method.rsplit_once('.').unwrap_or(("", &call.method));
        if call.upgrade {
            return Err(VarlinkError::service("MethodNotImplemented", Some(("method", &call.method))));
        }
        let parameters = &call.parameters;
        let method = match (interface, name) {
            (SERVICE, "GetInfo") => Self::GetInfo,
            (SERVICE, "GetInterfaceDescription") => {
                Self::GetInterfaceDescription(text(parameters, "interface")?)
            }
            (INTERFACE, "Status") => Self::Status,
            (INTERFACE, "Findings") => Self::Findings,
            (INTERFACE, "Settings") => Self::Settings,
            (INTERFACE, "Rollback") => match transaction(parameters)? {
                Some(name) => Self::Ask(Question::RollBack(name)),
                None => Self::Rollback,
            },
            (INTERFACE, "Confirm") => Self::Ask(Question::Confirm(transaction(parameters)?)),
            (INTERFACE, "Watch") => begin(read::<WatchParams>(parameters, &["service"])?.call())?,
            (INTERFACE, "Compare") => {
                begin(read::<CompareParams>(parameters, &["service", "candidates"])?.call())?
            }
            (INTERFACE, "Tune") => begin(read::<TuneParams>(parameters, &["service", "goal"])?.call())?,
            (INTERFACE, "Try") => begin(read::<TryParams>(parameters, &[])?.call())?,
            (INTERFACE, "Cancel") => {
                let session = parameters.get("session").and_then(Value::as_u64);
                let missing = || VarlinkError::service("InvalidParameter", Some(("parameter", "session")));
                Self::Cancel(session.ok_or_else(missing)?)
            }
            (INTERFACE, "Reload") => Self::Reload,
            (INTERFACE, "Plan") => Self::Ask(Question::Plan),
            (INTERFACE, "Verify") => Self::Ask(Question::Verify),
            (INTERFACE, "Explain") => {
                let object = parameters.get("object").filter(|object| !object.is_null());
                Self::Ask(Question::Explain(object.map(|_| text(parameters, "object")).transpose()?))
            }
            (INTERFACE, "Set") => {
                let said: SetParams = read(parameters, &["target", "request"])?;
                let intent = said.intent(origin).map_err(|why| VarlinkError::refused(2, why, None))?;
                Self::Set(Box::new(intent))
            }
            (INTERFACE, "Unset") => {
                let Some(target) = parameters.get("target") else {
                    return Err(VarlinkError::service("InvalidParameter", Some(("parameter", "target"))));
                };
                let said: TargetParams = serde_json::from_value(target.clone())
                    .map_err(|_| VarlinkError::service("InvalidParameter", Some(("parameter", "target"))))?;
                Self::Unset(said.target().map_err(|why| VarlinkError::refused(2, why, None))?)
            }
            (INTERFACE | SERVICE, _) => {
                return Err(VarlinkError::service("MethodNotFound", Some(("method", &call.method))));
            }
            _ => return Err(VarlinkError::service("InterfaceNotFound", Some(("interface", interface)))),
        };
        Ok(method)
    }
}

/// Whether any user may call a method with this name; such a method's reply depends on the user. True for
/// unknown methods, so that the reply is "unknown method" instead of a refusal.
pub fn is_for_everybody(method: &str) -> bool {
    match method.rsplit_once('.') {
        Some((INTERFACE, name)) if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            name == "Status" || !DESCRIPTION.contains(&format!("\nmethod {name}("))
        }
        _ => true,
    }
}

fn begin(call: Result<SessionCall, VarlinkError>) -> Result<Method, VarlinkError> {
    Ok(Method::Begin(Box::new(call?)))
}

/// Returns the transaction that a call names, if any.
fn transaction(parameters: &Map<String, Value>) -> Result<Option<TransactionName>, VarlinkError> {
    if parameters.get("transaction").is_none_or(Value::is_null) {
        return Ok(None);
    }
    let name = text(parameters, "transaction")?;
    name.parse().map(Some).map_err(|wrong: apply::NotATransaction| {
        VarlinkError::refused(2, wrong.to_string(), Some("netpolicy history".to_owned()))
    })
}

/// A text parameter.
fn text(parameters: &Map<String, Value>, name: &str) -> Result<String, VarlinkError> {
    let value = parameters.get(name).and_then(Value::as_str).map(str::to_owned);
    value.ok_or_else(|| VarlinkError::service("InvalidParameter", Some(("parameter", name))))
}

/// Parses all parameters of a call. The error names the missing or invalid parameter.
fn read<T: for<'de> Deserialize<'de>>(
    parameters: &Map<String, Value>,
    needed: &[&str],
) -> Result<T, VarlinkError> {
    let wrong = |name: &str| VarlinkError::service("InvalidParameter", Some(("parameter", name)));
    if let Some(missing) = needed.iter().find(|name| !parameters.contains_key(**name)) {
        return Err(wrong(missing));
    }
    serde_json::from_value(Value::Object(parameters.clone())).map_err(|error| {
        let words = error.to_string();
        let named = parameters.keys().find(|name| words.contains(&format!("`{name}`")));
        wrong(named.map_or(words.as_str(), String::as_str))
    })
}

#[cfg(test)]
mod test {
    use model::{DeliveryMode, PolicyName};

    use super::*;
    use crate::api::wire::decode_call;

    fn called(text: &str) -> Result<Method, VarlinkError> {
        Method::of(&decode_call(text.as_bytes()).expect("a call"), "test")
    }

    #[test]
    fn a_set_is_the_request_that_a_policy_file_would_be() {
        let method = called(
            r#"{"method":"io.netpolicy.Set","parameters":{"target":{"device":"eth0"},"request":"defer50",
                "settings":["rx-usecs=8"],"cpus":"0-3","polling_cpus":2,"kthread_class":"other:-5","kthread_slice":"500us"}}"#,
        );
        let Ok(Method::Set(intent)) = method else { panic!("{method:?}") };
        assert_eq!(intent.target, Target::Device("eth0".to_owned()));
        assert!(matches!(intent.delivery, Some(DeliveryMode::Defer { .. })), "{intent:?}");
        assert_eq!((intent.policy, intent.nic.len()), (PolicyName::None, 1));
        assert_eq!(intent.kthread.slice, "500us".parse().ok());
        assert_eq!((intent.budget.polling_cpus, intent.cpus), (Some(2), "0-3".parse().ok()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (call, error, about) in [
            (
                r#"{"method":"io.netpolicy.Nothing"}"#,
                "org.varlink.service.MethodNotFound",
                "io.netpolicy.Nothing",
            ),
            (r#"{"method":"com.example.X"}"#, "org.varlink.service.InterfaceNotFound", "com.example"),
            (r#"{"method":"X"}"#, "org.varlink.service.InterfaceNotFound", ""),
            (
                r#"{"method":"io.netpolicy.Status","upgrade":true}"#,
                "org.varlink.service.MethodNotImplemented",
                "io.netpolicy.Status",
            ),
            (
                r#"{"method":"io.netpolicy.Set","parameters":{"target":{"device":"eth0"}}}"#,
                "org.varlink.service.InvalidParameter",
                "request",
            ),
            (
                r#"{"method":"io.netpolicy.Set","parameters":{"target":{},"request":"latency","more":1}}"#,
                "org.varlink.service.InvalidParameter",
                "more",
            ),
            (
                r#"{"method":"io.netpolicy.Unset","parameters":{"target":{"device":"a","task":1}}}"#,
                "io.netpolicy.Refused",
                "exactly one of device",
            ),
            (
                r#"{"method":"io.netpolicy.Set","parameters":{"target":{"device":"../../etc"},"request":"latency"}}"#,
                "io.netpolicy.Refused",
                "is not a device name",
            ),
            (
                r#"{"method":"io.netpolicy.Set","parameters":{"target":{"device":"a\n\u001b[31mb"},"request":"latency"}}"#,
                "io.netpolicy.Refused",
                "is not a device name",
            ),
            (
                r#"{"method":"io.netpolicy.Set","parameters":{"target":{"device":""},"request":"latency"}}"#,
                "io.netpolicy.Refused",
                "the name is empty",
            ),
            (
                r#"{"method":"io.netpolicy.Set","parameters":{"target":{"task":1},"request":"latncy"}}"#,
                "io.netpolicy.Refused",
                "did you mean `latency`?",
            ),
        ] {
            let refusal = called(call).expect_err(call);
            assert_eq!(refusal.error, error, "{call}");
            let said = Value::Object(refusal.parameters).to_string();
            assert!(said.contains(about), "{call}: {said}");
        }
    }

    #[test]
    fn everything_that_can_be_called_is_described() {
        for name in DESCRIPTION.lines().filter_map(|line| line.strip_prefix("method ")?.split('(').next()) {
            let refusal = called(&format!(r#"{{"method":"io.netpolicy.{name}"}}"#)).err();
            assert!(refusal.is_none_or(|r| r.error.ends_with("InvalidParameter")), "{name}");
        }
    }

    #[test]
    fn only_what_shows_nothing_of_others_is_for_everybody() {
        for (call, everybody) in [
            ("io.netpolicy.Status", true),
            ("org.varlink.service.GetInfo", true),
            ("io.netpolicy.NoSuchMethod", true),
            ("io.netpolicy.Findings", false),
            ("io.netpolicy.Settings", false),
            ("io.netpolicy.Set", false),
            ("io.netpolicy.Plan", false),
            ("io.netpolicy.Rollback", false),
        ] {
            assert_eq!(is_for_everybody(call), everybody, "{call}");
        }
    }
}
