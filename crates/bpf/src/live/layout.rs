//! The Rust counterparts of the structures in `live.h`.

use crate::mirrored::mirrored;

pub(super) const BUCKETS: usize = 592;
pub(super) const PART_BUCKETS: usize = 296;
pub(super) const PORTS_MAX: usize = 16;
/// `LIVE_PROTOCOLS`.
pub(super) const PROTOCOLS: usize = 9;
/// `LIVE_NOT_YET`: the window has not opened yet, because the programs are still being attached.
pub(super) const NOT_YET: u64 = u64::MAX;
/// The number of slots for NAPIs in the map `parts`; slots for threads follow.
pub(super) const NAPIS_MAX: u32 = 128;
/// The number of slots for NAPIs and threads in the map `parts`.
pub(super) const PARTS_MAX: u32 = NAPIS_MAX + 64;
/// `LIVE_WHOLE`: the whole of a turnaround distribution, of which shares are parts.
pub(super) const WHOLE: u64 = 1 << 31;

/// `EXCHANGES_MAX`: the maximum number of unanswered requests kept for a socket or peer. A power of two.
pub(super) const EXCHANGES_MAX: usize = 8;

mirrored! {
    /// `struct live_config`.
    struct Config = "live_config" {
        netns: u64,
        ports_count: u32,
        sockets_max: u32,
        ports: [u16; PORTS_MAX],
        tick_ns: u32,
        answers_late: u32,
        udp_ports_count: u32,
        udp_ports: [u16; PORTS_MAX],
        pad: u32,
    }

    /// `struct live_gate`.
    struct Gate = "live_gate" {
        window: u64,
        opens: u64,
        opened: u64,
        sockets: u64,
        looks_at_stack: u64,
        pairs_ids_only: u64,
    }

    /// `struct live_spans`.
    struct Spans = "live_spans" {
        residence: [u32; BUCKETS],
        since_last: [u32; BUCKETS],
        entered: [u32; BUCKETS],
        wakeup: [u32; BUCKETS],
        service: [u32; BUCKETS],
        ring: [u32; BUCKETS],
        uniform: [u32; BUCKETS],
        conditional: [u32; BUCKETS],
        stamped: [u32; BUCKETS],
        turnaround: [u32; BUCKETS],
        bytes: [u32; BUCKETS],
        receive: [u32; BUCKETS],
        transmit: [u32; BUCKETS],
    }

    /// `struct live_counts`.
    struct Counts = "live_counts" {
        segments: u64,
        connections: u64,
        arrivals: u64,
        joined: u64,
        answered: u64,
        batched: u64,
        carried: u64,
        untimed: u64,
        requests: u64,
        protocols: [u64; PROTOCOLS],
        sends: u64,
        continued: u64,
        unsolicited: u64,
        overflown: u64,
        answers_unseen: u64,
        unmeasured: u64,
        mptcp: u64,
        without_napi: u64,
        without_poll: u64,
        at_opening: u64,
        steered: u64,
        masked: u64,
        unmasked: u64,
        conditioned: u64,
        threaded: u64,
        by_ksoftirqd: u64,
        woken: u64,
        stamped: u64,
        unseen: u64,
        opened: u64,
        zero_windows: u64,
        datagrams: u64,
        identified: u64,
        unpaired: u64,
        quic: u64,
        dropped: u64,
        strays: u64,
        discarded: u64,
    }

    /// `struct live_part`.
    struct Part = "live_part" {
        requests: u64,
        ring_ns: u64,
        wakeup_ns: u64,
        service_ns: u64,
        polls: [u64; 4],
        packets: [u64; 4],
        total: [u32; PART_BUCKETS],
    }

    /// `struct live_key`.
    struct Key = "live_key" {
        id: u32,
        is_worker: u32,
    }

    /// `struct live_turnarounds`.
    struct Turnarounds = "live_turnarounds" {
        valid: u32,
        below: [u32; BUCKETS + 1],
    }

    /// `struct live_waiting`.
    struct Waiting = "live_waiting" {
        now: u64,
        opens: u64,
        sockets: u64,
        requests: u64,
        oldest: u64,
        stalled_ns: u64,
        stalled: u64,
        throughout: u64,
        incomplete: u64,
        ages: [u32; BUCKETS],
        entered: [u32; BUCKETS],
        begins: u64,
        segments_out: u64,
        retransmitted: u64,
        needless: u64,
        segments_in: u64,
        out_of_order: u64,
        clients_full: u64,
        rtt: [u32; BUCKETS],
    }

    /// `struct exchange` of `state.bpf.h`.
    struct Exchange = "exchange" {
        probed: u64,
        last: u64,
        read: u64,
        floor: u64,
        end_seq: u32,
        bytes: u32,
        write_seq: u32,
        poll: u32,
        late: u32,
        at: u16,
        requests: u16,
        napi: u8,
        stamped: u8,
        unseen: u8,
        touched: u8,
        untimed: u8,
        incomplete: u8,
        at_interrupt: u8,
        by_ksoftirqd: u8,
    }

    /// `struct peer_state` of `datagram.bpf.h`.
    struct PeerState = "peer_state" {
        head: u32,
        read: u32,
        tail: u32,
        carried: u8,
        broken: u8,
        pad: [u8; 2],
        last_send: u64,
        exchanges: [Exchange; EXCHANGES_MAX],
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::mirrored::{Mirrored as _, same_as_compiled};

    same_as_compiled!(
        super::super::meter::OBJECT,
        Config,
        Gate,
        Spans,
        Counts,
        Part,
        Key,
        Turnarounds,
        Waiting,
        Exchange,
        PeerState
    );

    #[test]
    fn what_is_written_is_read_back() {
        let mut below = [0; BUCKETS + 1];
        below[BUCKETS] = u32::MAX;
        let known = Turnarounds { valid: 1, below };
        assert_eq!(Turnarounds::of(&known.to_bytes()), known);
        assert_eq!(BUCKETS, model::SpanCounts::BUCKETS);
    }
}
