//! Determines the desired value of every knob, with the reason.

use std::collections::BTreeSet;

use model::host::{Device, Napi};
use model::nic::NicRequest;
use model::{
    DeliveryMode, DeviceId, DeviceNapiKnob, EmptyPolls, EpollParams, Host, KernelVersion, Nanoseconds,
    NapiKnob, ProcessKnob, Reason, RingNapi, Setting, SocketPolling, Sysctl, Target, Threading, since,
};

use crate::affinity::PartCpus;
use crate::divide;
use crate::driver_facts;
use crate::in_force;
use crate::index::Index;
use crate::irqbalance;
use crate::known_bad;
use crate::kthread;
use crate::nic;
use crate::placed::{PlacedProcess, PlacedQueue};
use crate::placement::{PlacedRequest, Placement};
use crate::recipe::of_device;
use crate::refusal::{Refusal, RefusalKind};
use crate::reuseport;
use crate::wanted::{Collected, Desired, DesiredSetting};

/// Returns the desired settings of a placement.
///
/// # Errors
/// [`RefusalKind::Unsupported`] if this kernel lacks a feature that a mode needs, [`RefusalKind::Conflict`]
/// if two requests want different values for an interrupt or a device.
pub fn desired(placement: &Placement, host: &Host) -> Result<Desired, Refusal> {
    let index = Index::new(host);
    let mut collected = Collected::default();
    let remaking = want_of_devices(placement, &index, &mut collected)?;
    driver_facts::note(placement, &index, &mut collected);
    note_busy_poll(&index, &mut collected);
    if !remaking.is_empty() {
        collected.desired.first_stage = true;
        collected.desired.notes.push(format!(
            "this recreates the queues of {}; their settings are written afterwards",
            remaking.join(", ")
        ));
        note_rps_default(placement, &index, &mut collected);
        return Ok(collected.desired);
    }
    for division in &placement.divisions {
        divide::want(division, &index, &mut collected)?;
    }
    for part in placement.parts.iter().filter(|part| !is_for_others(part, host)) {
        check_kernel(part, host)?;
        kthread::check(part, &index)?;
        let wants = Wants { part, index: &index };
        if host.capabilities.napi_set {
            for queue in &part.queues {
                wants.queue(queue, &mut collected)?;
            }
        } else {
            for placed in &part.queues {
                wants.device(placed, &mut collected)?;
            }
        }
        for process in &part.processes {
            wants.process(process, &mut collected)?;
        }
        let inferred = placement.inferred;
        let cpus = PartCpus { part, index: &index, recipes: &placement.recipes, inferred };
        cpus.affinity(&mut collected)?;
        cpus.wake_latency(&mut collected);
        kthread::want(part, &index, &mut collected)?;
    }
    reuseport::want(placement, &index, &mut collected)?;
    irqbalance::want(host, &mut collected)?;
    driver_facts::note_limits(placement, &index, &mut collected);
    known_bad::note(placement, host, &mut collected);
    Ok(collected.desired)
}

/// Adds a note on the RPS mask with which new receive queues start, if no request sets the mask.
fn note_rps_default(placement: &Placement, index: &Index<'_>, collected: &mut Collected) {
    let mask = &index.host.rps_default_mask;
    for part in placement.parts.iter().filter(|_| !mask.is_empty()) {
        let named = part.intent.nic.iter().any(|request| matches!(request, NicRequest::RpsCpus(_)));
        let device = match &part.intent.target {
            Target::Device(name) if !named => index.host.device_named(name),
            _ => None,
        };
        let Some(device) = device else { continue };
        let there = u32::try_from(device.rx_queues.len()).unwrap_or(u32::MAX);
        if placement.queues_after.rx(device) > there {
            collected.desired.notes.push(format!(
                "new receive queues of {} start with rps_cpus {mask}, because of net.core.rps_default_mask",
                device.id
            ));
        }
    }
}

/// Adds a note on the other epolls that `net.core.busy_poll` affects.
fn note_busy_poll(index: &Index<'_>, collected: &mut Collected) {
    let Some(usecs @ 1..) = collected.sysctl(Sysctl::BusyPoll, index.host) else { return };
    if index.host.sysctls.get(&Sysctl::BusyPoll) == Some(&usecs) {
        return;
    }
    collected.desired.notes.push(format!(
        "net.core.busy_poll affects the whole host: every epoll without busy_poll_usecs that watches a connection with a NAPI also busy-polls for {usecs} us before it sleeps"
    ));
}

