//! The first process of the lab's pid namespace. It runs as long as the lab; when it exits, the kernel kills
//! the lab's other processes.

use std::os::fd::{AsFd, OwnedFd};

use model::Pid;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::WaitOptions;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sys::error::KernelError;
use sys::netns::Netns;

/// The first process of a pid namespace, in the server's network namespace.
#[derive(Debug)]
pub(super) struct Init {
    pid: Pid,
    pid_namespace: OwnedFd,
    /// The pipe that makes the process exit when it is closed; `None` once it is closed.
    lifeline: Option<OwnedFd>,
}

impl Init {
    pub(super) fn start(netns: &Netns) -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno("the lab's process", errno);
        let (held, lifeline) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        let pid = netns.run_apart(|| sys::unshare::fork_first_of_pid_namespace(&held))?.map_err(failed)?;
        let path = format!("/proc/{pid}/ns/pid");
        let pid_namespace = std::fs::File::open(&path).map_err(|error| KernelError::io(path, &error))?.into();
        Ok(Self { pid, pid_namespace, lifeline: Some(lifeline) })
    }

    pub(super) const fn pid(&self) -> Pid {
        self.pid
    }

    /// Makes the next child processes of the calling thread start in the init's pid namespace, so that they
    /// end when the init does.
    pub(super) fn adopt_children(&self) -> Result<(), KernelError> {
        move_into_link_name_space(self.pid_namespace.as_fd(), Some(LinkNameSpaceType::ProcessID))
            .map_err(|errno| KernelError::errno("entering the lab's pid namespace", errno))
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let Some(pid) = i32::try_from(self.pid.0).ok().and_then(rustix::process::Pid::from_raw) else {
            return;
        };
        // init exits when every process of its namespace has exited and was waited for.
        while matches!(rustix::process::waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
    }
}
