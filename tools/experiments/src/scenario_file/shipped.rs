//! The scenarios that ship with netpolicy, found by name.

/// A scenario that ships with netpolicy.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// The name.
    pub name: &'static str,
    /// The scenario file's text.
    pub scenario: &'static str,
    /// The measured rows' text; empty if there are none.
    pub measured: &'static str,
}

/// All shipped scenarios.
pub const SHIPPED: [Shipped; 5] = [
    Shipped {
        name: "irq-suspension",
        scenario: include_str!("../../../../scenarios/irq-suspension.toml"),
        measured: include_str!("../../../../scenarios/irq-suspension.tsv"),
    },
    Shipped {
        name: "threaded-napi",
        scenario: include_str!("../../../../scenarios/threaded-napi.toml"),
        measured: include_str!("../../../../scenarios/threaded-napi.tsv"),
    },
    Shipped {
        name: "epoll",
        scenario: include_str!("../../../../scenarios/epoll.toml"),
        measured: include_str!("../../../../scenarios/epoll.tsv"),
    },
    Shipped {
        name: "net-policy",
        scenario: include_str!("../../../../scenarios/net-policy.toml"),
        measured: "",
    },
    Shipped { name: "lab", scenario: include_str!("../../../../scenarios/lab.toml"), measured: "" },
];

/// Finds the scenario of this name.
pub fn shipped(name: &str) -> Option<&'static Shipped> {
    SHIPPED.iter().find(|shipped| shipped.name == name)
}
