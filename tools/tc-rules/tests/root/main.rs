//! Rules in bulk on the running kernel: these tests need root.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the tests run programs and read their files"
)]

mod pinned;
mod rule_by_tc;
mod rule_corpus;
mod rule_dumps;
mod rule_faults;
mod rule_guard;
mod rule_kinds;
mod rule_pipes;
mod rule_signals;
mod rule_swap;
mod rule_tables;
mod rules;
mod rules_compared;

fn main() {
    testkit::run([
        pinned::tests(),
        rule_by_tc::tests(),
        rule_corpus::tests(),
        rule_dumps::tests(),
        rule_faults::tests(),
        rule_guard::tests(),
        rule_kinds::tests(),
        rule_pipes::tests(),
        rule_signals::tests(),
        rule_swap::tests(),
        rule_tables::tests(),
        rules::tests(),
        rules_compared::tests(),
    ]);
}
