//! `bench policies --simulated`: simulates the same evaluation at the scale of the NET-policy document, with
//! the model of the receive path.

use std::path::Path;

use model::nic::CoalesceParam;
use model::recipe::{Circumstances, Mechanism, RecipeValue};
use model::{Layout, OfferedLoad, PolicyName, Recipes};
use runs::{Experiment, Grid, Results, Variant};
use session::{Exit, Fault};
use sim::Scenario;
use sim::outcome::Length;
use sim::scenario::Refused;

use super::exchange::publish;
use super::policies::empty;
use super::running::writable;
use crate::Context;
use crate::bench::{Mixture, Policies, Tuning};
use crate::simulations::{Job, evidence, run_all, scenario};

/// The scenario of the document's machine.
const SCENARIO: &str = "net-policy";

/// The driver of the NIC of the document's machine, on which recipes may depend.
const DRIVER: &str = "i40e";

/// Outstanding requests of a throughput-first workload (netperf's `-b`, for which the document gives no
/// value).
const BURST: u32 = 16;

/// Simulated time before counting starts.
const WARMUP_NS: u64 = 50_000_000;

/// Default length of the counted window.
const WINDOW_NS: u64 = 150_000_000;

/// Notes on these results.
const NOTES: [&str; 5] = [
    "Computed in the model, scenario net-policy: 24 CPUs on two nodes, 24 queues, 40 Gbit/s, costs fitted to another machine. The results show how policies compare at that scale, but are not measurements of the document's machine.",
    "A throughput-first workload is a process with 16 outstanding one-byte exchanges (the document's TCP_RR with a burst), a latency-first workload one with a single exchange.",
    "none leaves threads to the scheduler and interrupts spread over all CPUs, where irqbalance has them at best; manual pins queue \
     i and process i to CPU i, which is what the document calls its baseline; with more processes than CPUs the model pins none, \
     and manual is none.",
    "Of a recipe, the delivery mode with its times, rx-usecs, tx-usecs, adaptive-rx and the layout are modelled. Not modelled: GRO, \
     TSO and LRO, ring and channel changes, XPS and RPS, steering of flows, idle states (cpu_dma_latency), irqbalance's own moves, \
     and so of power the energy.",
    "Mixes are not modelled, because all clients of a scenario are of one kind; mix is therefore the device's recipe, undivided.",
];

/// Computes the evaluation, prints the tables, and writes the files.
pub(super) fn run(arguments: &Policies, context: &Context<'_>) -> Result<Exit, Fault> {
    // Check before the computation, not only after it, that the files can be written.
    for path in [&arguments.report, &arguments.json].into_iter().flatten() {
        writable(path)?;
    }
    let grid = simulated(arguments, context)?;
    publish(context, &grid, arguments.json.as_deref(), arguments.report.as_deref(), false)
}

/// Computes the evaluation.
fn simulated(arguments: &Policies, context: &Context<'_>) -> Result<Grid, Fault> {
    let base = scenario(Path::new(SCENARIO))?.file.scenario;
    let recipes = context.session.recipes()?;
    let cpus = base.hardware.cpus;
    let mixtures: Vec<Mixture> =
        arguments.mixtures(cpus).into_iter().filter(|mixture| !mixture.is_mixed()).collect();
    if mixtures.is_empty() {
        return Err(Fault::new(Exit::Usage, "there is nothing to compute: mixes are not modelled"));
    }
    let tunings = arguments.tunings();
    let rounds = arguments.rounds();
    let window = arguments.seconds.map_or(WINDOW_NS, |seconds| seconds.0);
    let length = Length { warmup: WARMUP_NS, window };
    let mut jobs = Vec::new();
    for mixture in &mixtures {
        for tuning in &tunings {
            let scenario = of_tuning(&base, *tuning, *mixture, &recipes)?;
            let job =
                |seed| Job { scenario: scenario.clone(), seed: arguments.seed + u64::from(seed), length };
            jobs.extend((0..rounds).map(job));
        }
    }
    let outcomes = run_all(&jobs, context.console, "simulating")?;
    let mut grid = empty(arguments, &mixtures, "Policies at the NET-policy document's scale, simulated");
    grid.notes.push(arguments.scale(cpus));
    grid.notes.extend(NOTES.map(str::to_owned));
    let experiment = Experiment {
        labels: tunings.iter().map(Tuning::to_string).collect(),
        loads: vec![OfferedLoad::Max],
        rounds,
        seed: arguments.seed,
    };
    let each = tunings.len() * rounds as usize;
    let mut runs = jobs.iter().zip(&outcomes);
    for mixture in &mixtures {
        let mine: Vec<_> = runs.by_ref().take(each).collect();
        let labels = tunings.iter().flat_map(|tuning| (0..rounds).map(|_| tuning.to_string()));
        let evidence = labels
            .zip(mine)
            .map(|(label, (job, outcome))| evidence(&label, &job.scenario, job.seed, outcome));
        let results = Results::new(experiment.clone(), evidence.collect());
        let name = if mixture.throughput > 0 { mixture.of_throughput() } else { mixture.of_latency() };
        grid.variants.push(Variant { name, borne: None, results });
    }
    Ok(grid)
}