/// Collects the desired settings of devices: those that requests name, and those of recipes. Returns the
/// devices whose queues are recreated. If there are such devices, collects only the settings that recreate
/// queues.
fn want_of_devices(
    placement: &Placement,
    index: &Index<'_>,
    collected: &mut Collected,
) -> Result<Vec<String>, Refusal> {
    let mut parts = Vec::new();
    let mut remaking = Vec::new();
    for part in &placement.parts {
        for device in devices_of(part, index) {
            let of_recipe = of_device::wanted(part, device, placement, index);
            let by_recipe = of_recipe.wanted.iter().any(|wanted| {
                nic::remakes(&wanted.setting, device)
                    && in_force::value(&wanted.setting, index).is_ok_and(|now| now != wanted.setting)
            });
            if by_recipe || nic::remakes_queues(part, device, index, &placement.queues_after)? {
                remaking.push(device.id.to_string());
            }
            parts.push((part, device, of_recipe));
        }
    }
    for (part, device, _) in &parts {
        nic::want(part, device, index, &placement.queues_after, !remaking.is_empty(), collected)?;
    }
    for (part, device, of_recipe) in parts {
        for DesiredSetting { setting, because } in of_recipe.wanted {
            if remaking.is_empty() || nic::remakes(&setting, device) {
                collected.want_unless_wanted(setting, because);
            }
        }
        let desired = &mut collected.desired;
        for wanted in of_recipe.proposed {
            desired.notes.push(format!(
                "proposed, but not set without --disruptive, because it {}: {} ({})",
                wanted.setting.disruption(),
                wanted.setting,
                wanted.because.why
            ));
            desired.proposed.push(wanted);
        }
        desired.left_out.extend(of_device::note_of_lacks(device.id, part, &of_recipe.lacks));
    }
    Ok(remaking)
}

/// Returns whether a request sets nothing itself, because each of its devices has a separate request.
fn is_for_others(part: &PlacedRequest, host: &Host) -> bool {
    match &part.intent.target {
        Target::Devices(..) => true,
        Target::Device(name) => host.device_named(name).is_some_and(|device| host.is_upper(device)),
        Target::Service(..) | Target::Task(_) | Target::Epolls(..) => false,
    }
}

/// Returns the devices of a request: the device that it names, or those of its queues.
fn devices_of<'h>(part: &PlacedRequest, index: &Index<'h>) -> Vec<&'h Device> {
    if let Target::Device(name) = &part.intent.target {
        let own = index.host.device_named(name).filter(|device| !index.host.is_upper(device));
        return own.into_iter().collect();
    }
    let ids: BTreeSet<DeviceId> = part.queues.iter().map(|placed| placed.queue.device).collect();
    ids.iter().filter_map(|id| index.devices.get(id).copied()).collect()
}

/// Checks that the kernel has the features that the mode needs.
fn check_kernel(part: &PlacedRequest, host: &Host) -> Result<(), Refusal> {
    let lacks = |what: &str, since: KernelVersion| {
        Refusal::new(
            RefusalKind::Unsupported,
            &part.intent.target,
            format!("{} needs {what} (Linux {since}); this is Linux {}", part.delivery.mode, host.release),
        )
        .because(format!("requested at {}", part.intent.origin))
    };
    let defer = DeliveryMode::Defer { gro_flush: part.params.gro_flush_timeout };
    let params = &part.params;
    if !params.irq_suspend_timeout.is_zero() && !host.capabilities.irq_suspend {
        let nearest =
            if host.capabilities.epoll_params { format!("{defer}, or napibusy") } else { defer.to_string() };
        return Err(lacks("irq-suspend-timeout", since::NAPI_SET).nearest(nearest));
    }
    if params.epoll.prefer_busy_poll && !host.capabilities.epoll_params {
        return Err(lacks("busy-poll parameters of epolls", since::EPOLL_PARAMS).nearest(defer.to_string()));
    }
    if params.epoll.events_only && !host.capabilities.epoll_events_only {
        return Err(no_events_only(part, host));
    }
    let deferral = since::DEVICE_DEFER_HARD_IRQS;
    if params.defer_hard_irqs.0 > 0 && host.kernel < deferral {
        return Err(lacks("defer-hard-irqs", deferral)
            .nearest("interrupt, with the device's own interrupt moderation"));
    }
    Ok(())
}

