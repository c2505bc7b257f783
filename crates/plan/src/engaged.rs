//! Calculates how far a delivery mode is engaged: the share of packets that it delivers.

use model::DeliveryMode;
use model::live::LivePolls;

/// Returns the share of these packets, from 0 to 1, that a delivery mode delivers: under deferral those of
/// the timer and the application, under suspension and busy polling those of the application, under threading
/// those of the kernel thread. Returns `None` for modes that leave delivery to interrupts, and if there are
/// no packets.
pub fn engaged_share(mode: DeliveryMode, packets: &LivePolls) -> Option<f64> {
    let delivered = match mode {
        DeliveryMode::Interrupt | DeliveryMode::EventBusy | DeliveryMode::UserBusy => return None,
        DeliveryMode::Defer { .. } => packets.timer + packets.application,
        DeliveryMode::NapiBusy | DeliveryMode::FullBusy | DeliveryMode::Suspend { .. } => packets.application,
        DeliveryMode::Threaded | DeliveryMode::ThreadedBusy => packets.kthread,
    };
    #[expect(clippy::cast_precision_loss, reason = "counts of minutes, below 2^53")]
    let share = delivered as f64 / packets.total() as f64;
    (packets.total() > 0).then_some(share)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_mode_is_engaged_as_far_as_who_it_names_polls() {
        let packets = LivePolls { interrupt: 10, timer: 20, application: 60, kthread: 10 };
        let share = |mode: &str| engaged_share(mode.parse().expect("a mode"), &packets);
        assert_eq!(share("suspend20"), Some(0.6));
        assert_eq!(share("defer50"), Some(0.8));
        assert_eq!(share("threaded"), Some(0.1));
        assert_eq!(share("interrupt"), None);
        assert_eq!(engaged_share(DeliveryMode::Threaded, &LivePolls::default()), None);
    }
}
