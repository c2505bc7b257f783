//! Tests `packaging/monitoring/` and its how-to with a running daemon and Prometheus: the daemon serves every
//! metric that they name, every panel has data, and alerts fire under their conditions.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use linux::lab::{Memcached, MemcachedOptions, SERVER_DEVICE};
use model::{Nanoseconds, NapiKnob, Setting};
use serde_json::Value;
use testkit::markdown::{Document, repository};
use testkit::operator::{Operator, Started, are, at_work_with, somebody_else_sets, waited_for};
use testkit::unpacked::prometheus;
use testkit::{Need, test};

use crate::requests::while_asked_in_turn;

/// The daemon's address in the how-to.
const DAEMON: &str = "127.0.0.1:9989";

/// The address of the tests' Prometheus, in the lab.
const PROMETHEUS: &str = "127.0.0.1:9090";

/// The host's name in the how-to.
const INSTANCE: &str = "cache-1";

/// The time limit of an answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// `gro-flush-timeout` of defer50, in nanoseconds.
const DEFER50: u64 = 50_000;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf, Need::Memcached];
    const PROMETHEUS: &[Need] = &[Need::Root, Need::Prometheus];
    const ALL: &[Need] = &[Need::Root, Need::Suspension, Need::Bpf, Need::Memcached, Need::Prometheus];
    vec![
        test("monitored/every_metric_that_is_named_is_served_and_every_one_served_is_named", NEEDS, named),
        test("monitored/the_alert_rules_pass_their_unit_tests", &[Need::Prometheus], rules),
        test("monitored/a_collector_of_text_files_can_read_the_file", PROMETHEUS, text_file),
        test("monitored/a_prometheus_draws_every_panel_and_fires_the_alerts", ALL, scraped),
    ]
}

fn promtool() -> Result<Command, Failed> {
    let beside = prometheus().ok_or("no prometheus")?.with_file_name("promtool");
    Ok(Command::new(beside))
}

fn monitoring() -> PathBuf {
    repository().join("packaging/monitoring")
}

fn read(name: &str) -> Result<String, Failed> {
    let path = monitoring().join(name);
    std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// Returns a policy file for a service with this p99 goal, measured half of the time.
fn policy(goal: &str) -> String {
    format!(
        "[daemon]\nsample = \"500ms\"\n[service.cache]\nmatch = {{ port = 11211 }}\npolicy = \"bulk\"\n\
         delivery = \"defer50\"\ngoal = {{ p99 = \"{goal}\" }}\n"
    )
}

/// Starts memcached and a daemon that serves metrics as in the how-to.
fn begun(operator: &Operator) -> Result<(Memcached, Started), Failed> {
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let daemon = at_work_with(operator, &policy("1s"), &["--metrics-listen", DAEMON])?;
    are(operator, &[DEFER50])?;
    Ok((server, daemon))
}

/// Returns the answer to a GET request to an address in the lab.
pub(crate) fn fetched(operator: &Operator, address: &'static str, path: &str) -> Result<String, Failed> {
    let asked = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: lab\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = operator.lab.server().run(asked)??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP")?;
    if !head.lines().next().is_some_and(|line| line.contains(" 200 ")) {
        return Err(format!("{path}: {answer}").into());
    }
    Ok(body.to_owned())
}

/// Returns the names of netpolicy's metrics in a text, without the dashboard's `uid` and label names.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("netpolicy_")).map(str::to_owned).collect()
}

/// Returns the names of the samples and of the metric families on a page.
fn served(page: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let family = |line: &str| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned);
    let sample =
        |line: &str| (!line.starts_with('#')).then(|| line.split(['{', ' ']).next().map(str::to_owned))?;
    (page.lines().filter_map(sample).collect(), page.lines().filter_map(family).collect())
}

