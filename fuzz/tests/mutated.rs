//! Tests random edits of a known recording. `NETPOLICY_MUTATIONS=COUNT` and `NETPOLICY_SEED=SEED` select
//! other edits than the few that each test run tries.

/// The maximum number of edits of a recording, six bytes each.
const EDITS_MAX: u64 = 2;

/// Returns a number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

/// Returns the next pseudo-random number: splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[test]
fn commands_survive_mutated_recordings() {
    let target = fuzz::target("recording").expect("a target");
    let count = number("NETPOLICY_MUTATIONS", 200);
    let seed = number("NETPOLICY_SEED", 1);
    let mut state = seed.wrapping_mul(0x0001_0000_0000_0000);
    for nth in 0..count {
        // Few inputs edit the whole recording or the large one, which take longer.
        let mut input = vec![match next(&mut state) % 128 {
            0 | 1 => b'~',
            2 => b'+',
            3..32 => b'=',
            _ => b'-',
        }];
        for _ in 0..=next(&mut state) % EDITS_MAX {
            input.extend(&next(&mut state).to_le_bytes()[..6]);
        }
        let held = std::panic::catch_unwind(|| target(&input));
        assert!(
            held.is_ok(),
            "mutation {nth} of seed {seed} fails; as a file in fuzz/regressions: {input:02x?}"
        );
    }
}
