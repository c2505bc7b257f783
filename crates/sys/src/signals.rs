//! Receives signals that request a command to end, through a descriptor that can be polled.
#![expect(unsafe_code, reason = "sigaction(2) has no safe wrapper")]

use std::fs::File;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::KernelError;

/// A signal that requests a command to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, sent by Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal was closed.
    HangUp,
}

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The signal.
    pub signal: Signal,
    /// Whether the kernel sent the signal, for example after Ctrl-C. If so, it was sent to the whole process
    /// group.
    pub to_group: bool,
}

/// Catches the signals that request this process to end. The signals never terminate this process again, even
/// after this object is dropped. They still terminate programs that this process starts, because `exec`
/// resets handlers.
#[derive(Debug)]
pub struct Signals {
    arrived: File,
}

/// The write end of the pipe, for the signal handler; -1 until the pipe is opened.
static WRITING_END: AtomicI32 = AtomicI32::new(-1);

/// Whether any of the signals has arrived.
static HAS_ARRIVED: AtomicBool = AtomicBool::new(false);

const CAUGHT: [(libc::c_int, Signal); 3] =
    [(libc::SIGINT, Signal::Interrupt), (libc::SIGTERM, Signal::Terminate), (libc::SIGHUP, Signal::HangUp)];

/// The bit of a written byte that marks a signal from the kernel. Signal numbers are smaller.
const FROM_KERNEL: u8 = 0x80;

impl Signals {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on. A signal that was inherited as ignored (SIGHUP under
    /// `nohup`) stays ignored.
    ///
    /// # Errors
    /// If no descriptors are left, or if this process already catches the signals.
    pub fn catch() -> Result<Self, KernelError> {
        Self::catch_with(&[])
    }

    /// Like [`Signals::catch`], but catches SIGHUP even if it was inherited as ignored. This is for a daemon,
    /// which SIGHUP does not ask to end.
    ///
    /// # Errors
    /// As for [`Signals::catch`].
    pub fn catch_with_hang_up() -> Result<Self, KernelError> {
        Self::catch_with(&[libc::SIGHUP])
    }

    fn catch_with(ignored_too: &[libc::c_int]) -> Result<Self, KernelError> {
        let failed = |errno| KernelError::errno("catching signals", errno);
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(failed)?;
        let writing = writing.into_raw_fd();
        if WRITING_END.compare_exchange(-1, writing, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            // SAFETY: the descriptor was opened above and nothing else owns it.
            drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(writing) });
            return Err(failed(rustix::io::Errno::ALREADY));
        }
        for (number, _) in CAUGHT {
            install(number, ignored_too.contains(&number)).map_err(failed)?;
        }
        Ok(Self { arrived: File::from(reading) })
    }

    /// Returns whether this process has received a signal since it began to catch them, whether or not the
    /// signal was [taken](Self::take).
    pub fn has_arrived() -> bool {
        HAS_ARRIVED.load(Ordering::SeqCst)
    }

    /// Returns the next received signal; `None` if there is none.
    pub fn take(&mut self) -> Option<Arrived> {
        let mut byte = [0];
        let read = self.arrived.read(&mut byte).ok()?;
        let number = libc::c_int::from(byte[0] & !FROM_KERNEL);
        let (_, signal) = CAUGHT.into_iter().find(|(caught, _)| read == 1 && *caught == number)?;
        Some(Arrived { signal, to_group: byte[0] & FROM_KERNEL != 0 })
    }
}

impl Signal {
    /// Returns the signal's number, as listed by `kill -l`.
    pub const fn number(self) -> i32 {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Terminate => libc::SIGTERM,
            Self::HangUp => libc::SIGHUP,
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }
}

fn install(number: libc::c_int, even_if_ignored: bool) -> Result<(), rustix::io::Errno> {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with a null new action, the call only stores the current one in `old`, which is large enough
    // for it. All zeros are a valid `sigaction`, so it may be read even if the call failed.
    let old = unsafe {
        libc::sigaction(number, std::ptr::null(), old.as_mut_ptr());
        old.assume_init()
    };
    if old.sa_sigaction == libc::SIG_IGN && !even_if_ignored {
        return Ok(());
    }
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = note;
    // SAFETY: all-zero is a valid `sigaction` with an empty mask.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: `action` is initialised; `note` has the signature that SA_SIGINFO requires and calls only
    // async-signal-safe functions.
    let result = unsafe { libc::sigaction(number, &raw const action, std::ptr::null_mut()) };
    if result == 0 {
        Ok(())
    } else {
        Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
            .unwrap_or(rustix::io::Errno::INVAL))
    }
}

/// Writes the signal's number to the pipe. If the pipe is full, the signal is lost, which does no harm
/// because many others are pending.
extern "C" fn note(number: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    HAS_ARRIVED.store(true, Ordering::SeqCst);
    // SAFETY: with SA_SIGINFO, the kernel passes a valid `siginfo_t` to the handler.
    let from_kernel = unsafe { (*info).si_code } == libc::SI_KERNEL;
    let byte = u8::try_from(number).unwrap_or(0) | if from_kernel { FROM_KERNEL } else { 0 };
    // SAFETY: errno is thread-local, and is restored because the interrupted code may be about to read it;
    // write(2) is async-signal-safe, and the descriptor stays open for the life of the process.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(WRITING_END.load(Ordering::SeqCst), (&raw const byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}
