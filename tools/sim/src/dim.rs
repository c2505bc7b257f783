//! Adaptive interrupt moderation.
//!
//! Kernel: 6.11, `lib/dim/net_dim.c` `net_dim()`, `net_dim_decision()`, `net_dim_step()`, `net_dim_stats_compare()`;
//! `lib/dim/dim.c` `dim_calc_stats()`, `dim_turn()`, `dim_on_top()`, `dim_park_on_top()`, `dim_park_tired()`.
//! Omitted: the work item that writes the new values to the device; they take effect immediately.

/// Events per measurement. Kernel: `include/linux/dim.h` `DIM_NEVENTS`.
const EVENTS: u64 = 64;
/// Kernel: `NET_DIM_PARAMS_NUM_PROFILES`.
const PROFILES: usize = 5;

/// For each profile, the microseconds and the packets after which the NIC raises an interrupt.
pub(crate) type Profiles = [(u32, u32); PROFILES];

/// Kernel: `NET_DIM_RX_CQE_PROFILES`.
pub(crate) const RX_CQE: Profiles = [(2, 256), (8, 128), (16, 64), (32, 64), (64, 64)];
/// Kernel: `NET_DIM_RX_EQE_PROFILES`.
pub(crate) const RX_EQE: Profiles = [(1, 256), (8, 256), (64, 256), (128, 256), (256, 256)];
/// Kernel: `NET_DIM_TX_EQE_PROFILES`.
pub(crate) const TX_EQE: Profiles = [(1, 128), (8, 128), (32, 128), (64, 128), (128, 128)];
/// Kernel: `NET_DIM_DEF_PROFILE_CQE` and `NET_DIM_DEF_PROFILE_EQE`.
const PROFILE_AT_FIRST: usize = 1;

/// The moderation of one queue in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Dim {
    profiles: Profiles,
    profile: usize,
    tune: Tune,
    steps_left: u32,
    steps_right: u32,
    tired: u32,
    previous: Rates,
    start: Option<Sample>,
}

/// The counters at a point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) events: u64,
}

/// Rates per millisecond, rounded up. Kernel: `struct dim_stats`.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    packets: u64,
    bytes: u64,
    events: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tune {
    ParkingOnTop,
    ParkingTired,
    GoingRight,
    GoingLeft,
}

#[derive(PartialEq, Eq)]
enum Compared {
    Worse,
    Same,
    Better,
}

enum Stepped {
    Yes,
    OnEdge,
    TooTired,
}

impl Dim {
    pub(crate) const fn new(profiles: Profiles) -> Self {
        Self {
            profiles,
            profile: PROFILE_AT_FIRST,
            tune: Tune::ParkingOnTop,
            steps_left: 0,
            steps_right: 0,
            tired: 0,
            previous: Rates { packets: 0, bytes: 0, events: 0 },
            start: None,
        }
    }

    /// Returns the microseconds and the packets after which the NIC currently raises an interrupt.
    pub(crate) const fn moderation(&self) -> (u32, u32) {
        self.profiles[self.profile]
    }

    /// Evaluates the counters and may choose another profile.
    pub(crate) fn sample(&mut self, end: Sample) {
        let Some(start) = self.start else {
            self.start = Some(end);
            return;
        };
        if end.events - start.events < EVENTS {
            return;
        }
        let micros = (end.at - start.at) / 1000;
        if micros == 0 {
            return;
        }
        let per_ms = |count: u64| (count * 1000).div_ceil(micros);
        let rates = Rates {
            packets: per_ms(end.packets - start.packets),
            bytes: per_ms(end.bytes - start.bytes),
            events: per_ms(EVENTS),
        };
        self.decide(rates);
        self.start = Some(end);
    }

    fn decide(&mut self, rates: Rates) {
        let before = self.tune;
        match self.tune {
            Tune::ParkingOnTop => {
                if compare(&rates, &self.previous) != Compared::Same {
                    self.exit_parking();
                }
            }
            Tune::ParkingTired => {
                self.tired = self.tired.saturating_sub(1);
                if self.tired == 0 {
                    self.exit_parking();
                }
            }
            Tune::GoingRight | Tune::GoingLeft => {
                if compare(&rates, &self.previous) != Compared::Better {
                    self.turn();
                }
                if self.on_top() {
                    self.park(Tune::ParkingOnTop);
                } else {
                    match self.step() {
                        Stepped::Yes => {}
                        Stepped::OnEdge => self.park(Tune::ParkingOnTop),
                        Stepped::TooTired => self.park(Tune::ParkingTired),
                    }
                }
            }
        }
        if before != Tune::ParkingOnTop || self.tune != Tune::ParkingOnTop {
            self.previous = rates;
        }
    }

