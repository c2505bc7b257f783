//! Polling in a workqueue, which was proposed shortly before kernel threads and not merged. The patch
//! `kernel/test-only/0003-net-Poll-threaded-NAPIs-in-a-workqueue.patch` has it, for the comparison.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use session::Fault;

/// The parameter of a kernel with that patch: what polls the NAPIs that are set to `threaded`.
const PARAMETER: &str = "/sys/module/napi/parameters/workqueue";

/// A workqueue. Both are `WQ_HIGHPRI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workqueue {
    /// A worker on the CPU that schedules the NAPI.
    Bound,
    /// A worker on any CPU.
    Unbound,
}

/// The reason why this kernel cannot poll in a workqueue.
pub(super) fn impossible() -> Option<&'static str> {
    let why = "no released kernel has it: its patches were proposed before those for kernel threads, but not \
               merged; `cargo xtask guest boot --patched` has a kernel that can, and `sim` simulates it";
    (!Path::new(PARAMETER).exists()).then_some(why)
}

impl Workqueue {
    /// Both workqueues.
    pub(super) const EACH: [Self; 2] = [Self::Bound, Self::Unbound];

    /// The name on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bound => "workqueue+bound",
            Self::Unbound => "workqueue",
        }
    }
}

/// The parameter, set for as long as this exists, or until this process is killed.
#[derive(Debug)]
pub(crate) struct InForce {
    keeper: Child,
}

/// Writes $1 to the file $2 when its standard input is closed. A signal to the whole session does not stop it.
const KEEPER: &str = "trap '' HUP INT QUIT TERM; read -r _; echo \"$1\" > \"$2\"";

impl InForce {
    /// Polls threaded NAPIs in a workqueue.
    pub(crate) fn new(workqueue: Workqueue) -> Result<Self, Fault> {
        let value = match workqueue {
            Workqueue::Bound => "1",
            Workqueue::Unbound => "2",
        };
        Self::set(PARAMETER, value)
    }

    fn set(parameter: &str, value: &str) -> Result<Self, Fault> {
        let fault = |error| Fault::file(parameter, error);
        let before = std::fs::read_to_string(parameter).map_err(fault)?;
        let mut keeper = Command::new("/bin/sh");
        keeper.args(["-c", KEEPER, "netpolicy-workqueue", before.trim(), parameter]).current_dir("/");
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().map_err(|error| Fault::file("/bin/sh", error))?;
        let in_force = Self { keeper };
        std::fs::write(parameter, value).map_err(fault)?;
        Ok(in_force)
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_parameter_is_restored_after_use_and_when_its_user_is_killed() {
        let path = std::env::temp_dir().join(format!("netpolicy-workqueue-{}", std::process::id()));
        std::fs::write(&path, "0\n").expect("is written");
        let parameter = path.to_str().expect("a path");
        let value = || std::fs::read_to_string(&path).expect("is read");
        let in_force = InForce::set(parameter, "2").expect("is set");
        assert_eq!(value(), "2");
        drop(in_force);
        assert_eq!(value(), "0\n");
        // When a process is killed, the kernel closes its descriptors.
        let mut killed = InForce::set(parameter, "1").expect("is set");
        drop(killed.keeper.stdin.take());
        killed.keeper.wait().expect("exits");
        assert_eq!(value(), "0\n");
        std::fs::remove_file(&path).expect("is removed");
    }
}
