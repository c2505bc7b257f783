//! The lab and its benches on the running kernel: these tests need root.

mod bench;
mod conformance;
mod exchange;
mod machines;
mod matrix;
mod policies;
mod recorder;
mod stage;

fn main() {
    testkit::run([
        bench::tests(),
        conformance::tests(),
        exchange::tests(),
        machines::benches::tests(),
        machines::killed::tests(),
        matrix::tests(),
        policies::tests(),
    ]);
}
