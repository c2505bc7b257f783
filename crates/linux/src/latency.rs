//! Limits the time that CPUs take to wake up, with requests to `/dev/cpu_dma_latency`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};

use sys::error::KernelError;

/// The device that accepts the requests.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// A request that no CPU enters an idle state with a longer exit latency. The request is in force until this
/// value is dropped; the kernel cancels it when the descriptor is closed for any reason.
///
/// Kernel: 2.6.25, `kernel/power/qos.c` `cpu_latency_qos_open()`.
#[derive(Debug)]
pub struct WakeLatency {
    _held: File,
    in_force: u32,
}

/// Reads the latency in force, in microseconds: the smallest of all requests on the host.
///
/// # Errors
/// ENOENT on kernels without the device, EACCES without root.
pub(crate) fn in_force() -> Result<u32, KernelError> {
    // Opening the device makes a request for the longest latency, which has no effect.
    let found = read(&mut File::open(DEVICE).map_err(failed)?)?;
    u32::try_from(found)
        .map_err(|_| KernelError::malformed(DEVICE, format!("the latency in force is {found} us")))
}

fn read(device: &mut File) -> Result<i32, KernelError> {
    let mut found = [0; size_of::<i32>()];
    device.read_exact(&mut found).map_err(failed)?;
    Ok(i32::from_ne_bytes(found))
}

#[expect(clippy::needless_pass_by_value, reason = "map_err() passes the error by value")]
fn failed(error: std::io::Error) -> KernelError {
    KernelError::io(DEVICE, &error).needing("root")
}

impl WakeLatency {
    /// The largest value that can be requested, in microseconds. Kernel: `PM_QOS_CPU_LATENCY_DEFAULT_VALUE`.
    pub const MICROS_MAX: u32 = 2_000_000_000;

    /// Requests a latency of at most this many microseconds; 0 lets no CPU sleep.
    ///
    /// # Errors
    /// ENOENT on kernels without the device, EACCES without root; [`sys::Cause::Malformed`] if the kernel
    /// stored another value.
    pub fn hold(micros: u32) -> Result<Self, KernelError> {
        let mut device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(failed)?;
        let asked = i32::try_from(micros.min(Self::MICROS_MAX)).unwrap_or(i32::MAX);
        device.write_all(&asked.to_ne_bytes()).map_err(failed)?;
        let found = read(&mut device)?;
        match u32::try_from(found) {
            Ok(in_force) if found <= asked => Ok(Self { _held: device, in_force }),
            _ => Err(KernelError::malformed(
                DEVICE,
                format!("requested {asked} us, but {found} us are in force"),
            )),
        }
    }

    /// The latency in force, in microseconds: the smallest of all requests on the host.
    pub const fn in_force(&self) -> u32 {
        self.in_force
    }
}
