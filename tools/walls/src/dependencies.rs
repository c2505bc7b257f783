//! The dependencies of each crate, as Cargo resolves them for this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The dependencies of each crate, including its build script but not its tests.
#[derive(Clone, Debug, Default)]
pub struct Dependencies {
    direct: BTreeMap<String, BTreeSet<String>>,
    /// The dependencies of a crate that only its tests, benches and examples have.
    of_tests: BTreeMap<String, BTreeSet<String>>,
    /// The crates of the workspace; the value is whether the crate is below `tools/`.
    rooms: BTreeMap<String, bool>,
}

impl Dependencies {
    /// Reads the dependencies of the workspace in this directory. Nothing is downloaded.
    ///
    /// # Errors
    /// Cargo's error, or the name of the part that Cargo's output lacks.
    pub fn of(workspace: &Path) -> Result<Self, String> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let run = |program: &str, arguments: &[&str]| -> Result<String, String> {
            let output = Command::new(program)
                .current_dir(workspace)
                .args(arguments)
                .output()
                .map_err(|error| format!("{program}: {error}"))?;
            if !output.status.success() {
                return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)));
            }
            String::from_utf8(output.stdout).map_err(|error| format!("{program}: {error}"))
        };
        let version = run("rustc", &["-vV"])?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("no host triple")?;
        let metadata = run(
            &cargo,
            &["metadata", "--format-version", "1", "--offline", "--all-features", "--filter-platform", host],
        )?;
        Self::of_metadata(&serde_json::from_str(&metadata).map_err(|error| error.to_string())?)
    }

    /// Parses the output of `cargo metadata`.
    ///
    /// # Errors
    /// The name of the part that the output lacks.
    pub fn of_metadata(metadata: &Value) -> Result<Self, String> {
        let list = |value: &Value, field: &str| -> Result<Vec<Value>, String> {
            value[field].as_array().cloned().ok_or(format!("no list `{field}`"))
        };
        let word = |value: &Value, field: &str| -> Result<String, String> {
            value[field].as_str().map(str::to_owned).ok_or(format!("no text `{field}`"))
        };
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        let mut manifests: BTreeMap<String, String> = BTreeMap::new();
        let root = format!("{}/", word(metadata, "workspace_root")?);
        for package in list(metadata, "packages")? {
            names.insert(word(&package, "id")?, word(&package, "name")?);
            let manifest = word(&package, "manifest_path")?;
            let inside = manifest.strip_prefix(&root).unwrap_or_default().to_owned();
            manifests.insert(word(&package, "id")?, inside);
        }
        let name = |id: &str| names.get(id).cloned().ok_or(format!("no package {id}"));
        let mut found = Self::default();
        for member in list(metadata, "workspace_members")? {
            let id = member.as_str().unwrap_or_default();
            let is_tool = manifests.get(id).is_some_and(|manifest| manifest.starts_with("tools/"));
            found.rooms.insert(name(id)?, is_tool);
        }
        for node in list(&metadata["resolve"], "nodes")? {
            let of = name(&word(&node, "id")?)?;
            for dependency in list(&node, "deps")? {
                let kinds = list(&dependency, "dep_kinds")?;
                let is_of_tests = kinds.iter().all(|kind| kind["kind"].as_str() == Some("dev"));
                let kind = if is_of_tests { &mut found.of_tests } else { &mut found.direct };
                kind.entry(of.clone()).or_default().insert(name(&word(&dependency, "pkg")?)?);
            }
        }
        Ok(found)
    }

    /// The direct dependencies of a crate.
    pub fn direct(&self, of: &str) -> BTreeSet<&str> {
        self.direct.get(of).into_iter().flatten().map(String::as_str).collect()
    }

    /// The dependencies that only the tests, benches and examples of a crate have.
    pub fn of_tests(&self, of: &str) -> BTreeSet<&str> {
        self.of_tests.get(of).into_iter().flatten().map(String::as_str).collect()
    }

    /// The direct and indirect dependencies of a crate.
    pub fn all(&self, of: &str) -> BTreeSet<&str> {
        let mut all = BTreeSet::new();
        let mut next: Vec<&str> = self.direct(of).into_iter().collect();
        while let Some(name) = next.pop() {
            if all.insert(name) {
                next.extend(self.direct(name));
            }
        }
        all
    }

    /// The crates of the workspace.
    pub fn rooms(&self) -> impl Iterator<Item = &str> {
        self.rooms.keys().map(String::as_str)
    }

    /// Whether a crate is a tool rather than part of the product.
    pub fn is_tool(&self, room: &str) -> bool {
        self.rooms.get(room).copied().unwrap_or(false)
    }
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_only_tests_need_is_no_dependency_and_what_a_dependency_needs_is() {
        let node = |id: &str, deps: &[(&str, Option<&str>)]| {
            let deps: Vec<Value> =
                deps.iter().map(|(id, kind)| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] })).collect();
            json!({ "id": id, "deps": deps })
        };
        let package = |name: &str, below: &str| {
            let manifest = format!("/w/{below}/{name}/Cargo.toml");
            json!({ "id": name, "name": name, "manifest_path": manifest })
        };
        let packages =
            [package("a", "crates"), package("b", "tools"), package("c", "crates"), package("d", "crates")];
        let found = Dependencies::of_metadata(&json!({
            "packages": packages,
            "workspace_root": "/w",
            "workspace_members": ["a", "b"],
            "resolve": { "nodes": [
                node("a", &[("b", None), ("d", Some("dev"))]),
                node("b", &[("c", Some("build"))]),
                node("c", &[]),
                node("d", &[]),
            ] },
        }))
        .expect("valid `cargo metadata` output");
        assert_eq!(found.direct("a"), BTreeSet::from(["b"]));
        assert_eq!(found.of_tests("a"), BTreeSet::from(["d"]));
        assert_eq!(found.all("a"), BTreeSet::from(["b", "c"]));
        assert_eq!(found.rooms().collect::<Vec<_>>(), ["a", "b"]);
        assert!(found.is_tool("b") && !found.is_tool("a"));
    }
}