/// Creates the refusal of a mode that waits only for events. No Linux release has this feature, so netpolicy
/// asks an epoll whether the kernel has it.
fn no_events_only(part: &PlacedRequest, host: &Host) -> Refusal {
    let answer = if host.capabilities.epoll_params {
        "EPIOCSPARAMS refuses EPOLL_PARAMS_F_EVENTS_ONLY"
    } else {
        "its epolls have no busy-poll parameters"
    };
    Refusal::new(
        RefusalKind::Unsupported,
        &part.intent.target,
        format!(
            "{} needs epolls that wait for events only, which no Linux release supports; this is Linux {}",
            part.delivery.mode, host.release
        ),
    )
    .because(format!("requested at {}", part.intent.origin))
    .because(format!("{answer}: this kernel is built without the patches in kernel/epoll-event-busy-loop"))
    .nearest("userbusy, the same from user space: netpolicy run --delivery userbusy --polling-cpus N -- CMD")
}

/// The desired settings of one part.
struct Wants<'a> {
    part: &'a PlacedRequest,
    index: &'a Index<'a>,
}

impl Wants<'_> {
    /// Collects the settings of one NAPI.
    fn queue(&self, placed: &PlacedQueue, collected: &mut Collected) -> Result<(), Refusal> {
        let (queue, params) = (placed.queue, &self.part.params);
        let capabilities = &self.index.host.capabilities;
        if let Some(napi) = self.index.napi_of(queue) {
            self.thread(placed, napi, collected)?;
        }
        collected.want(
            Setting::Napi(queue, NapiKnob::DeferHardIrqs(params.defer_hard_irqs)),
            self.because_defer(),
        )?;
        collected.want(
            Setting::Napi(queue, NapiKnob::GroFlushTimeout(params.gro_flush_timeout)),
            self.because_flush(),
        )?;
        if capabilities.irq_suspend {
            collected.want(
                Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(params.irq_suspend_timeout)),
                self.because_suspend(),
            )?;
        }
        Ok(())
    }

    /// Collects the settings of a whole device, on kernels without settings for single NAPIs.
    fn device(&self, placed: &PlacedQueue, collected: &mut Collected) -> Result<(), Refusal> {
        let (id, params) = (placed.queue.device, &self.part.params);
        let device: Option<&Device> = self.index.devices.get(&id).copied();
        let wanted = self.part.delivery.mode.threading();
        if wanted != Threading::Off {
            collected.want(
                Setting::DeviceNapis(id, DeviceNapiKnob::Threaded(wanted)),
                self.because_threaded(id),
            )?;
        } else if device.and_then(|d| d.threaded).is_some_and(|threaded| threaded != Threading::Off) {
            collected.want(
                Setting::DeviceNapis(id, DeviceNapiKnob::Threaded(Threading::Off)),
                self.because_unthreaded(),
            )?;
            kthread::want_to_end(placed, self.index, &self.because_unthreaded(), collected)?;
        }
        // Kernels before 5.8 do not defer hard IRQs, so there is nothing to set.
        if self.index.host.kernel >= since::DEVICE_DEFER_HARD_IRQS {
            collected.want(
                Setting::DeviceNapis(id, DeviceNapiKnob::DeferHardIrqs(params.defer_hard_irqs)),
                self.because_defer(),
            )?;
        }
        collected.want(
            Setting::DeviceNapis(id, DeviceNapiKnob::GroFlushTimeout(params.gro_flush_timeout)),
            self.because_flush(),
        )
    }

    /// Gives a NAPI a kernel thread if the mode polls in one; otherwise ends the thread.
    fn thread(&self, placed: &PlacedQueue, napi: &Napi, collected: &mut Collected) -> Result<(), Refusal> {
        let device = placed.queue.device;
        let set = |threading| {
            if self.index.host.capabilities.napi_threaded {
                Setting::Napi(placed.queue, NapiKnob::Threaded(threading))
            } else {
                Setting::DeviceNapis(device, DeviceNapiKnob::Threaded(threading))
            }
        };
        let wanted = self.part.delivery.mode.threading();
        if wanted != Threading::Off {
            return collected.want(set(wanted), self.because_threaded(device));
        }
        // Before kernel 6.17, only the device reports whether its NAPIs are threaded.
        let of_device = || self.index.devices.get(&device).and_then(|device| device.threaded);
        if napi.threaded.or_else(of_device).is_none_or(|threaded| threaded == Threading::Off) {
            return Ok(());
        }
        collected.want(set(Threading::Off), self.because_unthreaded())?;
        kthread::want_to_end(placed, self.index, &self.because_unthreaded(), collected)
    }

    /// Collects the busy-polling settings of a process.
    fn process(&self, placed: &PlacedProcess, collected: &mut Collected) -> Result<(), Refusal> {
        let params = self.part.params.epoll;
        if self.index.host.capabilities.epoll_params {
            for &epoll in &placed.epolls {
                collected.want(Setting::Process(ProcessKnob::Epoll(epoll, params)), self.because_epoll())?;
            }
        }
        for &ring in &placed.rings {
            let napi = ring_napi(params);
            let polls_now = self.index.rings.get(&ring).is_some_and(|r| r.napi.is_some());
            if napi.is_some() || polls_now {
                collected
                    .want(Setting::Process(ProcessKnob::IoUring(ring, napi)), self.because_ring(napi))?;
            }
            if params.events_only {
                collected
                    .desired
                    .notes
                    .push(format!("{ring}: only epoll_wait busy-waits for events; the ring sleeps"));
            }
            if !self.part.params.irq_suspend_timeout.is_zero() {
                collected.desired.notes.push(format!(
                    "{ring}: only epoll_wait suspends IRQs; the ring busy-polls for {} us instead",
                    napi.map_or(0, |n| n.busy_poll_usecs)
                ));
            }
        }
        self.sockets(placed, collected)
    }

    /// Collects the busy-polling settings of sockets that no epoll watches.
    fn sockets(&self, placed: &PlacedProcess, collected: &mut Collected) -> Result<(), Refusal> {
        let mut polling = 0;
        for &socket in &placed.sockets {
            let Some(now) = self.index.sockets.get(&socket).and_then(|socket| socket.polling) else {
                continue;
            };
            let wanted = socket_polling(self.part.params.epoll, now, self.index.host.capabilities.bpf);
            if wanted.polls() || now.polls() {
                collected.want(
                    Setting::Process(ProcessKnob::Socket(socket, wanted)),
                    self.because_socket(wanted),
                )?;
            }
            polling += usize::from(wanted.polls());
        }
        if polling > 0 {
            let others = match collected.sysctl(Sysctl::BusyPoll, self.index.host) {
                Some(0) => {
                    "are not busy-polled, because net.core.busy_poll is 0; settings.busy_poll of a device section sets it for the whole host".to_owned()
                }
                Some(usecs) => format!("are busy-polled for {usecs} us (net.core.busy_poll)"),
                None => {
                    "are busy-polled only if net.core.busy_poll, visible only in the initial network namespace, is not 0".to_owned()
                }
            };
            let suspends = !self.part.params.irq_suspend_timeout.is_zero();
            let only = if suspends { ", and only epoll_wait suspends IRQs" } else { "" };
            collected.desired.notes.push(format!(
                "{}: {polling} socket(s) that no epoll watches busy-poll while a receive waits{only}; sockets in poll and select {others}",
                placed.id
            ));
        }
        Ok(())
    }

    /// Creates a reason that names the mode, or the request if the request gives the value explicitly.
    fn reason(&self, why: String, overridden: bool) -> Reason {
        let source = if overridden {
            format!("{}: explicitly requested", self.part.intent.origin)
        } else {
            self.part.delivery.because.source.clone()
        };
        Reason::new(why, source)
    }

    fn because_defer(&self) -> Reason {
        let why = match self.part.params.defer_hard_irqs {
            EmptyPolls(0) => "the IRQ is enabled again after every poll".to_owned(),
            polls => format!(
                "the IRQ stays masked until {polls} consecutive polls find nothing; the timer polls until then"
            ),
        };
        self.reason(why, self.part.intent.overrides.defer_hard_irqs.is_some())
    }

    fn because_flush(&self) -> Reason {
        let why = match self.part.params.gro_flush_timeout {
            Nanoseconds::ZERO => "no timer polls instead of the IRQ".to_owned(),
            span => format!(
                "the timer polls {span} after the last poll, which is the maximum delay for an idle application"
            ),
        };
        self.reason(why, self.part.intent.overrides.gro_flush_timeout.is_some())
    }

    fn because_suspend(&self) -> Reason {
        let why = match self.part.params.irq_suspend_timeout {
            Nanoseconds::ZERO => "epoll_wait does not keep the IRQ masked".to_owned(),
            span => format!(
                "the IRQ stays masked while epoll_wait finds events; {span} covers one iteration of the application's loop"
            ),
        };
        self.reason(why, self.part.intent.overrides.irq_suspend_timeout.is_some())
    }

    fn because_threaded(&self, device: DeviceId) -> Reason {
        let whole = if self.index.host.capabilities.napi_threaded {
            String::new()
        } else {
            format!("; this kernel has the setting only for all of {device} (single queues: 6.17)")
        };
        let why = match self.part.delivery.mode.threading() {
            Threading::BusyPoll => "a kernel thread polls continuously, on its own CPU",
            Threading::On | Threading::Off => "a kernel thread polls; the scheduler places it like any other",
        };
        self.reason(format!("{why}{whole}"), false)
    }

    fn because_unthreaded(&self) -> Reason {
        let mode = self.part.delivery.mode;
        self.reason(format!("{mode} polls in softirq and in the application, not in a kernel thread"), false)
    }

    fn because_epoll(&self) -> Reason {
        let params = self.part.params.epoll;
        let why = match (params.prefer_busy_poll, params.busy_poll_usecs) {
            (false, usecs) if params.events_only => {
                format!(
                    "epoll_wait checks for events for {usecs} us before it sleeps, and leaves polling to softirq"
                )
            }
            (false, _) => "epoll_wait sleeps immediately and leaves polling to softirq".to_owned(),
            (true, 0) => {
                "epoll_wait polls the NAPI once before it sleeps, and keeps its IRQ masked while it finds events"
                    .to_owned()
            }
            (true, usecs) => format!("epoll_wait polls the NAPI for {usecs} us before it sleeps"),
        };
        self.reason(why, false)
    }

    fn because_socket(&self, wanted: SocketPolling) -> Reason {
        let why = match wanted.busy_poll_usecs {
            0 => "a receive sleeps immediately and leaves polling to softirq".to_owned(),
            usecs => format!("a receive polls the NAPI for {usecs} us before it sleeps"),
        };
        self.reason(why, false)
    }

    fn because_ring(&self, napi: Option<RingNapi>) -> Reason {
        let why = match napi {
            Some(napi) => {
                format!("a wait on the ring polls the NAPI for {} us before it sleeps", napi.busy_poll_usecs)
            }
            None => "a wait on the ring sleeps immediately and leaves polling to softirq".to_owned(),
        };
        self.reason(why, false)
    }
}