/// Returns the scenario of a mixture of one kind of workload under a tuning.
fn of_tuning(
    base: &Scenario,
    tuning: Tuning,
    mixture: Mixture,
    recipes: &Recipes,
) -> Result<Scenario, Fault> {
    let mut scenario = base.clone();
    let processes = mixture.at_once();
    scenario.application.threads = processes;
    scenario.clients.connections =
        if mixture.throughput > 0 { processes.saturating_mul(BURST) } else { processes };
    scenario.clients.load = OfferedLoad::Max;
    match tuning {
        // In the model, each pinned thread has a CPU to itself.
        Tuning::Manual => scenario.layout.pinned = processes <= scenario.hardware.cpus,
        Tuning::Delivery(mode) => scenario.deliver(mode),
        Tuning::Policy(policy) => under(&mut scenario, policy, recipes)
            .map_err(|refused| Fault::new(Exit::Usage, format!("policy {policy}: {refused}")))?,
    }
    scenario.check().map_err(|impossible| Fault::new(Exit::Usage, format!("{tuning}: {impossible}")))?;
    Ok(scenario)
}

/// Applies the parts of a policy's recipe that the model supports.
fn under(scenario: &mut Scenario, policy: PolicyName, recipes: &Recipes) -> Result<(), Refused> {
    let there = Circumstances { driver: DRIVER.to_owned(), own_interrupts: Some(true), epoll_napis: None };
    for (mechanism, entry) in recipes.under(policy, &there) {
        match (mechanism, &entry.value) {
            (Mechanism::Delivery, RecipeValue::Delivery(mode)) => scenario.deliver(*mode),
            (Mechanism::Layout, RecipeValue::Layout(layout)) => lay_out(scenario, layout),
            (Mechanism::Coalescing(param), value) => moderate(scenario, param, value)?,
            _ => {}
        }
    }
    // Set these after the mode, because they override its timeouts.
    for (mechanism, key) in [
        (Mechanism::DeferHardIrqs, "delivery.defer-hard-irqs"),
        (Mechanism::GroFlushTimeout, "delivery.gro-flush-timeout"),
        (Mechanism::IrqSuspendTimeout, "delivery.irq-suspend-timeout"),
    ] {
        let value = recipes.of(policy, mechanism).map(|entry| &entry.value);
        if let Some(value @ (RecipeValue::Number(_) | RecipeValue::Span(_))) = value {
            scenario.set(key, &value.to_string())?;
        }
    }
    Ok(())
}

/// Applies interrupt moderation, as far as the model supports it.
fn moderate(scenario: &mut Scenario, param: CoalesceParam, value: &RecipeValue) -> Result<(), Refused> {
    let key = match param {
        CoalesceParam::RxUsecs => "hardware.rx-usecs",
        CoalesceParam::TxUsecs => "hardware.tx-usecs",
        CoalesceParam::AdaptiveRx => "hardware.adaptive",
        CoalesceParam::RxMaxFrames
        | CoalesceParam::TxMaxFrames
        | CoalesceParam::AdaptiveTx
        | CoalesceParam::CqeModeRx
        | CoalesceParam::CqeModeTx => return Ok(()),
    };
    match value {
        RecipeValue::Number(number) => scenario.set(key, &number.to_string()),
        RecipeValue::Switch(on) => scenario.set(key, &on.to_string()),
        _ => Ok(()),
    }
}

