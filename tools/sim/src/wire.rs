//! The link: a bandwidth and nothing else.
//!
//! Answers go out one after another, each for as long as its bytes take; requests take as long, but do not wait for
//! each other, since each comes from a client of its own. Left out: segmentation and acknowledgement
//! of large messages, loss and congestion control, framing overhead.

/// One direction of the link.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    free: u64,
    /// Nanoseconds that one message takes.
    message: u64,
}

impl Link {
    /// A link that carries messages of this many bytes.
    pub(crate) fn new(gbps: f64, bytes: u32) -> Self {
        Self { free: 0, message: crate::scenario::nanos(f64::from(bytes) * 8.0 / gbps / 1000.0) }
    }

    /// When a message that is ready at this time has gone through.
    pub(crate) fn pass(&mut self, ready: u64) -> u64 {
        self.free = self.free.max(ready) + self.message;
        self.free
    }
}