/// Returns the busy-polling settings of a ring in a mode with these epoll parameters. With 0 µs, a wait polls
/// only once (6.18, `io_uring/napi.c` `io_napi_busy_loop_timeout()`). That suffices for an epoll, which
/// suspends IRQs in between, but not for a ring, which never does. Therefore a ring gets the time of
/// `napibusy` instead.
fn ring_napi(params: EpollParams) -> Option<RingNapi> {
    let napibusy = DeliveryMode::NapiBusy.params().epoll.busy_poll_usecs;
    params.prefer_busy_poll.then_some(RingNapi {
        busy_poll_usecs: if params.busy_poll_usecs == 0 { napibusy } else { params.busy_poll_usecs },
        prefer_busy_poll: true,
    })
}

/// Returns the busy-polling settings of a socket that no epoll watches, in a mode with these epoll
/// parameters. Like a ring, such a socket never suspends IRQs. The budget is left unchanged if it cannot be
/// read.
fn socket_polling(params: EpollParams, now: SocketPolling, can_bpf: bool) -> SocketPolling {
    let readable = now.busy_poll_budget.is_some() || can_bpf && !now.polls();
    match ring_napi(params) {
        Some(napi) => SocketPolling {
            busy_poll_usecs: napi.busy_poll_usecs,
            prefer_busy_poll: napi.prefer_busy_poll,
            busy_poll_budget: readable.then_some(params.busy_poll_budget),
        },
        None => SocketPolling { busy_poll_budget: readable.then_some(0), ..SocketPolling::default() },
    }
}