    fn exit_parking(&mut self) {
        self.tune = if self.profile == 0 { Tune::GoingRight } else { Tune::GoingLeft };
        // The kernel ignores the outcome of this step, too.
        let _ = self.step();
    }

    fn step(&mut self) -> Stepped {
        if self.tired as usize == PROFILES * 2 {
            return Stepped::TooTired;
        }
        match self.tune {
            Tune::ParkingOnTop | Tune::ParkingTired => {}
            Tune::GoingRight if self.profile == PROFILES - 1 => return Stepped::OnEdge,
            Tune::GoingRight => {
                self.profile += 1;
                self.steps_right += 1;
            }
            Tune::GoingLeft if self.profile == 0 => return Stepped::OnEdge,
            Tune::GoingLeft => {
                self.profile -= 1;
                self.steps_left += 1;
            }
        }
        self.tired += 1;
        Stepped::Yes
    }

    const fn turn(&mut self) {
        match self.tune {
            Tune::ParkingOnTop | Tune::ParkingTired => {}
            Tune::GoingRight => {
                self.tune = Tune::GoingLeft;
                self.steps_left = 0;
            }
            Tune::GoingLeft => {
                self.tune = Tune::GoingRight;
                self.steps_right = 0;
            }
        }
    }

    const fn on_top(&self) -> bool {
        match self.tune {
            Tune::ParkingOnTop | Tune::ParkingTired => true,
            Tune::GoingRight => self.steps_left > 1 && self.steps_right == 1,
            Tune::GoingLeft => self.steps_right > 1 && self.steps_left == 1,
        }
    }

    fn park(&mut self, tune: Tune) {
        self.steps_left = 0;
        self.steps_right = 0;
        if tune == Tune::ParkingOnTop {
            self.tired = 0;
        }
        self.tune = tune;
    }
}

/// Kernel: `IS_SIGNIFICANT_DIFF`, more than 10 %.
const fn significant(value: u64, reference: u64) -> bool {
    reference > 0 && 100 * value.abs_diff(reference) / reference > 10
}

fn compare(now: &Rates, before: &Rates) -> Compared {
    let more_is = |more: bool| if more { Compared::Better } else { Compared::Worse };
    if before.bytes == 0 {
        return if now.bytes > 0 { Compared::Better } else { Compared::Same };
    }
    if significant(now.bytes, before.bytes) {
        return more_is(now.bytes > before.bytes);
    }
    if before.packets == 0 {
        return if now.packets > 0 { Compared::Better } else { Compared::Same };
    }
    if significant(now.packets, before.packets) {
        return more_is(now.packets > before.packets);
    }
    if significant(now.events, before.events) {
        return more_is(now.events < before.events);
    }
    Compared::Same
}

#[cfg(test)]
mod test {
    use super::*;

    /// Returns the moderation after measurements on a link with a constant packet rate and one interrupt per
    /// moderation span.
    fn settled(packets_per_ms: u64, measurements: u32) -> Dim {
        let mut dim = Dim::new(RX_CQE);
        let mut sample = Sample::default();
        dim.sample(sample);
        for _ in 0..measurements {
            let (usecs, _) = dim.moderation();
            let span = u64::from(usecs.max(1)) * 1000 * EVENTS;
            sample.at += span;
            sample.events += EVENTS;
            sample.packets += packets_per_ms * span / 1_000_000;
            sample.bytes += 64 * packets_per_ms * span / 1_000_000;
            dim.sample(sample);
        }
        dim
    }

    #[test]
    fn a_steady_load_moves_to_fewer_interrupts_and_parks() {
        let dim = settled(1000, 200);
        assert!(dim.moderation().0 >= 32, "{dim:?}");
    }

    #[test]
    fn a_difference_of_a_tenth_is_not_significant() {
        assert!(!significant(110, 100) && significant(111, 100) && !significant(5, 0));
    }
}
