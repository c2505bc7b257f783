//! Groups of changes that are judged together because they affect a common service, and the services whose
//! traffic judges each group.

use std::collections::{BTreeMap, BTreeSet};

use model::{Guard, Object, Plan, Step};

/// A service that has a guard.
#[derive(Clone, Debug)]
pub(crate) struct GuardedService {
    pub(crate) name: String,
    pub(crate) guard: Guard,
    /// The objects that deliver the service's packets.
    pub(crate) objects: BTreeSet<Object>,
}

/// Changes that are judged together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GuardGroup {
    /// The targets of the services that the changes affect.
    pub(crate) services: BTreeSet<String>,
    /// The changes, in the order of the plan.
    pub(crate) changes: Plan,
}

/// Steps, each with its index in the plan.
type Steps = Vec<(usize, Step)>;

/// Groups the steps of a plan. Two steps are judged together if they affect a common service, directly or
/// through other steps. Omits steps that affect no guarded service.
pub(crate) fn grouped(changes: Plan, guarded: &BTreeMap<String, GuardedService>) -> Vec<GuardGroup> {
    let mut groups: Vec<(BTreeSet<String>, Steps)> = Vec::new();
    for (place, step) in changes.steps.into_iter().enumerate() {
        let object = step.object();
        let about = guarded.iter().filter(|(_, service)| service.objects.contains(&object));
        let mut services: BTreeSet<String> = about.map(|(target, _)| target.clone()).collect();
        if services.is_empty() {
            continue;
        }
        let mut steps = vec![(place, step)];
        // This step connects several groups, so merge them.
        for (others, theirs) in
            groups.extract_if(.., |(others, _)| !others.is_disjoint(&services)).collect::<Vec<_>>()
        {
            services.extend(others);
            steps.extend(theirs);
        }
        groups.push((services, steps));
    }
    let group = |(services, mut steps): (BTreeSet<String>, Steps)| {
        steps.sort_by_key(|(place, _)| *place);
        GuardGroup { services, changes: Plan { steps: steps.into_iter().map(|(_, step)| step).collect() } }
    };
    groups.into_iter().map(group).collect()
}

#[cfg(test)]
pub(crate) mod test {
    use model::{Limits, Nanoseconds};

    use super::*;
    use crate::reconciler_test::{change, plan, queue};

    /// Returns a guarded service whose packets arrive on these queues.
    pub(crate) fn service(name: &str, queues: &[u32]) -> (String, GuardedService) {
        let objects = queues.iter().map(|number| Object::Queue(queue(*number))).collect();
        let guard = Guard { limits: Limits::default(), within: Nanoseconds::from_millis(20_000) };
        (format!("service {name}"), GuardedService { name: name.to_owned(), guard, objects })
    }

    /// Returns a plan that sets a timeout of each of these queues, in this order.
    pub(crate) fn of_queues(queues: &[u32]) -> Plan {
        plan(queues.iter().map(|number| change(*number, 0, 20)).collect())
    }

    /// Returns the services' names and the changes of each group.
    fn named(groups: &[GuardGroup]) -> Vec<(Vec<&str>, Plan)> {
        let mut all = Vec::new();
        for GuardGroup { services, changes } in groups {
            all.push((services.iter().map(|target| &target["service ".len()..]).collect(), changes.clone()));
        }
        all
    }

    #[test]
    fn services_that_share_nothing_are_judged_apart_and_those_that_share_a_queue_together() {
        let guarded = BTreeMap::from([service("a", &[0, 1]), service("b", &[2]), service("c", &[1, 3])]);
        let groups = grouped(of_queues(&[2, 0, 7]), &guarded);
        assert_eq!(named(&groups), [(vec!["b"], of_queues(&[2])), (vec!["a"], of_queues(&[0]))]);
        let groups = grouped(of_queues(&[3, 2, 0, 1]), &guarded);
        assert_eq!(
            named(&groups),
            [(vec!["b"], of_queues(&[2])), (vec!["a", "c"], of_queues(&[3, 0, 1]))],
            "queue 1 belongs to both services"
        );
    }

    #[test]
    fn nothing_is_judged_where_no_change_is_about_a_service_with_a_guard() {
        let guarded = BTreeMap::from([service("a", &[0])]);
        assert_eq!(grouped(of_queues(&[5]), &guarded), []);
        assert_eq!(grouped(Plan::default(), &guarded), []);
    }
}