fn named() -> Result<(), Failed> {
    let operator = Operator::new("monitored-names", 1)?;
    let (_server, daemon) = begun(&operator)?;
    let page = while_asked_in_turn(&operator, || {
        waited_for("a page on which the service is measured", || {
            let page = fetched(&operator, DAEMON, "/metrics")?;
            Ok(page.contains("netpolicy_engaged_ratio{").then_some(page))
        })
    })?;
    let (samples, families) = served(&page);
    for file in ["netpolicy-host.json", "netpolicy.rules.yml", "netpolicy.rules.test.yml"] {
        // A service with a `holdback` has no proof in the first minutes, so these metrics may be missing.
        let awaits_a_proof = |name: &String| name.starts_with("netpolicy_proof_") && families.contains(name);
        let missing: Vec<_> = metrics_in(&read(file)?)
            .into_iter()
            .filter(|name| !samples.contains(name) && !awaits_a_proof(name))
            .collect();
        assert!(missing.is_empty(), "{file} names metrics that are not served: {missing:?} {page}");
    }
    let reference = std::fs::read_to_string(repository().join("docs/reference/metrics.md"))?;
    let documented = metrics_in(&reference);
    let of_family = |name: &String| {
        let plain = ["_total", "_info"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        families.contains(plain)
    };
    let gone: Vec<_> = documented.iter().filter(|name| !of_family(name)).collect();
    assert!(gone.is_empty(), "docs/reference/metrics.md names metrics that are not served: {gone:?}");
    let is_documented = |family: &&String| {
        ["", "_total", "_info"].iter().any(|end| documented.contains(&format!("{family}{end}")))
    };
    let silent: Vec<_> = families.iter().filter(|family| !is_documented(family)).collect();
    assert!(silent.is_empty(), "docs/reference/metrics.md does not name {silent:?}");
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

fn rules() -> Result<(), Failed> {
    let output =
        promtool()?.current_dir(monitoring()).args(["test", "rules", "netpolicy.rules.test.yml"]).output()?;
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    Ok(())
}

fn text_file() -> Result<(), Failed> {
    let operator = Operator::new("monitored-file", 1)?;
    let file = operator.file("netpolicy.prom", b"")?;
    // Start the daemon with the umask of its unit, with which other users cannot read new files by default.
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let started = at_work_with(&operator, "", &["--metrics-file", &file]);
    rustix::process::umask(mask);
    let daemon = started?;
    assert_eq!(std::fs::metadata(&file)?.permissions().mode() & 0o777, 0o644, "for another user's collector");
    // Check with Prometheus's own parser.
    let mut check = promtool()?;
    let check = check.args(["check", "metrics"]).stdin(std::fs::File::open(&file)?).output()?;
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

/// Changes a setting that the daemon manages, as another program would.
fn foreign_change(operator: &Operator) -> Result<(), Failed> {
    let host = operator.devices()?;
    let queue = host.device_named(SERVER_DEVICE).ok_or("the device")?.rx_queues[0].id;
    somebody_else_sets(Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(77_000))))
}

/// Writes the how-to's configuration and the project's rules to a scratch directory. This Prometheus scrapes
/// every second, and alerts fire immediately; unit tests cover the alerts' durations.
fn configured(scratch: &Path) -> Result<PathBuf, Failed> {
    let page = Document::of(&std::fs::read_to_string(repository().join("docs/howto/monitoring.md"))?);
    let yaml =
        page.blocks.iter().find(|block| block.info == "yaml").ok_or("the how-to has a configuration")?;
    let text = yaml.lines.join("\n").replace("15s", "1s").replace("/etc/prometheus/", "");
    std::fs::create_dir_all(scratch)?;
    let file = scratch.join("prometheus.yml");
    std::fs::write(&file, text)?;
    let mut hasty = String::new();
    for line in read("netpolicy.rules.yml")?.lines().filter(|line| !line.trim().starts_with("for: ")) {
        writeln!(hasty, "{line}")?;
    }
    std::fs::write(scratch.join("netpolicy.rules.yml"), hasty)?;
    let output = promtool()?.args(["check", "config"]).arg(&file).output()?;
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    Ok(file)
}

/// Starts a Prometheus on the operator's host.
fn prometheus_at(operator: &Operator) -> Result<Started, Failed> {
    let scratch = operator.state().with_file_name("prometheus");
    let configuration = configured(&scratch)?;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", operator.lab.server_pid()));
    command
        .arg(prometheus().ok_or("no prometheus")?)
        .arg(format!("--config.file={}", configuration.display()));
    command.arg(format!("--storage.tsdb.path={}", scratch.join("data").display()));
    command.arg(format!("--web.listen-address={PROMETHEUS}"));
    let log = std::fs::File::create(scratch.join("log"))?;
    let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
    let started = Started { child };
    let ready = || Ok(fetched(operator, PROMETHEUS, "/-/ready").is_ok().then_some(()));
    waited_for("a Prometheus", ready).map_err(|failed| {
        let log = std::fs::read_to_string(scratch.join("log")).unwrap_or_default();
        Failed::from(format!("{failed:?}\n{log}"))
    })?;
    Ok(started)
}

/// Evaluates an expression in Prometheus.
fn asked(operator: &Operator, expression: &str) -> Result<Vec<Value>, Failed> {
    let mut path = "/api/v1/query?query=".to_owned();
    for byte in expression.bytes() {
        write!(path, "%{byte:02x}")?;
    }
    let answer: Value = serde_json::from_str(&fetched(operator, PROMETHEUS, &path)?)?;
    Ok(answer["data"]["result"].as_array().cloned().ok_or_else(|| format!("{expression}: {answer}"))?)
}

/// Waits until an alert fires or, with `whether` false, until it no longer fires.
fn fires(operator: &Operator, alert: &str, whether: bool) -> Result<(), Failed> {
    let expression =
        format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\", instance=\"{INSTANCE}\"}}");
    waited_for(&format!("{alert} that fires: {whether}"), || {
        Ok((asked(operator, &expression)?.is_empty() != whether).then_some(()))
    })
}

