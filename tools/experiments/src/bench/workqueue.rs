//! Polling in a workqueue, which was proposed shortly before kernel threads and not merged. The patch
//! `kernel/test-only/0003-net-Poll-threaded-NAPIs-in-a-workqueue.patch` has it, for the comparison.

use std::path::Path;

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

/// The parameter, set for as long as this exists.
#[derive(Debug)]
pub(crate) struct InForce {
    before: String,
}

impl InForce {
    /// Polls threaded NAPIs in a workqueue.
    pub(crate) fn new(workqueue: Workqueue) -> Result<Self, Fault> {
        let value = match workqueue {
            Workqueue::Bound => "1",
            Workqueue::Unbound => "2",
        };
        let fault = |error| Fault::file(PARAMETER, error);
        let before = std::fs::read_to_string(PARAMETER).map_err(fault)?;
        std::fs::write(PARAMETER, value).map_err(fault)?;
        Ok(Self { before })
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        // The value was read from there, and only this kernel for tests has the file.
        let _ = std::fs::write(PARAMETER, &self.before);
    }
}
