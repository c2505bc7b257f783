//! Polls in a workqueue, which was proposed shortly before kernel threads and not merged. For the comparison,
//! the patch `kernel/test-only/0003-net-Poll-threaded-NAPIs-in-a-workqueue.patch` adds it.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use session::Fault;

/// The parameter of a kernel with that patch. It selects what polls the NAPIs that are set to `threaded`.
const PARAMETER: &str = "/sys/module/napi/parameters/workqueue";

/// The kind of workqueue. Both kinds are `WQ_HIGHPRI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workqueue {
    /// The worker runs on the CPU that schedules the NAPI.
    Bound,
    /// The worker runs on any CPU.
    Unbound,
}

/// Returns the reason why this kernel cannot poll in a workqueue; `None` if it can.
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

/// Sets the parameter for as long as this value exists, or until this process is killed.
#[derive(Debug)]
pub(crate) struct InForce {
    keeper: Child,
}

/// Writes $1 to the file $2 when its standard input is closed. A signal to the whole session does not stop it.
const KEEPER: &str = "trap '' HUP INT QUIT TERM; read -r _; echo \"$1\" > \"$2\"";

impl InForce {
    /// Makes the kernel poll threaded NAPIs in a workqueue.
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
        // Close the descriptor, as the kernel does when a process is killed.
        let mut killed = InForce::set(parameter, "1").expect("is set");
        drop(killed.keeper.stdin.take());
        killed.keeper.wait().expect("exits");
        assert_eq!(value(), "0\n");
        std::fs::remove_file(&path).expect("is removed");
    }
}
