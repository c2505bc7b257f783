//! Tests the Helm chart with helm and the schemas of Kubernetes, and the Ansible collection with its linter
//! and on six hosts.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};
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
const REFUSED: [(&[&str], &str); 17] = [
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
    (&["image.repository=a\nprivileged: true"], "repository"),
    (&["image.tag=1 #"], "tag"),
    (&["metrics.proxy.image=&a"], "image"),
    (&["priorityClassName=!a"], "priorityClassName"),
    (&["stateDirectory=/a\\, type: File }\\, x: { y"], "stateDirectory"),
    (&["runDirectory=/run/../etc"], "runDirectory"),
    (&["podLabels.netpolicy/group=a"], "group"),
    (&["podAnnotations.netpolicy/policies=a"], "policies"),
];

/// Texts that mean something else in YAML, in a template or in a shell.
const HOSTILE: [&str; 16] = [
    "true",
    "123",
    "null",
    "a: b",
    "a #b",
    "a, b: c}",
    "*a",
    "&b",
    "!c",
    "'",
    "\"",
    "a\nb: c",
    "{{ .Values }}",
    "$(id)",
    "\u{1}",
    "a\tb",
];

/// Texts of policy files that are difficult to write in YAML.
const HOSTILE_POLICIES: [&str; 10] = [
    "a = 1",
    "  a = 1\nb = 2\n",
    "\n\na = 1",
    "a = 1\n\n\n",
    "\ta = 1\n",
    "a = 1\r\nb = 2\r\n",
    "---\nkind: Pod\n",
    "x = '{{ .Values }}'\n",
    "a = 1 \n  \n b = 2\n ",
    "\u{feff}# \u{1}\n",
];

pub(crate) fn tests() -> Vec<Trial> {
    const BOTH: &[Need] = &[Need::Helm, Need::Ansible];
    const HOSTS: &[Need] = &[Need::Root, Need::Bpf, Need::Memcached, Need::Ansible];
    vec![
        test("rollout/the_chart_renders_as_recorded", &[Need::Helm], rendered),
        test("rollout/the_chart_refuses_values_that_cannot_work", &[Need::Helm], refused),
        test("rollout/the_chart_refuses_wrong_types_and_unknown_keys", &[Need::Helm], mistyped),
        test("rollout/values_with_special_characters_are_rendered_as_they_are", BOTH, hostile),
        test("rollout/kubernetes_schemas_accept_what_the_chart_renders", BOTH, accepted),
        test("rollout/modules_refuse_arguments_and_files_that_cannot_work", &[Need::Ansible], arguments),
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

/// Returns the paths of all values in a schema, each with a value of a wrong type.
fn wrong_types(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    let wrong =
        if schema["type"] == "string" || !schema["enum"].is_null() { json!([1]) } else { json!("x x") };
    if !path.is_empty() {
        found.push((path.to_owned(), wrong));
    }
    if schema["additionalProperties"] == false {
        found.push((format!("{path}{}unknown", if path.is_empty() { "" } else { "." }), json!("x")));
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        wrong_types(schema, &path, found);
    }
}

fn mistyped() -> Result<(), Failed> {
    let schema = std::fs::read(helm_directory().join("netpolicy/values.schema.json"))?;
    let mut wrong = Vec::new();
    wrong_types(&serde_json::from_slice(&schema)?, "", &mut wrong);
    assert!(wrong.len() > 60, "{wrong:?}");
    for (path, value) in wrong {
        let mut command = helm()?;
        command.current_dir(helm_directory()).args(["template", "netpolicy", "netpolicy"]);
        command.args(["--kube-version", RENDERED_FOR, "--set-json", &format!("{path}={value}")]);
        let (_, words) = ended(&mut command, 1)?;
        assert!(words.contains("schema"), "{path}: {words}");
    }
    Ok(())
}

/// Renders the chart with these values, and parses the manifests.
fn documents(scratch: &Scratch, release: &str, values: &Value) -> Result<Vec<Value>, Failed> {
    let path = scratch.path("values.json");
    std::fs::write(&path, values.to_string())?;
    let mut command = helm()?;
    command.current_dir(helm_directory()).args(["template", release, "netpolicy", "--namespace", "456"]);
    command.args(["--kube-version", RENDERED_FOR, "--values"]).arg(&path);
    let manifests = scratch.path("manifests.yaml");
    std::fs::write(&manifests, ended(&mut command, 0)?.0)?;
    let mut command = Command::new("python3");
    command.args([
        "-c",
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))",
    ]);
    with_python_programs(command.arg(&manifests), &unpacked::ansible().ok_or("PyYAML")?);
    Ok(serde_json::from_str(&ended(&mut command, 0)?.0)?)
}

