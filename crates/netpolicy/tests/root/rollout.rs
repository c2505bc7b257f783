//! Tests the Helm chart with helm and the schemas of Kubernetes, and the Ansible collection with its linter
//! and on six hosts.

use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use testkit::markdown::repository;
use testkit::programs::netpolicy;
use testkit::scratch::Scratch;
use testkit::{Need, test, unpacked};

/// The Kubernetes version for which helm renders the manifests.
const RENDERED_FOR: &str = "1.33.0";

/// Kubernetes versions whose schemas the manifests must match: the first that the chart supports, and the
/// newest.
const KUBERNETES: [&str; 2] = ["1.30", "1.37"];

/// Values files, each with the file of the manifests that helm renders from it.
const RENDERED: [(Option<&str>, &str); 2] =
    [(None, "default.golden.yaml"), (Some("full.values.yaml"), "full.golden.yaml")];

/// Values that the chart refuses, each with a part of the error message.
const REFUSED: [(&[&str], &str); 9] = [
    (&["metrics.podMonitor.enabled=true"], "metrics.proxy.image"),
    (&["metrics.proxy.image=proxy"], "metrics.proxy needs metrics.port"),
    (
        &["groups[0].name=a", "groups[0].nodeSelector.r=a", "groups[1].name=a", "groups[1].nodeSelector.r=b"],
        "two are called",
    ),
    (
        &["groups[0].name=a", "groups[0].nodeSelector.r=a", "groups[1].name=b", "groups[1].nodeSelector.r=a"],
        "may belong to one only",
    ),
    (&["policies.README=x"], "README"),
    (&["daemon.onStop=stop"], "onStop"),
    (&["security.extraCapabilities[0]=ALL"], "extraCapabilities"),
    (&["rollout.maxUnavailable=0"], "maxUnavailable"),
    (&["privileged=true"], "privileged"),
];

pub(crate) fn tests() -> Vec<Trial> {
    const BOTH: &[Need] = &[Need::Helm, Need::Ansible];
    const HOSTS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::Ansible];
    vec![
        test("rollout/the_chart_renders_as_recorded", &[Need::Helm], rendered),
        test("rollout/the_chart_refuses_values_that_cannot_work", &[Need::Helm], refused),
        test("rollout/kubernetes_schemas_accept_what_the_chart_renders", BOTH, accepted),
        test("rollout/the_collection_has_no_finding_of_its_linter", &[Need::Ansible], linted),
        test("rollout/check_mode_plans_and_a_sick_host_stops_its_wave_and_no_other", HOSTS, canary),
    ]
}

/// Runs a command that must end with this code; returns its standard output and its messages.
fn ended(command: &mut Command, code: i32) -> Result<(String, String), Failed> {
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (data, words) = (text(&output.stdout), text(&output.stderr));
    if output.status.code() == Some(code) {
        return Ok((data, words));
    }
    Err(format!("{command:?} ended with {}, not {code}:\n{data}\n{words}", output.status).into())
}

fn helm() -> Result<Command, Failed> {
    Ok(Command::new(unpacked::helm().ok_or("helm")?))
}

/// Creates a command for a Python program in the directory that `cargo xtask setup` created.
fn python_program(name: &str) -> Result<Command, Failed> {
    let installed = unpacked::ansible().ok_or("ansible-core")?;
    let mut command = Command::new(installed.join("bin").join(name));
    with_python_programs(&mut command, &installed);
    Ok(command)
}

fn with_python_programs(command: &mut Command, installed: &std::path::Path) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(installed.join("bin")).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(path).unwrap_or_default());
    command.env("PYTHONPATH", installed).env("LC_ALL", "C.UTF-8").env("NO_COLOR", "1");
}

fn helm_directory() -> PathBuf {
    repository().join("packaging/helm")
}

/// Renders the manifests of the chart with a values file.
fn manifests(values: Option<&str>) -> Result<String, Failed> {
    let mut command = helm()?;
    command.current_dir(helm_directory()).args(["template", "netpolicy", "netpolicy"]);
    command.args(["--namespace", "kube-system", "--kube-version", RENDERED_FOR]);
    if let Some(values) = values {
        command.arg("--values").arg(helm_directory().join("tests").join(values));
    }
    Ok(ended(&mut command, 0)?.0)
}

