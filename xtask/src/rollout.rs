//! Installs the programs with which tests check the Helm chart and the Ansible collection: helm,
//! kubernetes-validate with the schemas of the API, ansible-core and ansible-lint. They are installed in the
//! cache. If a program is missing, its tests are counted as skipped.

use std::process::Command;

use crate::files;
use crate::guest::Wheel;
use crate::guest::cache::Cache;
use crate::shell::{self, Result};

/// ansible-core, ansible-lint and kubernetes-validate, with their dependencies.
pub(crate) const WHEELS: Wheel = Wheel {
    name: "ansible",
    purpose: "tests: the Ansible collection, and the chart by the schemas of Kubernetes",
    pinned: include_str!("rollout-requirements.txt"),
};

/// helm as a Go package; its checksums are in Go's checksum database, or come from the proxy.
const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.17.3";

/// The maximum space that building helm needs, in MiB.
const SPACE: u64 = 2000;

/// Installs the programs that are missing, and continues if one is not available.
pub(crate) fn install() {
    if let Err(why) = WHEELS.install() {
        eprintln!("setup: no ansible-core, ansible-lint and kubernetes-validate: {why}");
    }
    if let Err(why) = helm() {
        eprintln!("setup: no helm: {why}");
    }
}

/// Builds helm, unless it has been built or is installed.
fn helm() -> Result {
    let cache = Cache::open()?;
    if shell::has("helm") || cache.finished("helm").is_some() {
        return Ok(());
    }
    eprintln!("setup: building helm (tests: the chart)");
    let _lock = cache.lock("helm")?;
    cache.need_space(SPACE, "helm")?;
    let making = cache.begin("helm")?;
    let programs = making.join("bin");
    files::make_directory(&programs)?;
    shell::run(Command::new("go").args(["install", HELM]).env("GOBIN", &programs).env("CGO_ENABLED", "0"))?;
    cache.finish(&making, "helm", &["bin/helm"]).map(drop)
}
