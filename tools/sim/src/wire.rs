//! The link, modelled only by its bandwidth.
//!
//! Answers are sent one after another, each taking as long as its bytes need. Requests take as long, but do
//! not wait for each other, because each comes from a different client. Omitted: segmentation and
//! acknowledgement of large messages, loss and congestion control, framing overhead.

/// One direction of the link.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    free: u64,
    /// Transmission time of one message, in nanoseconds.
    message: u64,
}

impl Link {
    /// Creates a link that carries messages of this many bytes.
    pub(crate) fn new(gbps: f64, bytes: u32) -> Self {
        Self { free: 0, message: crate::scenario::nanos(f64::from(bytes) * 8.0 / gbps / 1000.0) }
    }

    /// Transmits a message that is ready at this time, and returns when the transmission ends.
    pub(crate) fn pass(&mut self, ready: u64) -> u64 {
        self.free = self.free.max(ready) + self.message;
        self.free
    }
}
