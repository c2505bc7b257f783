//! Checks the Helm chart without helm: its schema lists the values of values.yaml, each value has a
//! description, and its containers have the capabilities of the systemd units. `root/rollout.rs` renders the
//! chart. Also checks the messages on which the Ansible collection depends.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;
use testkit::markdown::{Document, repository};

const CHART: &str = "packaging/helm/netpolicy";

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the dotted paths of the values in values.yaml. A mapping without a comment is represented by its
/// keys. The comment above a value is its description, which `helm show values` prints.
fn values() -> BTreeSet<String> {
    let (mut paths, mut description, mut parents): (BTreeSet<String>, String, Vec<(usize, String)>) =
        (BTreeSet::new(), String::new(), Vec::new());
    // The indentation of a value whose default continues on the following, further indented lines.
    let mut inside: Option<usize> = None;
    for line in read(&format!("{CHART}/values.yaml")).lines() {
        let column = line.len() - line.trim_start().len();
        // A comment whose text is indented is an example, not a description.
        if let Some(comment) = line.trim_start().strip_prefix("# ").filter(|text| !text.starts_with(' ')) {
            comment.clone_into(&mut description);
            continue;
        }
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        if inside.is_some_and(|outer| column > outer) {
            continue;
        }
        inside = None;
        let (key, default) = line.trim().split_once(':').unwrap_or_else(|| panic!("no value: {line}"));
        parents.retain(|(above, _)| *above < column);
        let above = parents.iter().map(|(_, name)| format!("{name}.")).collect::<String>();
        if default.is_empty() && description.is_empty() {
            parents.push((column, key.to_owned()));
            continue;
        }
        inside = default.is_empty().then_some(column);
        let description = std::mem::take(&mut description);
        assert!(description.ends_with('.'), "{above}{key} has no description");
        assert!(paths.insert(format!("{above}{key}")), "{above}{key} is there twice");
    }
    assert!(paths.len() > 30, "{paths:?}");
    paths
}

/// Adds the dotted paths of a schema's properties to `into`, except those of properties that have properties
/// themselves.
fn properties(schema: &Value, path: &str, into: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(all) => {
            assert_eq!(schema["additionalProperties"], false, "{path}: an unknown key is accepted");
            for (name, schema) in all {
                properties(schema, &format!("{path}{}{name}", if path.is_empty() { "" } else { "." }), into);
            }
        }
        None => {
            into.insert(path.to_owned());
        }
    }
}

#[test]
fn the_schema_has_every_value_of_values_yaml_and_no_other() {
    let schema: Value = serde_json::from_str(&read(&format!("{CHART}/values.schema.json"))).expect("JSON");
    let mut known = BTreeSet::new();
    properties(&schema, "", &mut known);
    let listed = values();
    for path in &listed {
        assert!(
            known.contains(path) || known.iter().any(|known| known.starts_with(&format!("{path}."))),
            "{path} is not in the schema"
        );
    }
    for path in &known {
        // Helm itself adds `global` to the values.
        let is_listed = listed.iter().any(|listed| path == listed || path.starts_with(&format!("{listed}.")));
        assert!(is_listed || path == "global", "{path} is not in values.yaml");
    }
}

#[test]
fn each_container_has_the_rights_of_its_unit_and_no_other() {
    let pods = read(&format!("{CHART}/templates/daemonset.yaml"));
    let mut found = pods.lines().filter_map(|line| {
        let words = line.trim().strip_prefix("add: {{ concat (list ")?.split_once(')')?.0;
        Some(words.split(' ').map(|word| format!("CAP_{}", word.trim_matches('"'))).collect::<Vec<_>>())
    });
    for unit in ["netpolicy-attach.service", "netpolicy.service"] {
        let text = read(&format!("packaging/systemd/{unit}"));
        let bounds =
            text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("a set");
        let bounds: Vec<&str> = bounds.split(' ').collect();
        assert_eq!(found.next().expect("a container"), bounds, "{unit}");
    }
    assert!(found.next().is_none() && pods.matches("drop: [ALL]").count() == 3, "{pods}");
    for golden in ["default", "full"] {
        let manifests = read(&format!("packaging/helm/tests/{golden}.golden.yaml"));
        let kinds: BTreeSet<&str> =
            manifests.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
        assert!(kinds.is_subset(&["ConfigMap", "DaemonSet", "PodMonitor"].into()), "{kinds:?}: roles?");
        assert!(kinds.contains("DaemonSet") && !manifests.contains("privileged: true"), "{golden}");
        assert!(!manifests.contains("automountServiceAccountToken: true"), "{golden}");
    }
}

#[test]
fn the_policies_of_the_recorded_manifests_are_policy_files_without_a_mistake() {
    let manifests = read("packaging/helm/tests/full.golden.yaml");
    let mut files: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in manifests.lines() {
        if let Some(name) = line.strip_prefix("  ").and_then(|line| line.strip_suffix(".toml: |")) {
            files.push((format!("{name}.toml"), String::new()));
            inside = true;
        } else if let Some((_, text)) = files.last_mut()
            && inside
            && (line.starts_with("    ") || line.trim().is_empty())
        {
            let _ = writeln!(text, "{}", line.trim());
        } else {
            inside = false;
        }
    }
    assert!(files.len() >= 3, "{files:?}");
    for (name, text) in files {
        let parsed = policy_file::parse(&name, &text);
        assert!(parsed.is_ok(), "{}\n{text}", parsed.expect_err("a mistake"));
    }
}

#[test]
fn the_how_to_names_what_the_chart_needs() {
    let page = Document::of(&read("docs/howto/kubernetes-node.md"));
    let text = page.blocks.iter().flat_map(|block| &block.lines).cloned().collect::<Vec<_>>().join("\n");
    assert!(
        text.contains("helm install netpolicy packaging/helm/netpolicy --namespace kube-system"),
        "{text}"
    );
}

/// The Ansible collection recognises a refusal for too little traffic by these words.
#[test]
fn the_collection_knows_how_a_guard_refuses_a_service_without_traffic() {
    let module = read("packaging/ansible/netpolicy/plugins/module_utils/netpolicy.py");
    let words = module.split("NO_TRAFFIC = (").nth(1).and_then(|rest| rest.split(')').next()).expect("words");
    let words: Vec<&str> = words.split('"').skip(1).step_by(2).collect();
    assert_eq!(words.len(), 2, "{words:?}");
    let guard = read("crates/latency/src/judge/trial/service.rs");
    for words in words {
        assert!(guard.contains(words), "no guard prints `{words}` any more");
    }
}
