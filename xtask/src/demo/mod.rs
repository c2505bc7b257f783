//! The main job: the whole cycle on this machine's kernel, with an unpatched memcached.

mod judged;

use crate::files;
use crate::release::contents;
use crate::shell::{self, Result};

/// Builds netpolicy, and plays the whole cycle on a server under load.
pub(crate) fn run(arguments: &[String]) -> Result {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask demo".to_owned());
    }
    if !shell::is_root() {
        return Err("the demo makes network namespaces and writes NAPI settings: run it as root".to_owned());
    }
    // Not the release: it is linked in a fraction of the time.
    contents::build_programs(&["--release"])?;
    if let Some(words) = other_work() {
        eprintln!("demo: {words}");
    }
    let folder = shell::root().join("target/demo");
    files::make_directory(&folder)?;
    judged::play(&shell::root().join("target/release/netpolicy"), &folder)?;
    eprintln!("\nThe report: {}", folder.join("report.html").display());
    Ok(())
}

/// What other work keeps of this machine's CPUs, if that is enough to be seen in every figure.
pub(crate) fn other_work() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let cpus = std::thread::available_parallelism().ok()?.get();
    too_busy(&text, cpus)
}

/// The same of the text of `/proc/loadavg`: the last minute is the build's own, so the last five decide.
fn too_busy(loadavg: &str, cpus: usize) -> Option<String> {
    /// Of each CPU.
    const MOST: f64 = 1.5;
    let load: f64 = loadavg.split(' ').nth(1)?.parse().ok()?;
    let cpus = f64::from(u32::try_from(cpus).ok()?);
    (load > MOST * cpus).then(|| {
        format!(
            "{load} threads wanted the {cpus} CPUs of this machine in the last five minutes: other work will be in all \
             figures, and many runs will not count"
        )
    })
}

#[cfg(test)]
mod test {
    use super::too_busy;

    #[test]
    fn a_machine_that_builds_alone_is_not_busy_and_one_with_other_work_is() {
        assert_eq!(too_busy("2.40 2.10 0.90 2/310 77\n", 2), None);
        let words = too_busy("9.10 8.20 5.00 9/310 77\n", 2).expect("busy");
        assert!(words.starts_with("8.2 threads wanted the 2 CPUs"), "{words}");
        assert_eq!(too_busy("", 2), None);
    }
}