/// Applies a layout's interrupt placement, on a machine without hyper-threading whose NIC is on the first
/// node.
fn lay_out(scenario: &mut Scenario, layout: &Layout) {
    let cpus = match layout {
        Layout::OneToOne | Layout::RxPerCore => scenario.hardware.cpus,
        Layout::LocalNuma => {
            // Queues beyond the node's number of CPUs would receive nothing.
            scenario.hardware.queues = scenario.hardware.queues.min(scenario.hardware.node_cpus);
            scenario.hardware.node_cpus
        }
        Layout::Shared(cpus) => (*cpus).min(scenario.hardware.cpus),
        // Explicit layouts come from a site's own recipes and name queues that this scenario does not have.
        Layout::Explicit(_) => return,
    };
    scenario.layout.irq_cpus = (0..cpus.max(1)).collect();
}

#[cfg(test)]
mod test {
    use model::DeliveryMode;

    use super::*;

    fn of(tuning: Tuning) -> Scenario {
        of_so_many(tuning, 3)
    }

    fn of_so_many(tuning: Tuning, processes: u32) -> Scenario {
        let base = scenario(Path::new(SCENARIO)).expect("is shipped").file.scenario;
        let recipes = policy_file::recipes(&[]).expect("shipped recipes have no mistakes");
        let mixture = Mixture { throughput: processes, latency: 0 };
        of_tuning(&base, tuning, mixture, &recipes).expect("can be simulated")
    }

    #[test]
    fn each_tuning_is_another_scenario_of_the_same_load() {
        let all: Vec<Scenario> = Tuning::ALL.iter().map(|tuning| of(*tuning)).collect();
        for scenario in &all {
            assert_eq!((scenario.application.threads, scenario.clients.connections), (3, 3 * BURST));
            assert_eq!(scenario.costs, all[0].costs);
        }
        let hashes: std::collections::BTreeSet<String> = all.iter().map(Scenario::hash).collect();
        // The model has neither the rules nor the RSS contexts that distinguish mix. Otherwise, the recipe of
        // mix equals that of none with another layout.
        assert!(hashes.len() >= Tuning::ALL.len() - 1, "{hashes:?}");
    }

    #[test]
    fn every_number_of_the_document_can_be_simulated_under_every_tuning() {
        for processes in crate::bench::mixture::AT_ONCE {
            for tuning in Tuning::ALL {
                assert_eq!(of_so_many(tuning, processes).application.threads, processes);
            }
        }
        let placed = |processes| of_so_many(Tuning::Manual, processes).layout.pinned;
        assert!(placed(24) && !placed(48), "a pinned thread has its CPU to itself");
    }

    #[test]
    fn a_policy_is_its_recipes_mode_moderation_and_layout() {
        let bulk = of(Tuning::Policy(PolicyName::Bulk));
        assert_eq!(bulk.delivery.mode, "defer200".parse::<DeliveryMode>().expect("a mode"));
        assert_eq!((bulk.hardware.coalescing.rx_usecs, bulk.hardware.coalescing.adaptive), (50, false));
        let power = of(Tuning::Policy(PolicyName::Power));
        assert_eq!(power.layout.irq_cpus, [0, 1], "two CPUs take all interrupts");
        assert_eq!(power.delivery.params.defer_hard_irqs.0, 1, "one empty poll");
        let cpu = of(Tuning::Policy(PolicyName::Cpu));
        assert_eq!(cpu.hardware.queues, 12, "the CPUs of the NIC's node");
        assert!(of(Tuning::Manual).layout.pinned && !bulk.layout.pinned);
        assert_eq!(of(Tuning::Manual).delivery, of(Tuning::Policy(PolicyName::None)).delivery);
    }
}
