//! Static checks of the dashboard and the alert rules. `root/monitored.rs` tests that their metrics are
//! served and that the alerts fire.

use std::collections::BTreeSet;

use serde_json::Value;
use testkit::markdown::{Document, repository};

/// The number of columns in Grafana's layout.
const COLUMNS: u64 = 24;

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).expect("a file of the repository")
}

fn dashboard() -> Value {
    serde_json::from_str(&read("packaging/monitoring/netpolicy-host.json")).expect("JSON")
}

/// Returns the values of a key in YAML that has one key per line.
fn values<'a>(yaml: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    let line =
        move |line: &'a str| line.trim().trim_start_matches("- ").strip_prefix(key)?.strip_prefix(": ");
    yaml.lines().filter_map(line)
}

#[test]
fn panels_have_places_of_their_own_and_say_what_they_show() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64()), "{title}: another panel has the same id");
        let [x, y, width, height] =
            ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().expect("a place"));
        assert!(x + width <= COLUMNS, "{title} is beyond the last column");
        for cell in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title} overlaps another panel");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(
            panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
            "{title}: no description"
        );
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}: no unit");
        for target in panel["targets"].as_array().expect("targets") {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}: another data source");
            let expression = target["expr"].as_str().expect("an expression");
            let metrics = expression.matches("netpolicy_").count();
            let of_host = expression.matches("{instance=~\"$instance\"").count();
            assert!(metrics == of_host && metrics > 0, "{title} selects more than one host: {expression}");
        }
    }
    assert!(panels.len() > 15);
}

#[test]
fn every_alert_has_a_unit_test_an_explanation_and_a_way_there() {
    let rules = read("packaging/monitoring/netpolicy.rules.yml");
    let tests = read("packaging/monitoring/netpolicy.rules.test.yml");
    let page = Document::of(&read("docs/howto/monitoring.md"));
    let alerts: BTreeSet<&str> = values(&rules, "alert").collect();
    assert!(alerts.len() >= 10, "{alerts:?}");
    let tested: BTreeSet<&str> = values(&tests, "alertname").filter(|name| !name.contains(' ')).collect();
    assert_eq!(alerts, tested, "each alert fires in a unit test");
    for alert in &alerts {
        let silent = format!("{{ alertname: {alert}, ");
        assert!(tests.contains(&silent), "{alert}: no unit test in which the alert does not fire");
        let anchor = alert.to_lowercase();
        assert!(page.anchors.contains(&anchor), "{alert} is not explained");
        let runbook = format!("docs/howto/monitoring.md#{anchor}");
        assert!(values(&rules, "runbook").any(|path| path == runbook), "{alert}: no runbook");
    }
    for key in ["summary", "description", "runbook", "severity"] {
        assert_eq!(values(&rules, key).count(), alerts.len(), "{key}");
    }
    let severities: BTreeSet<&str> = values(&rules, "severity").collect();
    assert_eq!(
        severities,
        ["info", "warning"].into(),
        "packets flow without the daemon, so this alert does not page anyone"
    );
    let named: BTreeSet<&str> =
        page.anchors.iter().map(String::as_str).filter(|a| a.starts_with("netpolicy")).collect();
    let lower: Vec<String> = alerts.iter().map(|alert| alert.to_lowercase()).collect();
    assert_eq!(named, lower.iter().map(String::as_str).collect(), "the page lists no removed alert");
}

#[test]
fn the_dashboard_names_only_alerts_that_there_are() {
    let rules = read("packaging/monitoring/netpolicy.rules.yml");
    let alerts: BTreeSet<&str> = values(&rules, "alert").collect();
    let text = dashboard().to_string();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let named: BTreeSet<&str> =
        words.filter(|word| word.starts_with("Netpolicy") && *word != "Netpolicy").collect();
    assert!(named.is_subset(&alerts) && named.len() > 5, "{named:?}");
}