/// Returns the dashboard's expressions as Grafana evaluates them, each with its panel's title.
fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap_or_default();
            let expression = expression
                .replace("$__rate_interval", "8s")
                .replace("$instance", INSTANCE)
                .replace("$target", ".+");
            found.push((panel["title"].as_str().unwrap_or_default().to_owned(), expression));
        }
    }
    found
}

fn scraped() -> Result<(), Failed> {
    let operator = Operator::new("monitored-prometheus", 1)?;
    let (_server, daemon) = begun(&operator)?;
    let prometheus = prometheus_at(&operator)?;
    while_asked_in_turn(&operator, || {
        waited_for("a service that is measured", || {
            let measured =
                asked(&operator, "up{job=\"netpolicy\"} == 1 and on () netpolicy_engaged_ratio > 0.05")?;
            Ok((!measured.is_empty()).then_some(()))
        })?;
        waited_for("a host without problems", || Ok(asked(&operator, "ALERTS")?.is_empty().then_some(())))?;

        foreign_change(&operator)?;
        fires(&operator, "NetpolicyForeignChanges", true)?;
        are(&operator, &[DEFER50])?;
        every_panel_has_data(&operator)?;

        operator.asks(&policy("1us"))?;
        fires(&operator, "NetpolicyGoalMissed", true)?;
        operator.asks(&policy("1s"))?;
        fires(&operator, "NetpolicyGoalMissed", false)
    })?;

    operator.asks("[device.eth0]\npolicy = \"lateny\"\n")?;
    fires(&operator, "NetpolicyPolicyMistaken", true)?;
    operator.asks(&policy("1s"))?;
    fires(&operator, "NetpolicyPolicyMistaken", false)?;

    operator.runs(&["rollback"], 0)?;
    fires(&operator, "NetpolicyReleased", true)?;

    assert_eq!(daemon.terminated()?, Some(0));
    fires(&operator, "NetpolicyDown", true)?;
    assert_eq!(prometheus.terminated()?, Some(0));
    Ok(())
}

/// Checks that all panels have data, after every kind of event has happened.
fn every_panel_has_data(operator: &Operator) -> Result<(), Failed> {
    let dashboard: Value = serde_json::from_str(&read("netpolicy-host.json")?)?;
    let expressions = expressions(&dashboard);
    assert!(expressions.len() > 30, "{expressions:?}");
    // A service with a `holdback` has no proof in the first minutes; `proven/` tests those metrics.
    for (title, expression) in expressions.into_iter().filter(|(_, text)| !text.contains("netpolicy_proof")) {
        waited_for(&format!("data of panel `{title}`: {expression}"), || {
            Ok((!asked(operator, &expression)?.is_empty()).then_some(()))
        })?;
    }
    Ok(())
}
