//! Changes recordings at random: netpolicy must either accept or refuse each of them, without a panic.
//! `MUTATIONS=N` sets their number. The fuzz target of the same name searches systematically.

#[path = "../../../fuzz/src/recording.rs"]
mod recording;

/// The number of changed recordings.
const MUTATIONS: u64 = 300;

/// The maximum number of changes to each recording. Often, only the first one is reached.
const EDITS: usize = 3;

#[test]
#[expect(clippy::print_stderr, reason = "many take hours")]
fn a_changed_recording_is_read_or_refused() {
    let asked = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (count, seed) = (asked("MUTATIONS").unwrap_or(MUTATIONS), asked("SEED").unwrap_or(1));
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = || {
        // xorshift64*: Vigna 2016.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_be_bytes()
    };
    for done in 0..count {
        let edits = 1 + usize::from(random()[0]) % EDITS;
        let input: Vec<u8> =
            std::iter::once(b'~').chain((0..edits).flat_map(|_| random()[..6].to_vec())).collect();
        let held = std::panic::catch_unwind(|| recording::run(&input));
        assert!(held.is_ok(), "input {input:?}, after {done} of seed {seed}");
        if done % 100_000 == 99_999 {
            eprintln!("{} changed recordings of seed {seed}", done + 1);
        }
    }
}
