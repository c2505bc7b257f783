//! A word that is either a policy or a delivery mode.

use model::{Budget, DeliveryMode, Intent, PolicyName};

use crate::nearest::nearest;

/// A policy or a delivery mode, given by one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyWord {
    /// A policy for the traffic.
    Policy(PolicyName),
    /// A way to deliver packets.
    Delivery(DeliveryMode),
}

/// Parses `latency` or `suspend20`.
///
/// # Errors
/// If the word is neither. The error is one sentence with the valid words, and the one that was probably
/// meant.
pub fn word(word: &str) -> Result<PolicyWord, String> {
    if let Ok(policy) = word.parse() {
        return Ok(PolicyWord::Policy(policy));
    }
    word.parse().map(PolicyWord::Delivery).map_err(|_| {
        let modes = DeliveryMode::EACH.map(|mode| mode.to_string());
        let names = PolicyName::ALL.map(PolicyName::as_str);
        let meant = nearest(word, names.into_iter().chain(modes.iter().map(String::as_str)));
        let help = meant.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        format!(
            "neither a policy ({}) nor a delivery mode ({}){help}",
            names.join(", "),
            DeliveryMode::names().join(", ")
        )
    })
}

impl PolicyWord {
    /// Creates the request for a target, with this policy or delivery mode.
    pub fn intent(self, target: model::Target, origin: impl Into<String>, budget: Budget) -> Intent {
        let (policy, delivery) = match self {
            Self::Policy(policy) => (policy, None),
            Self::Delivery(mode) => (PolicyName::None, Some(mode)),
        };
        Intent { delivery, budget, ..Intent::new(target, policy, origin) }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_word_is_a_policy_or_a_delivery_mode() {
        assert_eq!(word("latency"), Ok(PolicyWord::Policy(PolicyName::Latency)));
        assert_eq!(word("suspend20").map(|w| matches!(w, PolicyWord::Delivery(_))), Ok(true));
        assert!(word("supsend20").expect_err("misspelt").contains("did you mean `suspend20`?"));
    }
}
