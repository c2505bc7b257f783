//! Settings of the kernel thread of a queue's NAPI. The thread is looked up at each read and write.

use model::{KthreadKnob, Pid, RxQueue, Threading};
use sys::error::{Cause, KernelError};

use super::netns_handles::NetnsHandles;
use crate::observe::device::parse_threading;
use crate::process::kthread;

/// The maximum number of lookups of the thread if it exits during a read or write.
const TRIES: usize = 3;

/// Reads the settings of the thread; while there is none, the settings that a new thread starts with.
pub(super) fn read(
    handles: &mut NetnsHandles,
    queue: RxQueue,
    like: &[&KthreadKnob],
) -> Result<Vec<KthreadKnob>, KernelError> {
    let state = with_thread(handles, queue, |thread| match thread {
        Some(pid) => kthread::read(pid),
        None => kthread::begins(),
    })?;
    let unknown = |needs: &str| KernelError::absent(queue.to_string(), needs, None);
    let one = |like: &&KthreadKnob| match like {
        KthreadKnob::Affinity(_) => Ok(KthreadKnob::Affinity(state.cpus.clone())),
        KthreadKnob::Scheduling(_) => {
            let class = state.scheduling.map(KthreadKnob::Scheduling);
            class.ok_or_else(|| unknown("a kernel thread of class other, batch, fifo or rr"))
        }
        KthreadKnob::UtilClamp(_) => {
            let clamp = state.util_clamp.map(KthreadKnob::UtilClamp);
            clamp.ok_or_else(|| unknown("a kernel with CONFIG_UCLAMP_TASK"))
        }
        KthreadKnob::Slice(_) => {
            let slice = state.slice.map(KthreadKnob::Slice);
            slice
                .ok_or_else(|| unknown(&format!("Linux {}, which has slices of threads", like.facts().since)))
        }
    };
    like.iter().map(one).collect()
}

/// Writes the settings of the thread that exists now.
pub(super) fn write(
    handles: &mut NetnsHandles,
    queue: RxQueue,
    knobs: &[&KthreadKnob],
) -> Result<(), KernelError> {
    with_thread(handles, queue, |thread| {
        let Some(pid) = thread else {
            let needs = "a kernel thread for its NAPI, which has none because threaded is off";
            return Err(KernelError::absent(queue.to_string(), needs, None));
        };
        knobs.iter().try_for_each(|knob| match knob {
            KthreadKnob::Affinity(cpus) => kthread::set_cpus(pid, cpus),
            KthreadKnob::Scheduling(class) => kthread::set_scheduling(pid, *class),
            KthreadKnob::UtilClamp(clamp) => kthread::set_clamp(pid, *clamp),
            KthreadKnob::Slice(slice) => kthread::set_slice(pid, *slice),
        })
    })
}

/// Performs an action on the thread. If the thread exits in the meantime, tries again, because a reset of the
/// device replaces the thread.
fn with_thread<T>(
    handles: &mut NetnsHandles,
    queue: RxQueue,
    mut work: impl FnMut(Option<Pid>) -> Result<T, KernelError>,
) -> Result<T, KernelError> {
    for _ in 1..TRIES {
        let thread = thread_of(handles, queue)?;
        match work(thread) {
            Err(KernelError { cause: Cause::Gone(_), .. }) => {}
            done => return done,
        }
    }
    let thread = thread_of(handles, queue)?;
    work(thread)
}

/// Finds the thread that polls a queue's NAPI; `None` if none does.
///
/// # Errors
/// [`Cause::Absent`] if a thread should poll the NAPI but does not appear in time.
fn thread_of(handles: &mut NetnsHandles, queue: RxQueue) -> Result<Option<Pid>, KernelError> {
    let mut wanted = true;
    let found = kthread::wait_for(|| {
        let (threading, thread) = look(handles, queue)?;
        wanted = threading != Threading::Off;
        Ok(if wanted || thread.is_some() { thread.map(Some) } else { Some(None) })
    })?;
    match found {
        Some(thread) => Ok(thread),
        None => {
            let needs = format!(
                "a kernel thread for its NAPI: threaded is on, but no thread appeared within {} ms",
                kthread::APPEARS_WITHIN.as_millis()
            );
            Err(KernelError::absent(queue.to_string(), needs, None))
        }
    }
}

/// Returns whether a thread should poll a queue's NAPI, and the thread that does.
fn look(handles: &mut NetnsHandles, queue: RxQueue) -> Result<(Threading, Option<Pid>), KernelError> {
    let device = |handles: &mut NetnsHandles| {
        let text = handles.directory(queue.device)?.read("threaded")?;
        parse_threading(&text).ok_or_else(|| KernelError::malformed("threaded", format!("`{text}`")))
    };
    match handles.napi_of(queue) {
        Ok(napi) => {
            let stated = napi.threaded.and_then(Threading::of_number);
            let threading = stated.map_or_else(|| device(handles), Ok)?;
            Ok((threading, napi.pid.map(Pid)))
        }
        // On kernels before 6.8, only the names of the threads reveal the NAPIs.
        Err(KernelError { cause: Cause::Absent { since: Some(_), .. }, .. }) => {
            let threading = device(handles)?;
            let (name, queues) = (handles.name(queue.device)?, handles.rx_queues(queue.device)?);
            let threads = kthread::by_name(&name)?;
            let position = usize::try_from(queue.index.0).unwrap_or(usize::MAX);
            // Drivers create their NAPIs in the order of their queues.
            let thread = (threads.len() == queues).then(|| threads.get(position).copied()).flatten();
            Ok((threading, thread))
        }
        Err(error) => Err(error),
    }
}