fn rendered() -> Result<(), Failed> {
    for (values, golden) in RENDERED {
        let mut lint = helm()?;
        lint.current_dir(helm_directory()).args([
            "lint",
            "--strict",
            "--kube-version",
            RENDERED_FOR,
            "netpolicy",
        ]);
        if let Some(values) = values {
            lint.arg("--values").arg(helm_directory().join("tests").join(values));
        }
        ended(&mut lint, 0)?;
        let (made, path) = (manifests(values)?, helm_directory().join("tests").join(golden));
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &made)?;
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            made == recorded,
            "{} is stale: write it with UPDATE=1, and read the diff\n{made}",
            path.display()
        );
    }
    Ok(())
}

fn refused() -> Result<(), Failed> {
    for (values, reason) in REFUSED {
        let mut command = helm()?;
        command.current_dir(helm_directory()).args(["template", "netpolicy", "netpolicy"]);
        command.args(["--kube-version", RENDERED_FOR]);
        for value in values {
            command.args(["--set", value]);
        }
        let (_, words) = ended(&mut command, 1)?;
        assert!(words.contains(reason), "{values:?}: {words}");
    }
    Ok(())
}

fn accepted() -> Result<(), Failed> {
    let scratch = Scratch::new("rollout-schemas")?;
    for (values, golden) in RENDERED {
        let path = scratch.path(golden);
        std::fs::write(&path, manifests(values)?)?;
        for version in KUBERNETES {
            let mut command = python_program("kubernetes-validate")?;
            command.args(["--strict", "--kubernetes-version", version]).arg(&path);
            let (data, words) = ended(&mut command, 0)?;
            let passed = format!("{data}{words}");
            assert!(passed.contains("passed for resource daemonset/netpolicy"), "{passed}");
        }
    }
    // Check that validation rejects a misspelt key.
    let path = scratch.path("misspelt.yaml");
    std::fs::write(&path, manifests(None)?.replace("hostPID:", "hostPid:"))?;
    let mut command = python_program("kubernetes-validate")?;
    command.args(["--strict", "--kubernetes-version", KUBERNETES[1]]).arg(&path);
    assert!(!command.output()?.status.success());
    Ok(())
}

/// Copies the collection to a directory where Ansible looks for it.
fn collection(scratch: &Scratch) -> Result<PathBuf, Failed> {
    let place = scratch.path("ansible_collections/netpolicy");
    std::fs::create_dir_all(&place)?;
    let from = repository().join("packaging/ansible/netpolicy");
    let copied = Command::new("cp").arg("--recursive").arg(from).arg(&place).status()?;
    assert!(copied.success(), "{copied}");
    Ok(place.join("netpolicy"))
}

fn linted() -> Result<(), Failed> {
    let scratch = Scratch::new("rollout-lint")?;
    let place = collection(&scratch)?;
    let mut lint = python_program("ansible-lint")?;
    lint.current_dir(&place).args(["--offline", "--strict", "--profile", "production"]);
    lint.env("ANSIBLE_COLLECTIONS_PATH", scratch.path("")).env("ANSIBLE_HOME", scratch.path("home"));
    ended(&mut lint, 0)?;
    // Read the documentation of the modules as users do.
    for module in ["policy", "policy_info"] {
        let mut command = python_program("ansible-doc")?;
        command.args(["--type", "module", "--json", &format!("netpolicy.netpolicy.{module}")]);
        command.env("ANSIBLE_COLLECTIONS_PATH", scratch.path("")).env("ANSIBLE_HOME", scratch.path("home"));
        let (data, words) = ended(&mut command, 0)?;
        // `state_dir` is in the documentation fragment that both modules share.
        assert!(data.contains("short_description") && data.contains("state_dir"), "{words}");
    }
    Ok(())
}

fn canary() -> Result<(), Failed> {
    let mut command = Command::new("python3");
    command.arg(repository().join("packaging/ansible/tests/canary.py"));
    command.args(["--netpolicy", netpolicy(), "check", "sick"]);
    with_python_programs(&mut command, &unpacked::ansible().ok_or("ansible-core")?);
    let (data, _) = ended(&mut command, 0)?;
    assert!(data.contains("check 1/1: nothing changed") && data.contains("sick 1/1: "), "{data}");
    Ok(())
}
