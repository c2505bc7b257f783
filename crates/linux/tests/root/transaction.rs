//! Describes the transactions that tests make.

use apply::{Moment, TransactionOrigin};
use model::Nanoseconds;

/// Returns the origin of a test's transaction.
pub(crate) fn asked() -> TransactionOrigin {
    let at = Moment { unix_micros: 1_795_233_900_000_000, since_boot: Nanoseconds(1) };
    let text = |text: &str| text.to_owned();
    TransactionOrigin {
        at,
        command: text("test"),
        kernel_release: text("test"),
        netpolicy: text("test"),
        deadline: None,
    }
}
