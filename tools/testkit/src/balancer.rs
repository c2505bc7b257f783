//! A real irqbalance that moves no interrupt, because `/proc/irq` is read-only for it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use linux::irqbalance::Irqbalance;

/// Maximum time until irqbalance answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// The distribution's irqbalance: installed, or unpacked by `cargo xtask setup`.
pub fn program() -> Option<PathBuf> {
    crate::unpacked::program("irqbalance", "usr/sbin/irqbalance")
}

/// A running irqbalance, which is killed when this is dropped.
pub struct Balancer {
    child: Child,
}

impl Balancer {
    /// Starts irqbalance in a separate mount namespace, with `/proc/irq` read-only and a private `/run`.
    pub fn that_moves_nothing(arguments: &str) -> Result<Self, Failed> {
        let program = program().ok_or("no irqbalance")?;
        let script = format!(
            "mount --bind /proc/irq /proc/irq && mount -o remount,bind,ro /proc/irq \
             && test ! -w /proc/irq/default_smp_affinity && mount -t tmpfs none /run && mkdir /run/irqbalance \
             && exec '{}' --foreground {arguments}",
            program.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
        let balancer = Self { child: command.spawn()? };
        balancer.wait()?;
        Ok(balancer)
    }

    /// Starts an irqbalance that balances this host's interrupts; the host must be a guest.
    pub fn of_this_host(arguments: &str) -> Result<Self, Failed> {
        let program = program().ok_or("no irqbalance")?;
        std::fs::create_dir_all("/run/irqbalance")?;
        let mut command = Command::new(program);
        command.arg("--foreground").args(arguments.split(' '));
        let balancer = Self { child: command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()? };
        balancer.wait()?;
        Ok(balancer)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the directory of irqbalance's socket, by a path that the test can use.
    pub fn directory(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/run/irqbalance", self.pid()))
    }

    /// Waits until irqbalance answers. The test sends a request, because a connection without one may kill
    /// irqbalance.
    fn wait(&self) -> Result<(), Failed> {
        let deadline = Instant::now() + PATIENCE;
        while Irqbalance::new().in_directory(&self.directory()).running()?.is_none() {
            if Instant::now() > deadline {
                return Err("irqbalance does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Kills irqbalance, and waits until it has exited. Its socket stays.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.kill();
    }
}