fn hostile() -> Result<(), Failed> {
    let scratch = Scratch::new("rollout-hostile")?;
    let names = (10..).map(|number| format!("{number}-a.toml"));
    let policies: Value =
        names.zip(HOSTILE_POLICIES.map(Value::from)).collect::<serde_json::Map<_, _>>().into();
    let names = ('a'..='z').map(String::from);
    let map: Value = names.zip(HOSTILE.map(Value::from)).collect::<serde_json::Map<_, _>>().into();
    // Arguments are templates, as documented, so those without braces stand for themselves.
    let args: Vec<&str> = HOSTILE.into_iter().filter(|text| !text.contains("{{")).collect();
    let names = ["true", "null", "1e3", "0x1f", "no"];
    let groups = names.map(|name| json!({ "name": name, "nodeSelector": { "a": name } }));
    let values = json!({
        "policies": policies, "nodeSelector": map, "podAnnotations": map, "podLabels": map, "groups": groups,
        "affinity": map, "security": { "seLinuxOptions": { "type": "true" } }, "priorityClassName": "123",
        "image": { "repository": "1e3", "tag": "1" },
        "metrics": {
            "port": 9989, "proxy": { "image": "true", "args": args },
            "podMonitor": { "enabled": true, "labels": map, "tlsConfig": map },
        },
    });
    let documents = documents(&scratch, "123", &values)?;
    assert_eq!(documents.len(), 2 * names.len() + 1);
    let has = |object: &Value, map: &Value| {
        map.as_object().into_iter().flatten().all(|(key, value)| object[key] == *value)
    };
    for document in &documents {
        let metadata = &document["metadata"];
        assert_eq!(
            (&metadata["namespace"], &metadata["labels"]["app.kubernetes.io/instance"]),
            (&json!("456"), &json!("123"))
        );
        match document["kind"].as_str() {
            Some("ConfigMap") => assert_eq!(document["data"], policies),
            Some("DaemonSet") => {
                let (of_group, pod) =
                    (&document["spec"]["selector"]["matchLabels"], &document["spec"]["template"]);
                assert!(names.iter().any(|name| of_group["netpolicy/group"] == *name), "{of_group}");
                assert!(
                    has(&pod["metadata"]["labels"], &map) && has(&pod["metadata"]["annotations"], &map),
                    "{pod}"
                );
                let spec = &pod["spec"];
                assert!(has(&spec["affinity"], &map) && spec["nodeSelector"]["b"] == map["b"], "{spec}");
                let proxy = &spec["containers"][1];
                assert_eq!((&proxy["args"], &proxy["image"]), (&json!(args), &json!("true")));
                assert_eq!(
                    (&spec["containers"][0]["image"], &spec["priorityClassName"]),
                    (&json!("1e3:1"), &json!("123"))
                );
            }
            Some("PodMonitor") => {
                assert!(has(&metadata["labels"], &map), "{metadata}");
                assert_eq!(document["spec"]["podMetricsEndpoints"][0]["tlsConfig"], map);
            }
            other => return Err(format!("{other:?}").into()),
        }
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

/// Runs a module of the collection in check mode with these arguments; returns its result.
/// Prints what is left of two policy files if the second one cannot be written, and then nothing any more.
const UNWRITTEN: &str = r#"
import os, sys, types
from ansible_collections.netpolicy.netpolicy.plugins.modules.policy import Files, NotWritten
first = os.path.join(sys.argv[1], "a.toml")
renamed = os.rename
def limited(left):
    def rename(making, path):
        left.pop()
        renamed(making, path)
    def full(making, path):
        if not left:
            raise OSError(28, "No space left on device")
        rename(making, path)
    return full
for renames in 3, 1:
    with open(first, "w") as file:
        file.write("before")
    params = dict(policy_dir=sys.argv[1], files={"a.toml": "after", "b.toml": "new"})
    files = Files(types.SimpleNamespace(params=params))
    os.rename = limited([None] * renames)
    if renames == 3:
        # The second file fails, and the first one can be restored.
        whole = os.rename
        os.rename = lambda making, path: whole(making, path + "/" if path.endswith("b.toml") else path)
    try:
        files.write(files.changed)
    except NotWritten as error:
        print(str(error).partition(": ")[2], sorted(os.listdir(sys.argv[1])), open(first).read())
try:
    files.write(files.before)
except NotWritten as error:
    print(str(error).partition(": ")[2])
"#;

fn module(scratch: &Scratch, name: &str, arguments: &Value) -> Result<Value, Failed> {
    let (input, output) = (scratch.path("arguments.json"), scratch.path("result.json"));
    let mut all = json!({
        "_ansible_check_mode": true, "executable": netpolicy(), "policy_dir": scratch.path("policy.d"),
        "state_dir": scratch.path("state"),
    });
    all.as_object_mut().ok_or("an object")?.extend(arguments.as_object().cloned().unwrap_or_default());
    std::fs::write(&input, json!({ "ANSIBLE_MODULE_ARGS": all }).to_string())?;
    let installed = unpacked::ansible().ok_or("ansible-core")?;
    let mut command = Command::new("timeout");
    command.args(["60", "python3", "-m"]);
    command.arg(format!("ansible_collections.netpolicy.netpolicy.plugins.modules.{name}"));
    with_python_programs(&mut command, &installed);
    let path = std::env::join_paths([scratch.path(""), installed])?;
    command.current_dir(scratch.path("")).env("PYTHONPATH", path);
    command.stdin(std::fs::File::open(&input)?).stdout(std::fs::File::create(&output)?);
    let ended = command.output()?;
    serde_json::from_slice(&std::fs::read(&output)?).map_err(|error| {
        format!("{name} {arguments}: {error}: {}", String::from_utf8_lossy(&ended.stderr)).into()
    })
}

fn arguments() -> Result<(), Failed> {
    const NONE: &str = "[device.lo]\r\npolicy = \"none\"\r\n";
    const FILE: &str = "50-a.toml";
    let scratch = Scratch::new("rollout-arguments")?;
    collection(&scratch)?;
    let directory = scratch.path("policy.d");
    std::fs::create_dir(&directory)?;
    let fails = |name: &str, arguments: &Value, reason: &str| {
        let result = module(&scratch, name, arguments)?;
        let msg = result["msg"].as_str().unwrap_or_default();
        let is_refused = result["failed"] == true && msg.contains(reason);
        is_refused.then_some(()).ok_or_else(|| Failed::from(format!("{arguments}: {result}")))
    };
    for name in
        ["a\n.toml", "-a.toml", "{{ a }}.toml", "../a.toml", "a\0.toml", "$(id).toml", &"a".repeat(300)]
    {
        fails("policy", &json!({ "files": { name: NONE } }), "no name of a policy file")?;
    }
    let of = |text: Value| json!({ "files": { FILE: text } });
    fails("policy", &of(json!(["a"])), "its text is no string")?;
    fails("policy", &of("a".repeat(2 << 20).into()), "larger than")?;
    fails("policy", &of("{{ a }}".into()), "50-a.toml:1")?;
    for option in ["guard", "service"] {
        let both = json!({ "files": { FILE: NONE }, "guard": "p99=+15%", option: " " });
        fails("policy", &both, "is empty")?;
    }
    fails("policy", &json!({ "files": { FILE: NONE }, "seconds": -1 }), "seconds")?;
    for name in ["policy", "policy_info"] {
        fails(name, &json!({ "netns": "-a" }), "/run/netns/-a")?;
        fails(name, &json!({ "netns": "a\nb" }), "/run/netns/a\nb")?;
        fails(name, &json!({ "executable": "/nothing" }), "/nothing")?;
    }
    fails("policy_info", &json!({ "executable": "/bin/true" }), "is not netpolicy")?;

    // Files that exist already: the text is compared byte for byte, and a pipe does not block.
    let path = directory.join(FILE);
    std::fs::write(&path, NONE)?;
    let result = module(&scratch, "policy", &of(NONE.into()))?;
    assert_eq!((&result["changed"], &result["previous"][FILE]), (&json!(false), &json!(NONE)), "{result}");
    std::fs::write(&path, b"# \xff\n")?;
    fails("policy", &of(NONE.into()), "not UTF-8")?;
    std::fs::remove_file(&path)?;
    for made in ["mkfifo", "mkdir"] {
        assert!(Command::new(made).arg(&path).status()?.success());
        fails("policy", &of(NONE.into()), "no regular file")?;
        fails("policy", &json!({ "files": { "60-b.toml": NONE } }), "cannot be copied")?;
        let _ = std::fs::remove_file(&path);
    }
    std::fs::remove_dir(&path)?;
    std::os::unix::fs::symlink("/dev/null", &path)?;
    fails("policy", &of(NONE.into()), "is masked")?;
    // An editor's lock is ignored, and a mask is kept, as netpolicy does.
    std::os::unix::fs::symlink("nothing", directory.join(".#60-b.toml"))?;
    let other = json!({ "files": { "60-b.toml": NONE } });
    assert_eq!(module(&scratch, "policy", &other)?["changed"], true);
    std::fs::write(directory.join("70-c.toml"), NONE)?;
    std::fs::set_permissions(directory.join("70-c.toml"), std::fs::Permissions::from_mode(0o666))?;
    fails("policy", &other, "70-c.toml")?;
    std::fs::remove_file(directory.join("70-c.toml"))?;

    // A disk that is full after the first of two files.
    let mut command = Command::new("python3");
    let written = scratch.path("written");
    std::fs::create_dir(&written)?;
    command.args(["-c", UNWRITTEN]).arg(&written);
    let installed = unpacked::ansible().ok_or("ansible-core")?;
    with_python_programs(&mut command, &installed);
    command.env("PYTHONPATH", std::env::join_paths([scratch.path(""), installed])?);
    let (data, words) = ended(&mut command, 0)?;
    let expected = "Not a directory. No policy file was changed. ['a.toml'] before\n\
                    No space left on device. NOT restored: a.toml. ['a.toml'] after\n\
                    No space left on device. NOT restored: a.toml, b.toml.\n";
    assert_eq!(data, expected, "{words}");
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
